"""FLOPs, bytes and lower bounds on time from a model's shape. It imports no torch."""

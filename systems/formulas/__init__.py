"""FLOPs, bytes and lower bounds on time from a model's shape. These need no torch."""

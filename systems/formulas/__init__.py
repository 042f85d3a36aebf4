"""What follows from shapes: FLOPs, bytes and lower bounds on time. Imports no torch."""

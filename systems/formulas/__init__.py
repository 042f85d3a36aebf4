"""What follows from shapes: FLOPs, bytes, floors. Arithmetic alone, without torch."""

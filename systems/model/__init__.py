"""What is measured: the Transformer, its sizes, the optimizer, a training step, its data."""

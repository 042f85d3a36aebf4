"""What is measured: the Transformer, its sizes, the optimizer, a step, its data."""

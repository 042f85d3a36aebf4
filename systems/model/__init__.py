"""The Transformer model, its sizes, optimizer and training step, and synthetic data."""

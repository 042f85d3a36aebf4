"""The Transformer, its sizes, its optimizer, one training step and synthetic data."""

"""Floating-point formats, and the dtype of each operation."""

"""Floating-point formats, and the dtypes in which a model computes."""

"""Measure wall-clock and GPU time, and load the attention functions to compare."""

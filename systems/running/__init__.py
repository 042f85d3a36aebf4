"""Measure experiments row by row, after compiling kernels of many rows in parallel."""

"""Measuring a stem row by row, one row by hand, and compiling ahead."""

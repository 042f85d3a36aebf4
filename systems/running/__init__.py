"""Measure experiments row by row, with compilation ahead of time."""

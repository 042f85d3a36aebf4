"""Measure experiments row by row; kernels are compiled before rows are measured."""

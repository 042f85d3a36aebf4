"""Formulas of a model's shape: FLOPs, bytes, lower bounds on time. Imports no torch."""

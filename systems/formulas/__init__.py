"""Formulas for FLOPs, bytes and minimum times of a model. They need no torch."""

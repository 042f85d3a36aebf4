"""Kernels, launches, phases and memory of a profiled step."""

"""Where time and memory go: kernels, launches and phases of a profiled step."""

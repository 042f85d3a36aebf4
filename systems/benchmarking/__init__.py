"""Time steps and kernels: wall-clock and GPU time, phases, graphs, attention peers."""

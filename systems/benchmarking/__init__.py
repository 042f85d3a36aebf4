"""Clocks, phases, workloads, GPU time, and the attention implementations compared."""

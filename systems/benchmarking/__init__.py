"""Time measurement: clocks, phases, workloads, GPU time and rival attentions."""

"""FlashAttention in Gluon, for Hopper GPUs: start at `forward`, then `one_pass`."""

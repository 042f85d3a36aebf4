"""FlashAttention-2 in Triton, for the A100 and later GPUs: start at `forward`."""

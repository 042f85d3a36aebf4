"""FlashAttention-2 in Triton, for any GPU that it runs on."""

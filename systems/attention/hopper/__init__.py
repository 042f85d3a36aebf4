"""FlashAttention in Gluon, for Hopper GPUs."""

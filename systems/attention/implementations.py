"""The attention implementations that a model can use, by name."""

# "module:function" by name. Each function maps q, k and v (batch, heads, n, d) to o.
IMPLEMENTATIONS = {
    "eager": "systems.model.transformer:eager_attention",
    "eager_annotated": "systems.profiling.annotated_attention:causal_attention",
    "sdpa": "systems.attention.sdpa:causal_attention",
    "flash": "systems.attention.dispatch:causal_attention",
    "flash_torch": "systems.attention.torch_tiles:causal_attention",
}

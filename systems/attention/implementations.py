"""The attention implementations that a model can use, by name."""

# "module:function" by name. Each function computes causal attention of (b, h, s, e).
IMPLEMENTATIONS = {
    "eager": "systems.model.transformer:eager_attention",
    "eager_annotated": "systems.profiling.annotated_attention:causal_attention",
    "sdpa": "systems.attention.sdpa:causal_attention",
    "flash": "systems.attention.dispatch:causal_attention",
    "flash_torch": "systems.attention.torch_tiles:causal_attention",
}

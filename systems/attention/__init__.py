"""Attention implementations by name, each loaded when a model first asks for it."""

# name -> "module:function"; the function takes q, k, v of shape (b, h, s, e) and is causal.
IMPLEMENTATIONS = {
    "eager": "systems.model:eager",
}

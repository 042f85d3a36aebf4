"""How fast and how memory-hungry transformers are on a GPU: the model, the clock, the experiments."""

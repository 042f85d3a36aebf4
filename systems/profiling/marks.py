"""How the marks of a profiled step are named, beside its phases. Imports no torch: the
pages' renderer reads exports by them.
"""

# Which pass and which layer, not which phase.
STEP, LAYER = "step", "layer"
# The parts of eager attention.
PARTS = SCORES, MASK, SOFTMAX, OUTPUT = (
    "attention scores",
    "attention mask",
    "attention softmax",
    "attention output",
)

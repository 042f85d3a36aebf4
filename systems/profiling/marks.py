"""Names of the marks in a profiled step. Imports no torch, because the pages' renderer
reads exports by these names.
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

"""Names of the marks in a profiled step. Imports no torch, because the pages' renderer
reads exports by these names.
"""

# These name a pass and a layer, not a phase.
STEP, LAYER = "step", "layer"
# The parts of eager attention, in order.
PARTS = SCORES, MASK, SOFTMAX, OUTPUT = (
    "attention scores",
    "attention mask",
    "attention softmax",
    "attention output",
)

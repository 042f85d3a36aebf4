"""Names of the marks in a profiled step. Imports no torch."""

# Marks of a pass and of a layer, which are not phases.
STEP, LAYER = "step", "layer"
# The parts of eager attention, in order.
PARTS = SCORES, MASK, SOFTMAX, OUTPUT = (
    "attention scores",
    "attention mask",
    "attention softmax",
    "attention output",
)

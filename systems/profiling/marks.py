"""Names of the marks (profiler ranges) in a step. This module needs no torch."""

# Names of the marks around a pass and around a layer, which are not phases.
STEP, LAYER = "step", "layer"
# Names of the marks around the four parts of eager attention, in order.
PARTS = SCORES, MASK, SOFTMAX, OUTPUT = (
    "attention scores",
    "attention mask",
    "attention softmax",
    "attention output",
)

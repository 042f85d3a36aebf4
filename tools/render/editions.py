"""Notes on model sizes whose names differ in the CS336 handout of 2026."""

# Tooltips for readers of the handout of 2026.
SIZE_NOTES = {
    "xl": "CS336 of 2026 has no such size: its xl is our 2.7B.",
    "2.7B": "CS336 of 2026 calls this size xl.",
}
# Labels with a size's names in both handouts.
LABELS = {"xl": "xl (2026: none)", "2.7B": "2.7B (2026: xl)"}

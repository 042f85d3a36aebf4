"""What CS336's handout of 2026 calls the sizes of the model: two names moved."""

# What a reader of that handout would take a name of ours for.
EXPLAINED = {
    "xl": "CS336 of 2026 has no such size: its xl is our 2.7B.",
    "2.7B": "CS336 of 2026 calls this size xl.",
}
# Where there is room for a word or two.
LABELS = {"xl": "xl (2026: none)", "2.7B": "2.7B (2026: xl)"}

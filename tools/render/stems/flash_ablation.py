"""Tables and facts of `flash_ablation`: what each technique gained."""

from itertools import pairwise

from systems import ROOT
from systems.records.record import Record
from tools.render.markdown import columns, per_device, table
from tools.render.rows import cell, faster, say

# What `tools/compile_steps.py` found, by version of Triton.
COMPILED = ROOT / "docs" / "results" / "flash_ablation-compiled.json"
# What launches the steps' kernels, but not what times them.
ABLATION = "systems.experiments.flash_ablation"
LAUNCHERS = (
    *((ABLATION, name) for name in ("FORWARD", "switched_forward", "atomic_backward")),
    *(
        (f"systems.attention.{module}", None)
        for module in ("first", "triton.launches", "hopper.launches")
    ),
)
# Written down before this experiment ran, and kept as they are. Those of the path for
# Hopper knew earlier trials.
FORWARD = {
    "first_forward": ("the first kernel", ""),
    "tiles": ("tiles and online softmax; every tile visited and masked", ""),
    "skip": ("tiles above the diagonal are not visited", "2.0: half of the tiles"),
    "split": (
        "only tiles on the diagonal are masked",
        "1.1: a comparison and a selection less for each score",
    ),
    "exp2": (
        "exp2, its factor folded into the scale",
        "1.05: a multiplication less for each score",
    ),
    "pipeline": ("three tiles of keys in flight", "1.3: loads hidden behind products"),
    "heavy_first": (
        "the longest rows start first",
        "1.02: no long program left at the end",
    ),
    "small_tiles": (
        "64 queries, 128 keys and four warps in a program",
        "1.1: more programs on a multiprocessor overlap",
    ),
    "plain_forward": (
        "the plain kernel: any strides and length, its own tile, heads side by side",
        "1.0: its generality is paid outside the loop",
    ),
    "one_item_forward": (
        "warps with roles, copies by TMA (Hopper)",
        "1.3: products and exponentials overlap",
    ),
    "forward": (
        "a schedule: one program computes item after item (Hopper)",
        "1.03: to begin and end an item costs 2 of 65 steps",
    ),
}
BACKWARD = {
    "first_backward": ("the first kernel", ""),
    "atomic_backward": ("one pass, five products, dq by atomics", ""),
    "plain_backward": (
        "two passes, seven products, no atomics",
        "0.75: two products of seven more, no atomics",
    ),
    "two_passes_backward": (
        "two passes, warps with roles (Hopper)",
        "1.3: products and exponentials overlap",
    ),
    "backward": (
        "one pass, partial dq added in a fixed order (Hopper)",
        "1.4: five products instead of seven",
    ),
}
# (how it was, how it is, its case, predictions for the passes): the first two cases'
# written after trials of one tile size, the last one's after its tiles had been chosen.
TOLD = [
    (
        "unshared",
        "shared",
        "programs share a loop: 1 head, N = 4096, d = 64, bf16",
        ("2: 64 tiles for 132 SMs", "1.5: and three launches more"),
    ),
    (
        "in_turn",
        "together",
        "long tiles of several heads first: 16 heads, N = 2048, d = 128, fp32",
        ("1.4: no heads' long tiles start last", "1.4: the same"),
    ),
    (
        "cut_in_steps",
        "cut_ahead",
        "fp32 is cut into limbs once, ahead: 16 heads, N = 4096, d = 64, fp32",
        ("1.1: else each program cuts all keys", "1.2: the same, for more products"),
    ),
]
PATH_OF_HOPPER = ("one_item_forward", "forward", "two_passes_backward", "backward")

CAPTIONS = {
    "forward.md": "The forward pass, one change after the other.",
    "backward.md": "The backward pass, one change after the other.",
}


def fragments(records: list[Record]) -> dict[str, str]:
    """Steps forward, designs of the backward pass, and what the launchers choose."""
    return {
        "told.md": per_device(records, told),
        "forward.md": per_device(records, lambda record: steps(record, FORWARD)),
        "backward.md": per_device(records, lambda record: steps(record, BACKWARD)),
    }


def steps(record: Record, described: dict[str, tuple[str, str]]) -> str:
    """A line for each step, with its gain over the one before."""

    def tried(step: str) -> bool:
        """Where the kernels for Hopper don't run, their step repeats the one before."""
        c = cell(record, step=step)
        repeats = c and step in PATH_OF_HOPPER and c["ran"] != "hopper"
        return c.row is not None and not repeats

    shown = [step for step in described if tried(step)]
    return columns(
        pairwise(["", *shown]),
        ("added", lambda pair: described[pair[1]][0]),
        ("predicted gain", lambda pair: described[pair[1]][1]),
        ("median, ms", lambda pair: cell(record, step=pair[1]).ms("time"), "{:.3f}"),
        ("gain", lambda pair: gain(record, *pair), "{:.2f}"),
        ("error", lambda pair: cell(record, step=pair[1])["relative_error"], "{:.1e}"),
        (
            "same bits in two calls",
            lambda pair: cell(record, step=pair[1])["repeats"],
            lambda same: "yes" if same else "no",
        ),
        left=2,
    )


def told(record: Record) -> str:
    """Each choice of the launchers, without and with it, in both passes."""
    rows = []
    for without, with_it, case, predictions in TOLD:
        for of, predicted in zip(("forward", "backward"), predictions, strict=True):
            pair = [f"{how}_{of}" for how in (without, with_it)]
            times = [cell(record, step=step).ms("time") for step in pair]
            if cell(record, step=pair[0]).row:
                shown = (f"{time:.3f}" for time in times)
                rows.append([case, of, predicted, *shown, f"{gain(record, *pair):.2f}"])
    header = ["what", "pass", "predicted gain", "without, ms", "with, ms", "gain"]
    return table(header, rows, left=3)


def gain(record: Record | None, before: str, after: str) -> float:
    """Time of one step over that of another."""
    return faster(cell(record, step=before), cell(record, step=after), "time")


def facts(record: Record | None) -> dict[str, str]:
    """From the first step to the last, and one design against another."""
    pairs = {
        "hopper_forward_gain": ("plain_forward", "forward"),
        "hopper_backward_gain": ("plain_backward", "backward"),
        "one_pass_gain": ("two_passes_backward", "backward"),
        "atomic_over_plain": ("atomic_backward", "plain_backward"),
    }
    plain = say(gain(record, "tiles", "plain_forward"), "{:.1f}")
    gains = {name: say(gain(record, *pair), "{:.2f}") for name, pair in pairs.items()}
    return {"plain_gain": plain, **gains}

"""The steps of `flash_ablation`, and what its launchers' choices gained."""

from statistics import median
from typing import NamedTuple

from systems.records.record import Record
from tools.render.frame import texts
from tools.render.load import constant
from tools.render.markdown import per_device, percent, table
from tools.render.rows import cell, say

# What launches the steps' kernels, but not what times them.
ABLATION = "systems.experiments.flash_ablation"
LAUNCHERS = (
    *((ABLATION, name) for name in ("FORWARD", "switched_forward", "atomic_backward")),
    *(
        (f"systems.attention.{module}", None)
        for module in ("first", "triton.launches", "hopper.launches")
    ),
)


class Step(NamedTuple):
    """A step's name, and the speedup over the step above that was expected, written
    down before this experiment ran and kept; for the Hopper path after earlier trials.
    """

    name: str
    because: str = ""
    predicted: float = 0.0


FORWARD = {
    "tiles": Step("online softmax in tiles"),
    "skip": Step("stop at the diagonal", "half of the tiles", 2.0),
    "first_forward": Step("the first kernel"),
    "split": Step("mask only diagonal tiles", "no comparison in most tiles", 1.1),
    "exp2": Step("exp2 instead of exp", "one multiplication less per score", 1.05),
    "pipeline": Step("three pipeline stages", "loads hidden behind matmuls", 1.3),
    "heavy_first": Step("longest rows first", "no long block at the end", 1.02),
    "small_tiles": Step("smaller tiles", "more thread blocks overlap on an SM", 1.1),
    "plain_forward": Step("any shape", "generality costs nothing in the loop", 1.0),
    "one_item_forward": Step(
        "warp specialization", "matmuls and exponentials overlap", 1.3
    ),
    "forward": Step("persistent thread blocks", "2 of 65 steps begin or end one", 1.03),
}
BACKWARD = {
    "first_backward": Step("the first kernel"),
    "atomic_backward": Step("one pass, atomics", "five matmuls, not seven", 1.4),
    "plain_backward": Step(
        "two passes, any shape", "seven matmuls again, no atomics", 0.75
    ),
    "two_passes_backward": Step(
        "two passes, warp specialization", "matmuls and exponentials overlap", 1.3
    ),
    "backward": Step("one pass, fixed order", "five matmuls, not seven", 1.4),
}
STEPS = FORWARD | BACKWARD
# (how it was, how it is, its case, predictions for the passes): the first two cases'
# written after trials of one tile size, the last one's after its tiles had been chosen.
TOLD = [
    (
        "unshared",
        "shared",
        "a loop is split among programs: 1 head, N = 4096, d = 64, bf16",
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
        "fp32 is split into limbs once, ahead: 16 heads, N = 4096, d = 64, fp32",
        ("1.1: else each program splits all keys", "1.2: the same, for more products"),
    ),
]
# So many calls at its end say how long a step takes once it has gone on for a while.
LAST = 5
PATH_OF_HOPPER: tuple[str, ...] = constant("flash_ablation", "HOPPER_STEPS")


def fragments(records: list[Record]) -> dict[str, str]:
    """What the launchers choose. The steps stand in `tools/render/spanning/ladder.py`,
    beside cuDNN.
    """
    return {"told.md": per_device(records, told)}


def told(record: Record) -> str:
    """Each choice of the launchers, without and with it, in both passes."""
    rows = []
    for without, with_it, case, predictions in TOLD:
        for of, predicted in zip(("forward", "backward"), predictions, strict=True):
            pair = [f"{how}_{of}" for how in (without, with_it)]
            if cell(record, step=pair[0]).row:
                shown = (f"{ms(record, step):.3f}" for step in pair)
                rows.append([case, of, predicted, *shown, f"{gain(record, *pair):.2f}"])
    header = ["what", "pass", "predicted gain", "without, ms", "with, ms", "gain"]
    return table(header, rows, left=3)


def ms(record: Record | None, step: str) -> float:
    """The median GPU time. In a record from before it was measured, the second fastest
    call by `do_bench`: steps did not alternate, and each began near the highest clock.
    """
    c = cell(record, step=step)
    samples = sorted(c.get("time_ms", ()) or ())
    return c.gpu_ms("time") or (samples[:2][-1] if samples else c.missing)


def ms_at_the_end(record: Record | None, step: str) -> float:
    """Of the calls that ended the step, once the clock has fallen where it falls; of
    rounds that alternate, all.
    """
    c = cell(record, step=step)
    samples = c.get("time_ms", ()) or ()
    return c.gpu_ms("time") or (median(samples[-LAST:]) if samples else c.missing)


def gain(record: Record | None, before: str, after: str) -> float:
    """Time of one step over that of another, near the highest clock."""
    return ms(record, before) / ms(record, after)


def gain_at_the_end(record: Record | None, before: str, after: str) -> float:
    """The same, once each step has gone on for a while."""
    return ms_at_the_end(record, before) / ms_at_the_end(record, after)


def facts(record: Record | None) -> dict[str, str]:
    one_pass = ("two_passes_backward", "backward")
    atomics = gain(record, "first_backward", "atomic_backward")
    gains = {
        "one_pass_gain": gain(record, *one_pass),
        "one_pass_gain_at_the_end": gain_at_the_end(record, *one_pass),
        "atomic_over_first": atomics,
        "plain_over_first": gain(record, "first_backward", "plain_backward"),
    }
    return {"atomics_keep": say(atomics, atomics_keep), **texts("{:.2f}", gains)}


def atomics_keep(gained: float) -> str:
    """Of the time of two products in seven, if all time were products; to follow
    "atomics".
    """
    kept = (1 - 1 / gained) / (2 / 7)
    if kept < 0.05:
        return "lose all that leaving out two products could save"
    return (
        f"keep {percent(kept)} of what leaving out two products would save if all time "
        "were products"
    )

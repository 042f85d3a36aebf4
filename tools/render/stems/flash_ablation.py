"""The optimization steps of `flash_ablation`, with predicted speedups, and facts."""

from typing import NamedTuple

from systems.records.record import Record
from tools.render.fragments import Fragments
from tools.render.frame import frame
from tools.render.load import read_constant
from tools.render.rows import MISSING, fmt, span


class Step(NamedTuple):
    """An optimization step: name, predicted speedup over the step above, and reason for
    it. Predictions were written before the experiment ran, and never changed; only the
    Hopper kernels had been tried before.
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
PASSES = ("forward", "backward")
# Launch options: names of the steps without and with the option, less the pass.
CHOICES = {
    "split_loop": ("unshared", "shared"),
    "long_first": ("in_turn", "together"),
    "limbs_ahead": ("cut_in_steps", "cut_ahead"),
}
PATH_OF_HOPPER: tuple[str, ...] = read_constant("flash_ablation", "HOPPER_STEPS")
fragments = Fragments()


def step_ms(record: Record | None, step: str) -> float:
    """Return a step's median GPU ms; Missing for a Hopper step that ran on Triton."""
    x = frame(record).one(step=step)
    lost = step in PATH_OF_HOPPER and x.get("ran", "hopper") != "hopper"
    return MISSING if lost else x.gpu_ms("time")


def speedup(record: Record | None, before: str, after: str) -> float:
    """Return the speedup in GPU time of the step `after` over the step `before`."""
    return step_ms(record, before) / step_ms(record, after)


def facts(record: Record | None) -> dict[str, str]:
    gains = {
        "one_pass_gain": speedup(record, "two_passes_backward", "backward"),
        "atomic_over_first": speedup(record, "first_backward", "atomic_backward"),
        "plain_over_first": speedup(record, "first_backward", "plain_backward"),
    }
    chosen = {
        name: [speedup(record, f"{a}_{of}", f"{b}_{of}") for of in PASSES]
        for name, (a, b) in CHOICES.items()
    }
    return {
        **{name: fmt(value, "{:.5f}") for name, value in gains.items()},
        **{name: span(values, "{:.5f}") for name, values in chosen.items()},
    }

"""The steps of `flash_ablation`, and what its launchers' choices gained."""

from statistics import median
from typing import NamedTuple

from systems.records.record import Record
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
    """A step's short name, for figures and tables; why it should gain; and by what
    factor, written down before this experiment ran and kept as it is. Those of the path
    for Hopper knew earlier trials. `short`: what is in the way, where it saves less
    than half of the time that it should.

    What it did gain, and what the compiler made of it, follows from the records.
    """

    name: str
    cause: str = ""
    predicted: str = ""
    short: str = ""

    @property
    def factor(self) -> str:
        """The predicted one, without its reason."""
        return self.predicted.partition(":")[0]


FORWARD = {
    "tiles": Step(
        "all tiles, all masked",
        "The online softmax in tiles of 128 queries and 64 keys, eight warps; no other "
        "technique.",
    ),
    "skip": Step(
        "stops at the diagonal",
        "Half of the tiles lie above the diagonal: a program now ends there.",
        "2.0: half of the tiles",
    ),
    "first_forward": Step("the first kernel"),
    "split": Step(
        "masks the diagonal only",
        "Only tiles on the diagonal need the comparison, so the loop over the others "
        "is compiled without it.",
        "1.1: a comparison and a selection less for each score",
    ),
    "exp2": Step(
        "exp2 instead of exp",
        "The GPU has an instruction for exp2 and none for exp, which is built from it "
        "with a product and a check for tiny numbers. And scaling a score and taking "
        "the maximum away become one multiply-add.",
        "1.05: a multiplication less for each score",
    ),
    "pipeline": Step(
        "three tiles in flight",
        "While a tile is multiplied, [the next two are on their "
        "way](#software-pipelining).",
        "1.3: loads hidden behind products",
    ),
    "heavy_first": Step(
        "longest rows first",
        "The loop is the same. Only the order changes in which programs start: the "
        "longest no longer come last, when other SMs have nothing left.",
        "1.02: no long program left at the end",
    ),
    "small_tiles": Step(
        "smaller tiles",
        "Half of the queries and twice the keys in a program of four warps: more "
        "programs could take turns on an SM.",
        "1.1: more programs on an SM overlap",
    ),
    "plain_forward": Step(
        "any shape",
        "Strides, ragged edges, splits, tiles of its own and [a limit of "
        "registers](flash_any_shape.md#programs-side-by-side). The last two change "
        "what the compiler makes of the loop.",
        "1.0: its generality is paid outside the loop",
    ),
    "one_item_forward": Step(
        "warps with roles",
        "[Warps with roles](flash_hopper.md) on Hopper: a producer copies, so "
        "consumers can use tensor cores and units for exponentials at once.",
        "1.3: products and exponentials overlap",
    ),
    "forward": Step(
        "item after item",
        "One program on each SM computes one item after another, so the next one's "
        "tiles arrive while this one ends.",
        "1.03: to begin and end an item costs 2 of 65 steps",
    ),
}
BACKWARD = {
    "first_backward": Step("the first kernel"),
    "atomic_backward": Step(
        "one pass, atomics",
        "Five products for each tile, and many programs add to one dQ by atomics, in "
        "an order that changes from run to run.",
        "1.4: five products instead of seven",
        "The rest of what two products take is lost again, most likely because for "
        "each tile of keys a tile of dQ goes to memory.",
    ),
    "plain_backward": Step(
        "two passes, any shape",
        "Seven products in two passes. Nobody adds to what another one writes, so no "
        "dQ travels to memory and back for each tile of keys. This kernel is tuned: "
        "it masks tiles on the diagonal only, which saves instructions, and has one "
        "more tile in flight.",
        "0.75: two products of seven more, no atomics",
    ),
    "two_passes_backward": Step(
        "two passes, roles",
        "The same products by [warps with roles](flash_hopper.md).",
        "1.3: products and exponentials overlap",
        "In the forward pass roles also save instructions of the loop; here they save "
        "hardly any. A profile would tell whether that is the cause.",
    ),
    "backward": Step(
        "one pass, in order",
        "Five products again, and [partial dQ added in a fixed "
        "order](flash_hopper.md#the-backward-pass-in-one-kernel) by the copy engine.",
        "1.4: five products instead of seven",
        "Each tile of keys makes a partial dQ in fp32 that has to be carried to "
        "memory: [how long that takes by itself](flash_leaderboard.md#the-floor) was "
        "measured.",
    ),
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
    """From the first step to the last, and one design against another."""
    pairs = {
        "plain_gain": ("tiles", "plain_forward"),
        "hopper_forward_gain": ("plain_forward", "forward"),
        "hopper_backward_gain": ("plain_backward", "backward"),
        "one_pass_gain": ("two_passes_backward", "backward"),
        "atomic_over_plain": ("atomic_backward", "plain_backward"),
        "atomic_over_first": ("first_backward", "atomic_backward"),
        "plain_over_first": ("first_backward", "plain_backward"),
    }
    drifts = {s: ms_at_the_end(record, s) / ms(record, s) for s in STEPS}
    worst = max(drifts, key=lambda step: drifts[step] or 0.0)
    gains = {
        f"{name}{when}": say(by(record, *pair), "{:.2f}")
        for when, by in (("", gain), ("_at_the_end", gain_at_the_end))
        for name, pair in pairs.items()
    }
    keep = say(gain(record, *pairs["atomic_over_first"]), atomics_keep)
    return {
        "atomics_keep": keep,
        "slowed_step": STEPS[worst].name,
        "slowed_first": say(ms(record, worst), "{:.2f} ms"),
        "slowed_last": say(ms_at_the_end(record, worst), "{:.2f} ms"),
        **gains,
    }


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

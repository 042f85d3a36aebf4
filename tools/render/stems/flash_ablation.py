"""Table and facts of `flash_ablation`: what each technique was expected to gain, and
what it gained.
"""

from systems.records.record import Record, Row
from systems.records.summary import summarize
from tools.render.markdown import fact, per_device, table

# Written down before this experiment ran, and kept as they are. Those of the path for
# Hopper knew earlier trials.
FORWARD = {
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
        "warps with roles, copies by the copy engine (Hopper)",
        "1.3: products and exponentials overlap",
    ),
    "forward": (
        "a schedule: one program computes item after item (Hopper)",
        "1.03: to begin and end an item costs 2 of 65 steps",
    ),
}
BACKWARD = {
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
        "one pass, shares of dq added in turns (Hopper)",
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
        ("2: 64 tiles for 132 multiprocessors", "1.5: and three launches more"),
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
        "a kernel cuts what others multiply (Hopper): 16 heads, N = 4096, d = 64, fp32",
        ("1.1: each program cuts all keys again", "1.2: the same, for more products"),
    ),
]
PATH_OF_HOPPER = ("one_item_forward", "forward", "two_passes_backward", "backward")


def fragments(records: list[Record]) -> dict[str, str]:
    """The steps of the forward pass, the designs of the backward pass, and what the
    launchers choose.
    """
    return {
        "told.md": per_device(records, told),
        "forward.md": per_device(records, lambda record: steps(record, FORWARD)),
        "backward.md": per_device(records, lambda record: steps(record, BACKWARD)),
    }


def median_ms(row: Row | None) -> float | None:
    return (
        summarize(row.metrics["time_ms"]).median
        if row is not None and row.status == "ok"
        else None
    )


def steps(record: Record, described: dict[str, tuple[str, str]]) -> str:
    rows, before = [], None
    for step, (added, predicted) in described.items():
        row = record.find(step=step)
        time = median_ms(row)
        # Where the kernels for Hopper don't run, their step would repeat the one
        # before.
        if (
            row is None
            or time is None
            or (step in PATH_OF_HOPPER and row.metrics["ran"] != "hopper")
        ):
            continue
        gain = f"{before / time:.2f}" if before else ""
        same = "yes" if row.metrics["repeats"] else "no"
        error = f"{row.metrics['relative_error']:.1e}"
        rows.append([added, predicted, f"{time:.3f}", gain, error, same])
        before = time
    header = [
        "added",
        "predicted gain",
        "median, ms",
        "gain",
        "error",
        "same bits in two calls",
    ]
    return table(header, rows, left=2) if rows else ""


def told(record: Record) -> str:
    """Each choice of the launchers, without and with it, in both passes."""
    rows = []
    for without, with_it, case, predictions in TOLD:
        # Elsewhere nothing is cut ahead: both rows measured the same.
        if with_it == "cut_ahead" and record.device.capability != "9.0":
            continue
        for of, predicted in zip(("forward", "backward"), predictions, strict=True):
            before, after = (
                median_ms(record.find(step=f"{how}_{of}")) for how in (without, with_it)
            )
            if before is not None and after is not None:
                rows.append(
                    [
                        case,
                        of,
                        predicted,
                        f"{before:.3f}",
                        f"{after:.3f}",
                        f"{before / after:.2f}",
                    ]
                )
    return (
        table(
            ["what", "pass", "predicted gain", "without, ms", "with, ms", "gain"],
            rows,
            left=3,
        )
        if rows
        else ""
    )


def facts(record: Record | None) -> dict[str, str]:
    """From the first step to the last, what the path for Hopper adds, and one pass with
    atomics against two.
    """

    def ratio(first: str, last: str) -> float | None:
        a, b = (
            median_ms(record.find(step=step)) if record else None
            for step in (first, last)
        )
        return a / b if a and b else None

    return {
        "plain_gain": fact(ratio("tiles", "plain_forward"), "{:.1f}".format),
        "hopper_forward_gain": fact(ratio("plain_forward", "forward"), "{:.2f}".format),
        "hopper_backward_gain": fact(
            ratio("plain_backward", "backward"), "{:.2f}".format
        ),
        "one_pass_gain": fact(
            ratio("two_passes_backward", "backward"), "{:.2f}".format
        ),
        "atomic_over_plain": fact(
            ratio("atomic_backward", "plain_backward"), "{:.2f}".format
        ),
    }

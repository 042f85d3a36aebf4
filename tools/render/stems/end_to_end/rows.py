"""What rows of `end_to_end` say: times, FLOPs, share of the peak. Read by every builder
of its record.
"""

from dataclasses import asdict

from systems.formulas.costs import forward_flops, pass_flops
from systems.model.sizes import SIZES, TABLE_1
from systems.records.record import Record
from tools.render.rows import PHASES, Cell, cell, cells, data_sheet

# Rows of the assignment's own grid; the batches of the source notes stand in a table of
# their own.
BATCH = 4
PRECISIONS = ("fp32", "tf32", "bf16")
PASSES = ("forward", "backward")


def at(
    record: Record | None,
    size: str,
    context: int,
    mode: str,
    precision: str,
    batch: int = BATCH,
) -> Cell:
    return cell(
        record,
        size=size,
        context=context,
        mode=mode,
        precision=precision,
        batch=batch,
    )


def of_grid(record: Record | None, **config: object) -> list[Cell]:
    """Those of the assignment's grid, out of memory or not."""
    return cells(record, batch=BATCH, **config)


def steps_at_512(record: Record | None) -> list[Cell]:
    """Where TF32 was measured too; a size's precisions together."""
    found = [
        at(record, size, 512, "step", precision)
        for size in TABLE_1
        for precision in PRECISIONS
    ]
    return [c for c in found if c.row]


def flops(c: Cell) -> int:
    """Matrix FLOPs of everything that the row timed."""
    shape = {key: c.config[key] for key in ("context", "batch")}
    size = asdict(SIZES[c.config["size"]])
    forward = forward_flops(vocab_size=c.config["vocab"], **size, **shape)
    timed = [phase for phase in PHASES if c.get(f"{phase}_ms", None)]
    return pass_flops(sum(forward.values()), *timed)


def share_of_peak(record: Record | None, c: Cell, *phases: str) -> float:
    """Those FLOPs over the median time of these phases, or of all, as a share of the
    device's data-sheet rate in this precision.
    """
    if record is None or not c:
        return c.missing
    rate = flops(c) / (c.ms(*phases) / 1e3)
    return rate / getattr(data_sheet(record.device.slug), c.config["precision"])


def tokens_per_second(c: Cell) -> float:
    tokens = c.config["batch"] * c.config["context"] if c else 0
    return tokens / (c.ms() / 1e3)

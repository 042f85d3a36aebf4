"""Tables of `method`: our clock beside bare CUDA events, and two instruments for GPU
time.
"""

from systems.records.record import PHASES, Record
from tools.render.markdown import columns, per_device, percent
from tools.render.rows import Cell, cells, most, say, span

CAPTIONS = {
    "table.md": "A forward pass of `small` by our clock and by CUDA events.",
    "instruments.md": "GPU time of the same pass by two instruments: the sum of its "
    "kernels by CUPTI, and the pass replayed as CUDA graphs, by events.",
}


def fragments(records: list[Record]) -> dict[str, str]:
    return {
        "table.md": per_device(records, clocks_table),
        "instruments.md": per_device(records, instruments_table),
    }


def forward_passes(record: Record | None) -> list[Cell]:
    return [c for c in cells(record) if c.config.get("mode", "forward") == "forward"]


def clock_adds(c: Cell) -> float:
    """What our clock reads beyond CUDA events with a wait after each pass."""
    return c.ms("clock") / c.ms("events") - 1


def waiting_adds(c: Cell) -> float:
    """What waiting costs: those events over events of passes without a wait."""
    return c.ms("events") / c.ms("queued_events") - 1


def clocks_table(record: Record) -> str:
    return columns(
        forward_passes(record),
        "context",
        "precision",
        ("our clock, ms", lambda c: c.ms("clock"), "{:.3f}"),
        ("events, ms", lambda c: c.ms("events"), "{:.3f}"),
        ("clock adds", lambda c: 100 * clock_adds(c), "{:+z.2f} %"),
        ("events, no waits, ms", lambda c: c.ms("queued_events"), "{:.3f}"),
        ("waiting adds", lambda c: 100 * waiting_adds(c), "{:+z.2f} %"),
        left=0,
    )


def kernels_ms(c: Cell) -> float:
    """The sum of kernel times of all phases of a pass."""
    timed = [phase for phase in PHASES if f"{phase}_gpu_ms" in c.metrics]
    return c.gpu_ms(*timed) if timed else c.missing


def graph_ms(c: Cell) -> float:
    return c.ms("graph") if "graph_ms" in c.metrics else c.missing


def instruments_table(record: Record) -> str:
    found = [c for c in cells(record) if kernels_ms(c)]
    return columns(
        found,
        "size",
        "context",
        "precision",
        ("pass", lambda c: c.config["mode"]),
        ("wall, ms", lambda c: c.ms("clock"), "{:.3f}"),
        ("CUPTI, ms", kernels_ms, "{:.3f}"),
        ("graph, ms", graph_ms, "{:.3f}"),
        ("graph / CUPTI", lambda c: graph_ms(c) / kernels_ms(c), "{:.3f}"),
        left=4,
    )


def facts(record: Record | None) -> dict[str, str]:
    """How far our clock is off bare events at most, what waiting after each pass costs
    at most, and how far the instruments of GPU time differ.
    """
    found = forward_passes(record)
    return {
        "clock_adds_at_most": say(most(abs(clock_adds(c)) for c in found), percent),
        "waiting_adds_at_most": say(most(waiting_adds(c) for c in found), percent),
        "graph_over_cupti": span(graph_ms(c) / kernels_ms(c) for c in cells(record)),
    }

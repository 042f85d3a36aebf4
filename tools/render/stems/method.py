"""Tables and facts of `method`: a pass timed by the guide's clock, CUDA events, CUPTI
and CUDA graphs.
"""

from systems.records.record import Record
from tools.render.fragments import Fragments
from tools.render.frame import LAUNCH_BOUND, Frame, frame
from tools.render.markdown import percent
from tools.render.rows import fmt, nanmax

fragments = Fragments()


def passes(record: Record | None) -> Frame:
    """Return passes with the overheads (as shares) of our clock and of synchronizing
    after each pass, and the ratio of CUDA-graph time to CUPTI time.
    """
    return frame(record).derive(
        # Overheads as shares: of the guide's clock over CUDA events, and of
        # synchronizing after each pass over queueing all passes.
        clock_adds=lambda x: x["clock_ms"] / x["events_ms"] - 1,
        waiting_adds=lambda x: x["events_ms"] / x["queued_events_ms"] - 1,
        cupti=lambda x: x.get("step_gpu_ms"),
        ratio=lambda x: x["graph_ms"] / x["cupti"],
    )


@fragments.add("table.md", "A forward pass of `small` by our clock and by CUDA events.")
def clocks_table(record: Record) -> str:
    found = passes(record).where(mode="forward")
    return found.table(
        "context",
        "precision",
        ("our clock, ms", "clock_ms", "{:.3f}"),
        ("events, ms", "events_ms", "{:.3f}"),
        ("our clock / events − 1", lambda x: 100 * x["clock_adds"], "{:+z.2f} %"),
        ("events, no synchronizing, ms", "queued_events_ms", "{:.3f}"),
        ("synchronizing adds", lambda x: 100 * x["waiting_adds"], "{:+z.2f} %"),
    )


@fragments.add(
    "instruments.md",
    "GPU time of a pass by two instruments: CUPTI sums its kernel times; CUDA events "
    "time its replay as CUDA graphs.",
)
def instruments_table(record: Record) -> str:
    return passes(record).table(
        "size",
        "context",
        "precision",
        ("pass", "mode"),
        ("wall, ms", "clock_ms", "{:.3f}"),
        ("CUPTI, ms", "cupti", "{:.3f}"),
        ("graph, ms", "graph_ms", "{:.3f}"),
        ("graph / CUPTI", "ratio", "{:.3f}"),
        left=4,
    )


def facts(record: Record | None) -> dict[str, str]:
    """Return {name: number as text}: largest overheads of our clock and of syncs."""
    found = passes(record).where(mode="forward")
    full = found.where(lambda x: x["clock_ms"] <= LAUNCH_BOUND * x["cupti"])
    clock = nanmax(map(abs, found.column("clock_adds")))
    return {
        "clock_adds_at_most": fmt(clock, percent),
        "waiting_adds_at_most": fmt(nanmax(full.column("waiting_adds")), percent),
    }

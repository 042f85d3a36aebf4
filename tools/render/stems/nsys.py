"""Table and facts of `nsys`: the same step under Nsight Systems and torch.profiler."""

from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.markdown import columns, per_device
from tools.render.rows import PHASES, Cell, cells, known, most, say, span

# How far two readers of the same activity records may lie apart.
AGREE = 0.03

CAPTIONS = {
    "table.md": "One training step under each instrument: how many kernels, how long "
    "they take, and how much longer the step.",
}


def fragments(records: list[Record]) -> dict[str, str]:
    return {"table.md": per_device(records, body)}


def body(record: Record) -> str:
    return columns(
        cells(record),
        *("size", "precision"),
        ("kernels, nsys", lambda c: launched(c, "nsys"), "{:g}"),
        ("torch.profiler", lambda c: launched(c, "torch"), "{:g}"),
        ("ms, nsys", lambda c: busy_ms(c, "nsys"), "{:.2f}"),
        ("torch.profiler", lambda c: busy_ms(c, "torch"), "{:.2f}"),
        ("nsys over torch.profiler", ratio, "{:.3f}"),
        ("slowed by nsys", lambda c: slowdown(c, "nsys"), "{:.2f}"),
        ("by torch.profiler", lambda c: slowdown(c, "torch"), "{:.2f}"),
        left=2,
    )


def launched(c: Cell, instrument: str) -> float:
    """Kernels of a step."""
    return sum(c[f"{instrument}_{phase}_kernels"] for phase in PHASES)


def ms(c: Cell, instrument: str, name: str) -> float:
    """Median over steps of all phases together, of a metric such as "profiled_{}"."""
    return c.ms(*(f"{instrument}_{name.format(phase)}" for phase in PHASES))


def busy_ms(c: Cell, instrument: str) -> float:
    """The sum of the kernels of a step."""
    return ms(c, instrument, "{}_gpu_busy")


def ratio(c: Cell) -> float:
    return busy_ms(c, "nsys") / busy_ms(c, "torch")


def slowdown(c: Cell, instrument: str) -> float:
    """Wall time under the profiler over wall time without it."""
    return ms(c, instrument, "profiled_{}") / ms(c, instrument, "{}")


def facts(record: Record | None) -> dict[str, str]:
    found = cells(record)
    return {
        "ratios": span(map(ratio, found), "{:.3f}"),
        **{
            f"slowdown_{name}": say(most(slowdown(c, name) for c in found), "{:.2f}")
            for name in ("nsys", "torch")
        },
    }


@claim(
    "nsys_profile",
    "Nsight Systems and torch.profiler read the same activity records: the kernels of "
    "a step take as long under either, within 3 %, and are as many.",
)
def instruments_agree(record: Record) -> Judgement:
    found = [c for c in cells(record) if c]
    ratios = known(map(ratio, found))
    as_many = all(launched(c, "nsys") == launched(c, "torch") for c in found)
    numbers = f"nsys over torch.profiler: {span(ratios, '{:.3f}')}."
    near = all(abs(r - 1) <= AGREE for r in ratios)
    return ratios and (as_many and near, numbers)

"""Tables and facts of `nsys`: the same step under Nsight Systems and torch.profiler;
the steps that kernels fill most come first.
"""

from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.frame import Frame, Line, frame
from tools.render.markdown import per_device, percent
from tools.render.rows import NOT_MEASURED, PHASES, Missing, known, most, say, span

CAPTIONS = {
    "kernels.md": "The kernels of one training step under nsys, copies and fills of "
    "memory included, and their time divided by that under torch.profiler (*torch*).",
    "cost.md": "Wall-clock time of a step without a profiler (by *end_to_end*, another "
    "process on the same GPU), and how many times as long it takes under each.",
}
INSTRUMENTS = ("nsys", "torch")


def steps(record: Record | None) -> Frame:
    """Steps under both profilers, beside the row of `end_to_end` of each."""
    found = frame(record).derive(
        step=lambda x: ", ".join(str(x[k]) for k in ("size", "context", "precision")),
        alone=alone,
        **{f"{name}_ms": lambda x, n=name: kernel_ms(x, n) for name in INSTRUMENTS},
        **{f"{name}_kernels": lambda x, n=name: kernels(x, n) for name in INSTRUMENTS},
        **{
            f"{name}_slowdown": lambda x, n=name: slowdown(x, n) for name in INSTRUMENTS
        },
        ratio=lambda x: x["nsys_ms"] / x["torch_ms"],
        filled=lambda x: x["torch_ms"] / x["alone"]["step_ms"],
    )
    return Frame(sorted(found, key=lambda x: -x["filled"] if x else 0))


def alone(x: Line) -> Line | Missing:
    """The step in a process of its own, without a profiler."""
    clock = x.row.clock if x and x.row else None
    return Line.of(clock) if clock else x.missing


def all_phases(x: Line, pattern: str) -> float:
    """The median over steps of all phases together, of a metric."""
    return x.ms(*(pattern.format(phase) for phase in PHASES))


def kernel_ms(x: Line, instrument: str) -> float:
    return all_phases(x, f"{instrument}_{{}}_gpu_busy")


def kernels(x: Line, instrument: str) -> float:
    return sum(x[f"{instrument}_{phase}_kernels"] for phase in PHASES)


def slowdown(x: Line, instrument: str) -> float:
    """Wall-clock time under the profiler over that without."""
    return all_phases(x, f"{instrument}_profiled_{{}}") / x["alone"]["step_ms"]


def fragments(records: list[Record]) -> dict[str, str]:
    return {
        "kernels.md": per_device(records, kernels_table),
        "cost.md": per_device(records, cost_table),
    }


def kernels_table(record: Record) -> str:
    """Both numbers of kernels where they differ."""

    def counts(x: Line) -> object:
        nsys, torch = x["nsys_kernels"], x["torch_kernels"]
        return nsys if not x or nsys == torch else f"{nsys}, torch.profiler {torch}"

    return steps(record).table(
        "step",
        ("kernels", counts),
        ("ms", "nsys_ms", "{:.1f}"),
        ("nsys / torch", "ratio", "{:.3f}"),
    )


def cost_table(record: Record) -> str:
    return steps(record).table(
        "step",
        ("without, ms", lambda x: x["alone"]["step_ms"], "{:.1f}"),
        *((name, f"{name}_slowdown", "{:.2f}") for name in INSTRUMENTS),
    )


def facts(record: Record | None) -> dict[str, str]:
    found = steps(record)
    fullest = next(iter(found.where(bool)), Line())
    return {
        "ratios": span(found.column("ratio"), "{:.3f}"),
        "steps": str(len(found.where(bool)) or NOT_MEASURED),
        **{
            f"slowdown_{name}": say(most(found.column(f"{name}_slowdown")), "{:.2f}")
            for name in INSTRUMENTS
        },
        "filled": say(fullest["filled"], percent),
        "filled_size": say(fullest["size"]),
        "filled_slowdown": say(fullest["nsys_slowdown"], "{:.2f}"),
    }


@claim(
    "nsys_profile",
    "Nsight Systems and torch.profiler read the same activity records: the kernels of "
    "a step take as long under either, within 3 %, and are as many.",
    because="the runs follow each other, and the GPU's clock may have moved by a few "
    "of its steps of about 1 %.",
)
def instruments_agree(record: Record) -> Judgement:
    found = steps(record).where(bool)
    ratios = known(found.column("ratio"))
    as_many = all(x["nsys_kernels"] == x["torch_kernels"] for x in found)
    numbers = f"nsys over torch.profiler: {span(ratios, '{:.3f}')}."
    return ratios and (as_many and all(abs(r - 1) <= 0.03 for r in ratios), numbers)

"""Table, facts and claim of `nsys`: steps under Nsight Systems and torch.profiler."""

from systems.records.record import PHASES, Record
from tools.render.claims import Judgement, claim
from tools.render.fragments import Fragments
from tools.render.frame import Frame, Line, frame
from tools.render.rows import count_true, dropna, fmt, span
from tools.render.stems.kernel_profile.rows import wall_ms

fragments = Fragments()


def steps(record: Record | None) -> Frame:
    """Return steps with kernel ms by nsys (`nsys_ms`) and torch.profiler (`torch_ms`),
    their `ratio`, and the step's wall-clock ms without a profiler (`wall_ms`).
    """
    return frame(record).derive(
        step=lambda x: ", ".join(str(x[k]) for k in ("size", "context", "precision")),
        wall_ms=wall_ms,
        nsys_ms=lambda x: x.ms(*(f"nsys_{phase}_gpu_busy" for phase in PHASES)),
        torch_ms=lambda x: x.ms(*(f"torch_{phase}_gpu_busy" for phase in PHASES)),
        ratio=lambda x: x["nsys_ms"] / x["torch_ms"],
        as_many=lambda x: (
            count_kernels(x, "nsys") == count_kernels(x, "torch") if x else x.missing
        ),
        forward_ratio=lambda x: (
            x["nsys_forward_gpu_busy_ms"] / x["torch_forward_gpu_busy_ms"]
        ),
    )


def count_kernels(x: Line, instrument: str) -> float:
    return sum(x[f"{instrument}_{phase}_kernels"] for phase in PHASES)


@fragments.add(
    "kernels.md",
    "Training steps and their forward passes under nsys: number and total time of "
    "kernels, copies and fills; ratio to the time by torch.profiler; wall-clock time "
    "of an unprofiled step.",
)
def kernels_table(record: Record) -> str:
    return steps(record).table(
        "step",
        ("forward, kernels", "nsys_forward_kernels"),
        ("forward, ms", "nsys_forward_gpu_busy_ms", "{:.1f}"),
        ("forward, nsys / torch", "forward_ratio", "{:.3f}"),
        ("step, kernels", lambda x: count_kernels(x, "nsys")),
        ("step, ms", "nsys_ms", "{:.1f}"),
        ("step, nsys / torch", "ratio", "{:.3f}"),
        ("step, wall, ms", "wall_ms", "{:.1f}"),
        shown_first=lambda x: x["context"] == 512,
    )


def facts(record: Record | None) -> dict[str, str]:
    found = steps(record)
    return {
        "ratios": span(found.column("ratio"), "{:.3f}"),
        "as_many": fmt(count_true(dropna(found.column("as_many")))),
    }


@claim(
    "nsys_profile",
    "Nsight Systems and torch.profiler read the same activity records: they count "
    "equally many kernels in a step, and total kernel times agree within 3 %.",
    because="between the two runs, the GPU's clock rate may have changed by a few of "
    "its steps of about 1 %.",
)
def instruments_agree(record: Record) -> Judgement:
    found = steps(record).where(bool)
    ratios = dropna(found.column("ratio"))
    as_many = all(found.column("as_many"))
    numbers = f"Kernel time by nsys / by torch.profiler: {span(ratios, '{:.3f}')}."
    return ratios and (as_many and all(abs(r - 1) <= 0.03 for r in ratios), numbers)

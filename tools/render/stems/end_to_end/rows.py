"""Rows of `end_to_end` with times, FLOPs, share of the peak, speedup over fp32."""

from dataclasses import asdict

from systems.formulas.costs import forward_flops, pass_flops
from systems.model.sizes import SIZES, VOCAB_SIZE
from systems.records.record import Record
from systems.records.summary import Summary
from tools.render.frame import Frame, Line, frame
from tools.render.rows import MISSING, nanmax, peak_rates

# The batch size of the assignment.
BATCH = 4
PRECISIONS = ("fp32", "tf32", "bf16")
# The phases from forward to backward.
PASSES = ("forward", "loss", "backward")
# Groups of phases whose speedups are compared, by column prefix; () means all phases.
COMPARED = {
    "forward": ("forward",),
    "backward": ("backward",),
    "pass": PASSES,
    "step": (),
}


def passes(record: Record | None) -> Frame:
    """Return all rows with wall-clock ms of forward + loss + backward (`pass_ms`), std
    / mean (`variation`), ratio to context 128 (`growth`), and `share` of peak FLOP/s.
    """
    slug = record.device.slug if record else ""
    found = frame(record).derive(
        pass_ms=lambda x: pass_summary(x).median,
        share=lambda x: share_of_peak(slug, x, x["step_ms"]),
        backward_over_forward=lambda x: (
            x.kernel_ms("backward") / x.kernel_ms("forward")
        ),
        pass_mean=lambda x: pass_summary(x).mean,
        pass_std=lambda x: pass_summary(x).std,
        variation=lambda x: x["pass_std"] / x["pass_mean"],
    )
    found.join("short", context=128)
    return found.derive(growth=lambda x: x["pass_ms"] / x["short.pass_ms"])


def pass_summary(x: Line) -> Summary:
    """Return statistics of the wall-clock ms of forward, loss and backward together."""
    return x.summary(*(phase for phase in x.timed_phases if phase in PASSES))


def steps(record: Record | None) -> Frame:
    """Return training steps at batch 4 with GPU ms, rows `fp32` and `tf32` to compare
    with, and speedups over fp32: wall-clock (`gain`) and GPU (`step_kernel_gain`).
    """
    slug = record.device.slug if record else ""
    found = passes(record).where(mode="step", batch=BATCH)
    found.derive(
        **{
            f"{name}_kernels_ms": lambda x, names=names: x.kernel_ms(*names)
            for name, names in (COMPARED | {"optimizer": ("optimizer",)}).items()
        },
        pass_share=lambda x: share_of_peak(slug, x, x["pass_kernels_ms"]),
    )
    found.join("fp32", precision="fp32").join("tf32", precision="tf32")
    return found.derive(
        gain=lambda x: x["fp32.step_ms"] / x["step_ms"],
        pass_gain=lambda x: x["fp32.pass_ms"] / x["pass_ms"],
        # Above 1 the pass is slower than in fp32 by more than a standard deviation.
        excess=lambda x: (
            (x["pass_mean"] - x["fp32.pass_mean"])
            / nanmax((x["pass_std"], x["fp32.pass_std"]))
        ),
        **{
            f"{name}_kernel_gain": lambda x, of=f"{name}_kernels_ms": (
                x[f"fp32.{of}"] / x[of]
            )
            for name in COMPARED
        },
    )


def has_gpu_time(record: Record) -> bool:
    """Return whether the record has GPU times, which records of a CPU lack."""
    return any(x.get("forward_gpu_ms", 0) for x in frame(record))


def pass_shape(size: str, context: int, batch: int = BATCH) -> dict[str, int]:
    return {**asdict(SIZES[size]), "context": context, "batch": batch}


def matmul_flops(
    size: str, context: int, batch: int = BATCH, vocab_size: int = VOCAB_SIZE
) -> int:
    """Return the FLOPs of all matmuls of a forward pass."""
    shape = pass_shape(size, context, batch)
    return sum(forward_flops(vocab_size=vocab_size, **shape).values())


def share_of_peak(slug: str, x: Line, ms: float) -> float:
    """Return the model FLOP utilization: the FLOPs of matmuls in all phases that row
    `x` timed, per `ms`, as a share of the peak rate of the GPU `slug`.
    """
    if not x:
        return x.missing
    forward = matmul_flops(x["size"], x["context"], x["batch"], x["vocab"])
    rate = pass_flops(forward, *x.timed_phases) / (ms / 1e3)
    return rate / getattr(peak_rates(slug), x["precision"], MISSING)

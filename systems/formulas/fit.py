"""Predict whether a training step fits in a GPU's memory, and its minimum time. This
needs no torch and no GPU. The guide's calculator does the same for any model shape.

    python -m systems.formulas.fit --size xl --context 4096 --gpu a100-80
    python -m systems.formulas.fit --size 2.7B --attention flash --checkpoint 4
"""

from bisect import bisect
from dataclasses import replace
from typing import Annotated, Literal

from systems import require, run_cli

if __name__ == "__main__":
    require("typer")

import typer

from systems.formulas.costs import BACKWARD_OVER_FORWARD, forward_flops
from systems.formulas.gpus import GPUS, Gpu
from systems.formulas.memory_costs import Pass, check, count_segments, weight_bytes
from systems.formulas.memory_peak import bytes_at_peak
from systems.model.sizes import SIZES

GIB = 2**30
# Upper bound of the search for the largest batch size or context length.
LIMIT = 2**30


# --8<-- [start:fit]
def peak_bytes(p: Pass) -> int:
    """Return the peak memory of a pass in bytes."""
    return sum(bytes_at_peak(p).values())


def find_largest(p: Pass, field: str, room: int) -> int:
    """Return the largest batch or context (`field`) that fits in `room` bytes, or 0."""
    numbers = range(1, LIMIT + 1)
    return bisect(numbers, room, key=lambda n: peak_bytes(replace(p, **{field: n})))


def step_flops(p: Pass) -> int:
    """Return the matmul FLOPs of a training step, including recomputation.

    Flash attention skips the masked half of the scores, and its backward pass
    recomputes one of the forward pass's two matmuls. PyTorch's checkpointing stops
    recomputing at the last saved tensor, so the last matmul of a segment (w2, or
    attention's output projection) is not recomputed. Raise ValueError for other modes.
    """
    check("mode", p.mode, p.mode == "step", "be 'step'")
    parts = forward_flops(
        **vars(p.shape), vocab_size=p.vocab, context=p.context, batch=p.batch
    )
    # Grouped-query attention has smaller projections of k and v.
    shared = 2 * p.shape.d_model * (p.shape.d_model - p.kv_width)
    parts["projections"] -= 2 * p.tokens * p.shape.num_layers * shared
    recomputed = 0
    if p.attention == "flash":
        # A causal mask leaves s (s + 1) / 2 of s² scores.
        parts["attention"] = parts["attention"] * (p.context + 1) // (2 * p.context)
        recomputed = parts["attention"] // 2
    forward = sum(parts.values())
    if p.checkpoint:
        w2 = 2 * p.tokens * p.shape.d_model * p.shape.d_ff
        recomputed += forward - parts["head"] - count_segments(p) * w2
    elif p.recompute_attention:
        recomputed += parts["attention"] // 2
    return (1 + BACKWARD_OVER_FORWARD) * forward + recomputed


def optimizer_moved_bytes(p: Pass) -> int:
    """Return the bytes that an optimizer step moves: it reads parameters, gradients and
    states, and writes parameters and states.
    """
    return (3 + 2 * p.optimizer_states) * weight_bytes(p)


def floor_seconds(p: Pass, gpu: Gpu) -> float:
    """Return a step's minimum time in s: matmuls and optimizer bytes at peak rates."""
    rate = gpu.peak.fp32 if p.precision == "fp32" else gpu.peak.bf16
    return step_flops(p) / rate + optimizer_moved_bytes(p) / gpu.peak.bandwidth
    # --8<-- [end:fit]


def print_report(p: Pass, gpu: Gpu) -> None:
    """Print peak memory by category, largest batch and context, and minimum time."""
    room = gpu.free_bytes
    for name, count in bytes_at_peak(p).items():
        print(f"{count / GIB:10,.2f} GiB  {name}")
    fits = "fits" if peak_bytes(p) <= room else "does not fit"
    print(f"{peak_bytes(p) / GIB:10,.2f} GiB at the peak of a step")
    print(f"{room / GIB:10,.2f} GiB free on {gpu.name}: {fits}\n")
    batch, context = (find_largest(p, x, room) for x in ("batch", "context"))
    print(f"largest batch {batch:,}, or longest context {context:,}")
    seconds = floor_seconds(p, gpu)
    print(
        f"\n{step_flops(p) / 1e12:,.2f} TFLOP a step. At the data sheet's rates it "
        f"takes {seconds * 1e3:,.1f} ms, {p.tokens / seconds:,.0f} tokens/s; real "
        "steps are slower."
    )


Positive = Annotated[int, typer.Option(min=1, max=LIMIT)]


def print_fit(
    size: Annotated[str, typer.Option(help=f"One of {', '.join(SIZES)}.")] = "xl",
    context: Positive = 512,
    batch: Positive = 4,
    gpu: Annotated[str, typer.Option(help=f"One of {', '.join(GPUS)}.")] = "a100-80",
    precision: Annotated[
        Literal["fp32", "bf16", "pure_bf16"],
        typer.Option(help="bf16 is autocast; pure_bf16 has no fp32 weights."),
    ] = "fp32",
    attention: Annotated[
        Literal["eager", "flash"],
        typer.Option(help="eager keeps the scores, flash does not."),
    ] = "eager",
    checkpoint: Annotated[
        int, typer.Option(min=0, help="Blocks that are recomputed together.")
    ] = 0,
) -> None:
    if gpu not in GPUS:
        raise typer.BadParameter(f"--gpu takes {', '.join(GPUS)}, not {gpu}")
    device, fields = GPUS[gpu], (size, context, "step", precision, attention)
    workspace = device.workspace_bytes
    try:
        p = Pass(*fields, checkpoint, batch=batch, workspace_bytes=workspace)
    except ValueError as error:
        raise typer.BadParameter(f"--{error}") from None
    print_report(p, device)


if __name__ == "__main__":
    run_cli(print_fit, __doc__)

"""Will it fit, and how fast at best? Answers by formula for a model, a GPU and a batch;
needs no torch and no GPU.

    python -m systems.formulas.fit --size xl --context 4096 --gpu a100-80
    python -m systems.formulas.fit --size 2.7B --attention flash --checkpoint 4
    python -m systems.formulas.fit --d-model 2048 --d-ff 5632 --layers 22 --heads 32
"""

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

from systems import need, run_as_command

if __name__ == "__main__":
    need("typer", "rich")

import typer
from rich.console import Console
from rich.table import Table

from systems.formulas.costs import BACKWARD_OVER_FORWARD, forward_flops
from systems.formulas.gpus import GPUS, Gpu
from systems.formulas.memory_costs import Pass, count_segments, weight_bytes
from systems.formulas.memory_peak import peak
from systems.model.sizes import SIZES, VOCAB_SIZE, ModelSize

GIB = 2**30
# Upper end of the search for the largest batch or context, beyond any GPU's memory.
LIMIT = 2**30


# --8<-- [start:fit]
def peak_bytes(p: Pass) -> int:
    """Return the peak memory of a pass in bytes."""
    return sum(peak(p).values())


def find_largest(p: Pass, field: str, room: int) -> int:
    """Return the largest `batch` or `context` for which the pass needs at most `room`
    bytes, 0 if even 1 needs more.
    """
    low, high = 0, LIMIT
    while low < high:
        middle = (low + high + 1) // 2
        if peak_bytes(replace(p, **{field: middle})) <= room:
            low = middle
        else:
            high = middle - 1
    return low


def remedies(p: Pass) -> dict[str, Pass]:
    """Return variants of this pass that need less memory: single changes, and the
    strongest combination.
    """
    half = max(1, round(p.shape.num_layers**0.5))
    options = {
        "bf16 autocast": replace(p, precision="bf16"),
        "flash attention": replace(p, attention="flash", recompute_attention=False),
        "attention computed again": replace(p, recompute_attention=True, checkpoint=0),
        "every block computed again": replace(p, checkpoint=1),
        f"runs of {half} blocks computed again": replace(p, checkpoint=half),
        "flash, bf16, every block again": replace(
            p, precision="bf16", attention="flash", checkpoint=1
        ),
    }
    if p.attention == "flash":
        del options["attention computed again"]
    before = peak_bytes(p)
    return {n: remedy for n, remedy in options.items() if peak_bytes(remedy) < before}


def step_flops(p: Pass) -> int:
    """Return the matmul FLOPs of a training step, recomputation included.

    Flash attention skips the masked half of the scores, and its backward pass
    recomputes one of the forward pass's two matmuls. PyTorch's checkpointing stops
    recomputing at the last saved tensor, so the last matmul of a segment (w2, or
    attention's output projection) is not recomputed.
    """
    parts = forward_flops(
        **vars(p.shape), vocab_size=p.vocab, context=p.context, batch=p.batch
    )
    recomputed = 0
    if p.attention == "flash":
        # Under a causal mask s (s + 1) / 2 of s² scores are visible.
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
    """Return the bytes that an optimizer step moves: it reads the parameter, its
    gradient and each state, and writes all but the gradient.
    """
    return (3 + 2 * p.optimizer_states) * weight_bytes(p)


def floor_seconds(p: Pass, gpu: Gpu) -> float:
    """Return a lower bound on the time of a step in seconds: its matmuls at the data
    sheet's peak rate, then the optimizer's memory traffic at peak bandwidth.
    """
    rate = gpu.peak.fp32 if p.precision == "fp32" else gpu.peak.bf16
    return step_flops(p) / rate + optimizer_moved_bytes(p) / gpu.peak.bandwidth


# --8<-- [end:fit]


def check_pass(p: Pass) -> Pass:
    """Return the pass unchanged. `ValueError` if its shape is invalid."""
    shape = p.shape
    numbers = {
        "--context": p.context,
        "--batch": p.batch,
        "--vocab": p.vocab,
        "--d-model": shape.d_model,
        "--d-ff": shape.d_ff,
        "--layers": shape.num_layers,
        "--heads": shape.num_heads,
    }
    for name, value in numbers.items():
        if not 0 < value <= LIMIT:
            raise ValueError(f"{name} must be from 1 to {LIMIT:,}, not {value:,}")
    if shape.d_model % (2 * shape.num_heads):
        raise ValueError(
            f"--d-model {shape.d_model} must split into --heads {shape.num_heads} "
            "heads of even width"
        )
    if not 0 <= p.checkpoint <= shape.num_layers:
        raise ValueError(
            f"--checkpoint takes none, attention, or blocks from 1 to "
            f"{shape.num_layers}, not {p.checkpoint}"
        )
    return p


def format_gib(count: float) -> str:
    return f"{count / GIB:,.2f}"


def print_report(p: Pass, gpu: Gpu, console: Console) -> None:
    """Print the peak memory of a pass by category, what fits, and what reduces it."""
    need, room = peak_bytes(p), gpu.free_bytes
    table = Table("at the peak of a step", "GiB", title=f"on {gpu.name}")
    table.columns[1].justify = "right"
    for name, count in peak(p).items():
        if count:
            table.add_row(name, format_gib(count))
    table.add_section()
    table.add_row("all", format_gib(need), style="bold")
    table.add_row("there is room for", format_gib(room))
    console.print(table)
    console.print(
        f"fits, {format_gib(room - need)} GiB stay free"
        if need <= room
        else f"does not fit: {format_gib(need - room)} GiB too much",
        style="bold green" if need <= room else "bold red",
    )
    console.print(
        f"largest batch at context {p.context:,}: {find_largest(p, 'batch', room):,}; "
        f"longest context at batch {p.batch:,}: {find_largest(p, 'context', room):,}"
    )
    table = Table("with", "GiB at the peak", "largest batch", "longest context")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, remedy in remedies(p).items():
        most = [
            f"{find_largest(remedy, field, room):,}" for field in ("batch", "context")
        ]
        table.add_row(name, format_gib(peak_bytes(remedy)), *most)
    console.print(table)
    seconds = floor_seconds(p, gpu)
    console.print(
        f"{step_flops(p) / 1e12:,.2f} TFLOP a step; at the data sheet's rates "
        f"{seconds * 1e3:,.1f} ms, {p.tokens / seconds:,.0f} tokens/s. No step is "
        "faster; how far from it steps are is measured in the guide."
    )


def look_up(values: Mapping[str, Any], option: str, name: str) -> Any:
    """Return the value of this name. `ValueError` lists the names that exist."""
    if name not in values:
        raise ValueError(f"{option} takes {', '.join(values)}, not {name!r}")
    return values[name]


def command(
    size: Annotated[
        str, typer.Option(help=f"Model of Table 1: {', '.join(SIZES)}.")
    ] = "xl",
    context: Annotated[int, typer.Option(help="Tokens of a sequence.")] = 512,
    batch: Annotated[int, typer.Option(help="Sequences of a batch.")] = 4,
    gpu: Annotated[
        str, typer.Option(help=f"Which GPU: {', '.join(GPUS)}.")
    ] = "a100-80",
    precision: Annotated[
        Literal["fp32", "bf16", "pure_bf16"],
        typer.Option(help="bf16 is autocast; pure_bf16 has no fp32 weights."),
    ] = "fp32",
    attention: Annotated[
        Literal["eager", "flash"],
        typer.Option(help="eager keeps the scores, flash does not."),
    ] = "eager",
    checkpoint: Annotated[
        str,
        typer.Option(help="none, attention, or how many blocks a run has."),
    ] = "none",
    d_model: Annotated[
        int | None, typer.Option(help="Width, instead of the size's.")
    ] = None,
    d_ff: Annotated[int | None, typer.Option(help="Feed-forward width.")] = None,
    layers: Annotated[int | None, typer.Option(help="Blocks.")] = None,
    heads: Annotated[int | None, typer.Option(help="Heads of attention.")] = None,
    vocab: Annotated[int, typer.Option(help="Entries of the vocabulary.")] = VOCAB_SIZE,
) -> None:
    try:
        named_shape, device = (
            look_up(SIZES, "--size", size),
            look_up(GPUS, "--gpu", gpu),
        )
        if checkpoint not in ("none", "attention") and not checkpoint.isdecimal():
            raise ValueError(
                f"--checkpoint takes none, attention or blocks, not {checkpoint!r}"
            )
        shape = ModelSize(
            named_shape.d_model if d_model is None else d_model,
            named_shape.d_ff if d_ff is None else d_ff,
            named_shape.num_layers if layers is None else layers,
            named_shape.num_heads if heads is None else heads,
        )
        p = Pass(
            shape,
            context,
            "step",
            precision,
            attention,
            int(checkpoint) if checkpoint.isdecimal() else 0,
            checkpoint == "attention",
            batch,
            vocab,
            workspace_bytes=device.workspace_bytes,
        )
        print_report(check_pass(p), device, Console())
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


if __name__ == "__main__":
    assert __doc__
    run_as_command(command, __doc__)

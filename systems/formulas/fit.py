"""Will it fit, and how fast at best? A model, a GPU and a batch, by formula: no torch,
no GPU.

    python -m systems.formulas.fit --size xl --context 4096 --gpu a100-80
    python -m systems.formulas.fit --size 2.7B --attention flash --checkpoint 4
    python -m systems.formulas.fit --d-model 2048 --d-ff 5632 --layers 22 --heads 32 --vocab 32000
"""

import sys
from dataclasses import replace
from enum import Enum
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from systems.formulas.costs import BACKWARD_OVER_FORWARD, forward_flops
from systems.formulas.gpus import GPUS, Gpu
from systems.formulas.memory_costs import Pass
from systems.formulas.memory_peak import peak
from systems.model.sizes import SIZES, VOCAB_SIZE, ModelSize

GIB = 2**30
# Far above what any GPU holds: where the search for the largest batch or context ends.
LIMIT = 2**30


# --8<-- [start:fit]
def peak_bytes(p: Pass) -> int:
    """All that a pass needs at its peak."""
    return sum(peak(p).values())


def largest(p: Pass, field: str, room: int) -> int:
    """The largest `batch` or `context` with which this pass needs at most `room` bytes;
    0 where even 1 needs more.
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
    """What one may change to need less, each by itself and the strongest together."""
    half = max(1, round(p.shape.num_layers**0.5))
    found = {
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
        del found["attention computed again"]
    return {name: remedy for name, remedy in found.items() if remedy != p}


def step_flops(p: Pass) -> int:
    """Matrix FLOPs of a training step, those of what is computed again included."""
    parts = forward_flops(
        **vars(p.shape), vocab_size=p.vocab, context=p.context, batch=p.batch
    )
    forward = sum(parts.values())
    again = 0
    if p.checkpoint:
        again = forward - parts["head"]
    elif p.recompute_attention:
        again = parts["attention"]
    return (1 + BACKWARD_OVER_FORWARD) * forward + again


def floor_seconds(p: Pass, gpu: Gpu) -> float:
    """Below this no step can be: its products at the data sheet's rate."""
    rate = gpu.peak.fp32 if p.precision == "fp32" else gpu.peak.bf16
    return step_flops(p) / rate


# --8<-- [end:fit]


def checked(p: Pass) -> Pass:
    """The same pass. `ValueError` for one that no model can run."""
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
            f"--d-model {shape.d_model} must split into --heads {shape.num_heads} heads of even width"
        )
    if not 0 <= p.checkpoint <= shape.num_layers:
        raise ValueError(
            f"--checkpoint takes none, attention, or blocks from 1 to {shape.num_layers}, not {p.checkpoint}"
        )
    return p


def gib(count: float) -> str:
    return f"{count / GIB:,.2f}"


def show(p: Pass, gpu: Gpu, console: Console) -> None:
    """Print what the pass holds at its peak, what fits, and what helps."""
    need, room = peak_bytes(p), gpu.free_bytes
    table = Table("at the peak of a step", "GiB", title=f"on {gpu.name}")
    table.columns[1].justify = "right"
    for name, count in peak(p).items():
        if count:
            table.add_row(name, gib(count))
    table.add_section()
    table.add_row("all", gib(need), style="bold")
    table.add_row("there is room for", gib(room))
    console.print(table)
    console.print(
        f"fits, {gib(room - need)} GiB stay free"
        if need <= room
        else f"does not fit: {gib(need - room)} GiB too much",
        style="bold green" if need <= room else "bold red",
    )
    console.print(
        f"largest batch at context {p.context:,}: {largest(p, 'batch', room):,}; "
        f"longest context at batch {p.batch:,}: {largest(p, 'context', room):,}"
    )
    table = Table("with", "GiB at the peak", "largest batch", "longest context")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, remedy in remedies(p).items():
        most = [f"{largest(remedy, field, room):,}" for field in ("batch", "context")]
        table.add_row(name, gib(peak_bytes(remedy)), *most)
    console.print(table)
    seconds = floor_seconds(p, gpu)
    console.print(
        f"{step_flops(p) / 1e12:,.2f} TFLOP a step; at the data sheet's rate {seconds * 1e3:,.1f} ms, "
        f"{p.tokens / seconds:,.0f} tokens/s. No step is faster; how far from it steps are is measured in the guide."
    )


def names(title: str, values: dict) -> type[Enum]:
    """An option that takes these names alone."""
    return Enum(title, {value: value for value in values}, type=str)


Sizes, Gpus = names("Sizes", SIZES), names("Gpus", GPUS)
Precisions = names("Precisions", dict.fromkeys(("fp32", "bf16", "pure_bf16")))
Attentions = names("Attentions", dict.fromkeys(("eager", "flash")))


def command(
    size: Annotated[Sizes, typer.Option(help="Model of Table 1.")] = Sizes["xl"],
    context: Annotated[int, typer.Option(help="Tokens of a sequence.")] = 512,
    batch: Annotated[int, typer.Option(help="Sequences of a batch.")] = 4,
    gpu: Annotated[Gpus, typer.Option(help="Which GPU.")] = Gpus["a100-80"],
    precision: Annotated[
        Precisions,
        typer.Option(help="bf16 is autocast; pure_bf16 has no fp32 weights."),
    ] = Precisions["fp32"],
    attention: Annotated[
        Attentions, typer.Option(help="eager keeps the scores, flash does not.")
    ] = Attentions["eager"],
    checkpoint: Annotated[
        str,
        typer.Option(help="none, attention, or how many blocks are computed again."),
    ] = "none",
    d_model: Annotated[
        int | None, typer.Option(help="Width, instead of the size's.")
    ] = None,
    d_ff: Annotated[int | None, typer.Option(help="Feed-forward width.")] = None,
    layers: Annotated[int | None, typer.Option(help="Blocks.")] = None,
    heads: Annotated[int | None, typer.Option(help="Heads of attention.")] = None,
    vocab: Annotated[int, typer.Option(help="Entries of the vocabulary.")] = VOCAB_SIZE,
) -> None:
    base = SIZES[size.value]
    shape = ModelSize(
        d_model or base.d_model,
        d_ff or base.d_ff,
        layers or base.num_layers,
        heads or base.num_heads,
    )
    try:
        if checkpoint not in ("none", "attention") and not checkpoint.isdecimal():
            raise ValueError(
                f"--checkpoint takes none, attention or a number of blocks, not {checkpoint!r}"
            )
        p = Pass(
            shape,
            context,
            "step",
            precision.value,
            attention.value,
            int(checkpoint) if checkpoint.isdecimal() else 0,
            checkpoint == "attention",
            batch,
            vocab,
            GPUS[gpu.value].workspace_bytes,
        )
        show(checked(p), GPUS[gpu.value], Console())
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from None


if __name__ == "__main__":
    assert __doc__
    # Examples are lines of their own.
    command.__doc__ = __doc__.replace("\n\n    python", "\n\n\b\n    python")
    app = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    app.command()(command)
    app()

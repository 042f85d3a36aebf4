"""Search launch configurations of the Triton flash-attention kernels on this GPU, and
print the entries of the table.

Every candidate first computes a small case, whose result is compared with plain
attention in float64; many processes compile at once. Those that are right are timed one
after another at the given size, and the fastest is printed as a line of `CONFIGS` in
systems/attention/triton/configs.py: of what runs under a causal mask, or with --full
without one. Nothing is changed by itself, and nothing is tuned at run time. With few
rows they are entries of `FEW_ROWS`.

    python tools/tune_flash.py --arithmetic half --d 64 --d 128
    python tools/tune_flash.py --d 64 --heads 128 --full
    python tools/tune_flash.py --d 128 --heads 1 --n 1024

With --compile-only nothing is searched: what the table has for a GPU that need not be
here is compiled for it, and what each kernel needs is printed. The exit code is 2 where
one does not compile or needs more than there is.

    python tools/tune_flash.py --compile-only --gpu a100 --arithmetic half --d 64
"""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import triton
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from triton import knobs

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from systems.attention.reference import attention_reference
from systems.attention.triton.configs import Config
from systems.attention.triton.launches import launch_backward, launch_forward
from systems.benchmarking.timing import default_device
from systems.benchmarking.workload import random_inputs
from systems.precision.dtypes import relative_error
from tools.compile_ahead import DTYPES, GPUS, KIB, compile_for

KERNELS = ("forward", "dkdv", "dq")
# What a candidate may err, relative to the norm of the exact result: far more than
# rounding, far less than a mistake.
TOLERANCE = {"half": 2e-2, "high": 1e-4, "highest": 1e-5}
# Accumulators in registers of one thread, of 255 in all: more would spill, fewer leave
# the matrix units idle.
MOST_ACCUMULATORS, LEAST_ACCUMULATORS = 200, 12
# Limits of a thread's registers with which a third and a fourth program of four warps
# fit on a multiprocessor, and what a thread needs beside its accumulators.
LIMITS, BESIDE = (168, 128), 40
SMALL = 512


@dataclass(frozen=True)
class Candidate:
    """One kernel with one launch configuration."""

    kernel: str
    arithmetic: str
    d: int
    config: Config


def candidates(kernel: str, arithmetic: str, d: int) -> list[Candidate]:
    """Tiles whose accumulators fit into the registers."""
    rows = (32, 64, 128, 256) if arithmetic == "half" else (16, 32, 64, 128)
    columns = (32, 64, 128) if arithmetic == "half" else (16, 32, 64)
    stages = (2, 3, 4) if arithmetic == "half" else (1, 2, 3)
    # dk and dv are held for a tile of keys, o or dq for one of queries: that side is
    # the longer one, unless rows are few.
    sides = [(b, a) if kernel == "dkdv" else (a, b) for a, b in product(rows, columns)]
    found = []
    for (q, k), warps, depth in product(sides, (4, 8), stages):
        held = 2 * k * d if kernel == "dkdv" else q * d
        accumulators = (held + (1 if kernel == "forward" else 2) * q * k) / (32 * warps)
        if LEAST_ACCUMULATORS <= accumulators <= MOST_ACCUMULATORS:
            # Products in pieces need so many registers that a limit only makes them
            # spill.
            limits = (
                [limit for limit in LIMITS if accumulators + BESIDE <= limit]
                if arithmetic == "half"
                else []
            )
            cuts = (False,) if arithmetic == "half" else (False, True)
            configs = [
                Config(q, k, warps, depth, registers, ahead)
                for registers in (None, *limits)
                for ahead in cuts
            ]
            found += [Candidate(kernel, arithmetic, d, config) for config in configs]
    return found


def inputs(heads: int, n: int, candidate: Candidate) -> list[torch.Tensor]:
    """Normal q, k, v, do: (1, heads, n, d)."""
    shape, dtype = (1, heads, n, candidate.d), DTYPES[candidate.arithmetic]
    return [x.detach() for x in random_inputs(shape, dtype, default_device())]


def prepare(
    candidate: Candidate, heads: int, n: int, causal: bool
) -> Callable[[], tuple[torch.Tensor, ...]]:
    """A call that launches the kernel with its tile (and, of a backward pass, the
    others with their own).
    """
    torch.set_float32_matmul_precision(
        "high" if candidate.arithmetic == "high" else "highest"
    )
    q, k, v, do = inputs(heads, n, candidate)
    scale, config = candidate.d**-0.5, candidate.config
    if candidate.kernel == "forward":
        return lambda: launch_forward(q, k, v, causal, scale, config)[:1]
    o, lse = launch_forward(q, k, v, causal, scale)
    options: Any = {f"{candidate.kernel}_config": config}
    return lambda: launch_backward(do, q, k, v, o, lse, causal, scale, **options)


def verdict(candidate: Candidate, causal: bool) -> str:
    """What is wrong with a candidate, or nothing. Runs in another process, which leaves
    the kernel in the cache.
    """
    try:
        found = prepare(candidate, 1, SMALL, causal)()
        q, k, v, do = (x.double() for x in inputs(1, SMALL, candidate))
        for leaf in (q, k, v):
            leaf.requires_grad_()
        o, _ = attention_reference(q, k, v, causal)
        exact = (
            (o,)
            if candidate.kernel == "forward"
            else torch.autograd.grad(o, (q, k, v), do)
        )
        errors = [relative_error(*pair) for pair in zip(found, exact, strict=True)]
    except Exception as error:
        # A tile that does not fit is an answer; the message of the compiler's error is
        # long.
        return f"{type(error).__name__}: {error}".splitlines()[0][:100]
    return (
        ""
        if max(errors) <= TOLERANCE[candidate.arithmetic]
        else f"wrong: relative error {max(errors):.1e}"
    )


def milliseconds(call: Callable[[], object]) -> float:
    """Median time of a launch."""
    from triton.testing import do_bench

    times = do_bench(call, warmup=5, rep=25, return_mode="all")
    assert isinstance(times, list)
    return median(times)


def main(
    arithmetic: Annotated[
        list[str], typer.Option(help="half, high or highest; may be repeated.")
    ] = ["half"],  # noqa: B006
    d: Annotated[
        list[int],
        typer.Option(help="Head dimension: 16, 32, 64, 128 or 256; may be repeated."),
    ] = [64],  # noqa: B006
    kernel: Annotated[
        list[str], typer.Option(help="forward, dkdv or dq; may be repeated.")
    ] = list(KERNELS),  # noqa: B006
    heads: Annotated[int, typer.Option(help="Heads of the timed case.")] = 16,
    n: Annotated[int, typer.Option(help="Length of the timed case.")] = 4096,
    full: Annotated[
        bool, typer.Option("--full", help="Without a causal mask.")
    ] = False,
    show: Annotated[int, typer.Option(help="How many of the fastest to list.")] = 3,
    compile_only: Annotated[
        bool, typer.Option("--compile-only", help="Compile the table's, for --gpu.")
    ] = False,
    gpu: Annotated[str, typer.Option(help=f"{', '.join(GPUS)}.")] = "a100",
) -> None:
    """Search launch configurations on this GPU and print the fastest as lines of
    CONFIGS.
    """
    wrong = [x for x in arithmetic if x not in DTYPES] + [
        x for x in kernel if x not in KERNELS
    ]
    if wrong:
        raise typer.BadParameter(
            f"{wrong[0]} is none of {', '.join((*DTYPES, *KERNELS))}"
        )
    if compile_only:
        if gpu not in GPUS:
            raise typer.BadParameter(f"{gpu} is none of {', '.join(GPUS)}")
        raise typer.Exit(print_needs(gpu, arithmetic, d, causal=not full))
    if not torch.cuda.is_available():
        print(
            "error: tiles are searched on a GPU, and torch sees none here",
            file=sys.stderr,
        )
        raise typer.Exit(2)
    console, causal = Console(), not full
    searches = {
        (a, x, k): candidates(k, a, x) for a, x, k in product(arithmetic, d, kernel)
    }
    everything = [candidate for found in searches.values() for candidate in found]
    with (
        Progress(console=console) as progress,
        ProcessPoolExecutor(os.cpu_count(), get_context("spawn")) as pool,
    ):
        checking = progress.add_task("compile and check", total=len(everything))
        verdicts = {}
        for candidate, said in zip(
            everything,
            pool.map(verdict, everything, [causal] * len(everything)),
            strict=True,
        ):
            verdicts[candidate] = said
            progress.advance(checking)
        timing = progress.add_task(
            "time", total=sum(not said for said in verdicts.values())
        )
        for (kind, head, name), found in searches.items():
            times = []
            for candidate in found:
                if not verdicts[candidate]:
                    times.append(
                        (
                            milliseconds(prepare(candidate, heads, n, causal)),
                            candidate.config,
                        )
                    )
                    progress.advance(timing)
            refused = [
                verdicts[candidate] for candidate in found if verdicts[candidate]
            ]
            report(
                console,
                f"{kind} {name} d={head}: {len(times)} right, {len(refused)} refused",
                times,
                show,
            )
            for said in sorted({said for said in refused if said.startswith("wrong")}):
                console.print(said, style="red")


def print_needs(gpu: str, arithmetic: list[str], d: list[int], causal: bool) -> int:
    """The exit code, after a table of what the kernels need of this GPU."""
    if knobs.runtime.interpret:
        print("error: the interpreter compiles nothing: unset TRITON_INTERPRET")
        return 2
    columns = (
        "kernel",
        "tile",
        "warps",
        "shared KiB",
        "registers",
        "stack B",
        "per score",
        "per SM",
    )
    table, faults = Table("arithmetic", "d", *columns), []
    for kind, head in product(arithmetic, d):
        for found in compile_for(GPUS[gpu], kind, head, causal):
            if isinstance(found, str):
                faults.append(f"{kind} d={head}: {found}")
                continue
            for needs in found:
                name, tile, warps, shared, *threads = needs
                row = (kind, head, name, tile, warps, f"{shared / KIB:.1f}", *threads)
                table.add_row(*map(str, (*row, needs.programs(GPUS[gpu]))))
                if shared > GPUS[gpu].block_bytes:
                    faults.append(
                        f"{kind} d={head}: {name} needs {shared} bytes of shared "
                        f"memory, a block has {GPUS[gpu].block_bytes}"
                    )
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(f"Triton {triton.__version__}, {gpu}", style="bold")
    console.print(table)
    for fault in faults:
        print(f"error: {fault}")
    return 2 if faults else 0


def entry(config: Config) -> str:
    """As it stands in the table."""
    limit = f", registers={config.registers}" if config.registers else ""
    ahead = ", ahead=True" if config.ahead else ""
    c = config
    return f"Config({c.q}, {c.k}, {c.warps}, {c.stages}{limit}{ahead})"


def report(
    console: Console, title: str, times: list[tuple[float, Config]], show: int
) -> None:
    """The fastest tiles, ready to be put into the table."""
    console.print(title, style="bold")
    table = Table("ms", "entry")
    for time_ms, config in sorted(times, key=itemgetter(0))[:show]:
        table.add_row(f"{time_ms:.4f}", entry(config))
    console.print(table)


if __name__ == "__main__":
    app = typer.Typer(
        add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False
    )
    app.command()(main)
    app()

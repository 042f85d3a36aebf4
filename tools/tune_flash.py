"""Time launch configurations of the plain flash-attention kernels on this GPU, and
write down the fastest for the package to read.

    python tools/tune_flash.py

takes less than 20 minutes; stopped, it goes on where it was. For each arithmetic, head
dimension, kernel and mask it tries our configuration, those of all other GPUs and what
lies next to ours. Each first computes a small case, whose result is compared with plain
attention in float64; many processes compile at once. Those that are right are timed one
after another: the forward pass by its kernel; a configuration of dq, or of dk and dv,
by the whole backward pass, in which the other kernel keeps its own. What is found is
written to systems/attention/triton/tuned/, in a file named after the GPU, with the
versions that it holds for: from then on the kernels run with it, until they or Triton
change, and records hold its digest. Nothing is tuned while they run.

    python tools/tune_flash.py --arithmetic half --d 64 --d 128
    python tools/tune_flash.py --everything --d 64      all tiles that fit, for hours
    python tools/tune_flash.py --heads 1 --n 1024       few rows: only printed
"""

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from itertools import groupby, product
from multiprocessing import active_children, get_context
from operator import itemgetter
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from systems import need, run_as_command

if __name__ == "__main__":
    need("torch", "triton", "fcntl", "typer", "rich", "msgspec")

import msgspec
import torch
import triton
import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from triton.errors import TritonError

from systems.attention.triton import tuned
from systems.attention.triton.chooser import architecture
from systems.attention.triton.configs import Config
from systems.attention.triton.tuned import (
    HEAD_DIMS,
    KERNELS,
    Entry,
    Tuned,
    TunedError,
)
from systems.records.device import Device, find_gpu
from systems.running.precompile import MOST_PROCESSES, cores, end_with
from tools.compile_ahead import DTYPES, need_compiler
from tools.rendering import stop
from tools.tuning import (
    Candidate,
    Search,
    candidates,
    milliseconds,
    prepare,
    shortlist,
    verdict,
)

# What is timed for the table of many rows.
HEADS, N = 16, 4096
# Nearer than this two configurations are as fast, and ours stays.
TIE = 0.99
Check = Callable[[list[Candidate]], Iterable[str]]


def main(
    arithmetic: Annotated[
        list[str], typer.Option(help="half, high or highest; may be repeated.")
    ] = list(DTYPES),  # noqa: B006
    d: Annotated[
        list[int],
        typer.Option(help="Head dimension: 16, 32, 64, 128 or 256; may be repeated."),
    ] = list(HEAD_DIMS),  # noqa: B006
    kernel: Annotated[
        list[str], typer.Option(help="forward, dkdv or dq; may be repeated.")
    ] = list(KERNELS),  # noqa: B006
    heads: Annotated[int, typer.Option(help="Heads of the timed case.")] = HEADS,
    n: Annotated[int, typer.Option(help="Length of the timed case.")] = N,
    everything: Annotated[
        bool, typer.Option("--everything", help="Try all tiles that fit.")
    ] = False,
    minutes: Annotated[float, typer.Option(help="Stop after so many.")] = 20,
    force: Annotated[
        bool, typer.Option("--force", help="Begin anew, also where a file is.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Write there, where nobody reads it.")
    ] = None,
) -> None:
    """Time launch configurations on this GPU and write the fastest down."""
    for option, value, known in (
        *(("--arithmetic", x, tuple(DTYPES)) for x in arithmetic),
        *(("--kernel", x, KERNELS) for x in kernel),
        *(("--d", x, HEAD_DIMS) for x in d),
    ):
        if value not in known:
            stop(f"{option} {value}: is none of {', '.join(map(str, known))}")
    for option, number in (("--heads", heads), ("--n", n), ("--minutes", minutes)):
        if not 0 < number < math.inf:
            stop(f"{option} must be above 0, not {number}")
    device = find_gpu()
    if device is None or not torch.cuda.is_available():
        stop("configurations are timed on a GPU, and torch sees none here")
    need_compiler()
    searches = [
        Search(a, x, size, causal)
        for a, size, x, causal in product(arithmetic, d, kernel, (True, False))
    ]
    console, path = Console(), out or tuned.path_of(device.slug)
    if (heads, n) != (HEADS, N) and out is None:
        path = None
    try:
        found = begin(path, device, force, (heads, n))
        if path and not found.entries and holds_entries(path):
            kept = path.with_name(f"{path.name}.bak")
            path.replace(kept)
            console.print(f"begins anew; what was timed before is kept: {kept}")
        if path:
            # Where nothing can be written, nothing is timed.
            tuned.write(found, path)
    except TunedError as error:
        stop(str(error))
    except OSError as error:
        stop(f"can't write {path}: {error.strerror}; give --out FILE")
    name = architecture(torch.cuda.get_device_capability())
    deadline = time.monotonic() + 60 * minutes

    def configs(search: Search) -> list[Config]:
        short = shortlist(search, name)
        all_of = candidates(search.kernel, search.arithmetic, search.d)
        more = [c.config for c in all_of] if everything else []
        return list(dict.fromkeys([*short, *more]))

    # Each holds a context on the GPU.
    processes = min(MOST_PROCESSES, cores())
    done, trouble = False, ""
    goes_on = "; the same command goes on" if path else ""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ProcessPoolExecutor(
        processes, get_context("spawn"), end_with, (os.getpid(),)
    ) as pool:
        try:
            with without_interrupts():
                # All are started here: one is started where none is idle.
                for _ in range(processes):
                    pool.submit(os.getpid)
            done = tune(
                found, path, searches, configs,
                check=partial(verdicts, pool),
                timed=lambda c: milliseconds(prepare(c, heads, n)),
                deadline=deadline, console=console,
            )  # fmt: skip
        except BrokenProcessPool:
            trouble = (
                "a process that compiles was killed, as where memory runs out; with "
                f"`taskset -c 0-3` in front only 4 compile at once{goes_on}"
            )
        except torch.OutOfMemoryError:
            trouble = f"{heads} heads of {n} rows do not fit on this GPU: give fewer"
        except (RuntimeError, TritonError) as error:
            said = (str(error) or type(error).__name__).splitlines()[0]
            trouble = f"a candidate can't be timed: {said}{goes_on}"
        except OSError as error:
            where = f" ({error.filename})" if error.filename else ""
            trouble = f"{error.strerror}{where}{goes_on}"
        except KeyboardInterrupt:
            trouble = f"stopped{goes_on}"
            with without_interrupts():
                for child in active_children():
                    child.terminate()
                pool.shutdown()
    report(console, found, searches)
    if path and holds_entries(path):
        console.print(f"written: {path}", soft_wrap=True)
    if trouble:
        stop(trouble)
    if not done:
        console.print(f"out of time{goes_on}")


@contextmanager
def without_interrupts() -> Iterator[None]:
    """Ignores Ctrl-C, which a terminal sends to all processes; those that are started
    meanwhile ignore it for good.
    """
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def verdicts(pool: Executor, these: list[Candidate]) -> Iterable[str]:
    """What is wrong with each, as it becomes known.

    Not by `map`, which cancels what is left where it is interrupted: a pool whose
    processes end with cancelled work among theirs leaves some of them running.
    """
    work = [pool.submit(verdict, candidate) for candidate in these]
    return (each.result() for each in work)


def begin(
    path: Path | None, device: Device, force: bool, shape: tuple[int, int]
) -> Tuned:
    """What was found here before by the same code and versions, to go on with; or
    nothing yet.
    """
    new = Tuned(
        gpu=device.name,
        capability=device.capability or "",
        software={
            "torch": str(torch.__version__),
            "triton": triton.__version__,
            "driver": device.driver or "",
        },
        source_hash=tuned.kernels_hash(),
        measured_utc=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        command="python tools/tune_flash.py",
        shape=shape,
        entries=[],
    )
    if path is None or force:
        return new
    try:
        old = tuned.read(path)
    except FileNotFoundError:
        return new
    same = ("gpu", "software", "source_hash", "shape")
    return old if all(getattr(old, x) == getattr(new, x) for x in same) else new


def holds_entries(path: Path) -> bool:
    """Whether a file has what took its owner time: a start that was stopped early wrote
    one without any.
    """
    try:
        return bool(tuned.read(path).entries)
    except FileNotFoundError:
        return False
    except TunedError:
        # Of other code or cut short: who knows.
        return True


def tune(
    found: Tuned,
    path: Path | None,
    searches: list[Search],
    configs: Callable[[Search], list[Config]],
    check: Check,
    timed: Callable[[Candidate], float],
    deadline: float,
    console: Console,
) -> bool:
    """Add an entry for each search that has none, and write it at once. Ours is the
    first of `configs`. Returns whether time was enough.
    """
    there = {entry.key for entry in found.entries}
    todo = [search for search in searches if search.key not in there]
    columns = (
        TextColumn("{task.description:>24}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(
            "", total=len(searches), completed=len(searches) - len(todo)
        )
        for (kind, d), group in groupby(todo, lambda s: (s.arithmetic, s.d)):
            if time.monotonic() >= deadline:
                return False
            progress.update(task, description=f"{kind} d={d}: compile, check")
            tried = {
                s: [Candidate(s.kernel, kind, d, c, s.causal) for c in configs(s)]
                for s in group
            }
            every = [candidate for these in tried.values() for candidate in these]
            said = dict(zip(every, check(every), strict=True))
            for candidate, fault in said.items():
                if fault.startswith("wrong"):
                    console.print(f"{candidate}: {fault}", style="red")
            for search, these in tried.items():
                if time.monotonic() >= deadline:
                    return False
                progress.update(task, description=f"{kind} d={d}: {search.kernel}")
                times = {c.config: timed(c) for c in these if not said[c]}
                if times:
                    found.entries.append(fastest(search, these[0].config, times))
                    if path:
                        tuned.write(found, path)
                progress.advance(task)
    return True


def fastest(search: Search, ours: Config, times: dict[Config, float]) -> Entry:
    """The entry of the configuration with which its pass took least; ours, where that
    is a tie.
    """
    best, ms = min(times.items(), key=itemgetter(1))
    if ours in times and ms > TIE * times[ours]:
        best, ms = ours, times[ours]
    found = {
        "arithmetic": search.arithmetic,
        "kernel": search.kernel,
        "d": search.d,
        "causal": search.causal,
        "config": list(best),
        "pass_ms": ms,
        "pass_with_ours_ms": times.get(ours),
        "tried": len(times),
    }
    return msgspec.convert(found, Entry)


def report(console: Console, found: Tuned, searches: list[Search]) -> None:
    """What was found, beside ours. Of dq and of dkdv the times are the whole backward
    pass's.
    """
    wanted = {search.key for search in searches}
    columns = "pass", "with ours, ms", "with it, ms", "entry"
    table = Table("arithmetic", "d", "kernel", "mask", *columns)
    for e in (e for e in found.entries if e.key in wanted):
        ours = f"{e.pass_with_ours_ms:.4f}" if e.pass_with_ours_ms else "wrong"
        mask = "causal" if e.causal else "full"
        timed = "forward" if e.kernel == "forward" else "backward"
        cells = e.arithmetic, str(e.d), e.kernel, mask, timed, ours, f"{e.pass_ms:.4f}"
        table.add_row(*cells, entry(Config(*e.config)))
    console.print(table)


def entry(config: Config) -> str:
    """As it stands in the table."""
    limit = f", registers={config.registers}" if config.registers else ""
    ahead = ", ahead=True" if config.ahead else ""
    anew = f', anew="{config.anew}"' if config.anew else ""
    c = config
    return f"Config({c.q}, {c.k}, {c.warps}, {c.stages}{limit}{ahead}{anew})"


if __name__ == "__main__":
    assert __doc__
    run_as_command(main, __doc__)

"""Time launch configurations of the Triton flash-attention kernels on this GPU, and
write the fastest into a file that the kernels read.

    python tools/tune_flash.py
    python tools/tune_flash.py --arithmetic half --d 64 --d 128

takes less than 20 minutes; started again it goes on where it stopped. For each
arithmetic, head dimension, kernel and mask it tries our configuration, those of all
other GPUs, and what differs from ours in one number. Many processes compile at once and
compare a small case with plain attention in float64. Candidates that are right are
timed one after another: the forward pass by its kernel, a configuration of dq or of
dk and dv by the whole backward pass. The file lies in systems/attention/triton/tuned
and holds until the kernels or Triton change; records keep its digest.
"""

import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from itertools import product
from multiprocessing import active_children, get_context
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from systems import need, run_as_command

if __name__ == "__main__":
    need("torch", "triton", "fcntl", "typer", "rich", "msgspec")

import torch
import triton
import typer
from torch import Tensor
from triton.errors import TritonError

from systems.attention.reference import attention_reference
from systems.attention.triton import tuned
from systems.attention.triton.chooser import architecture, select_by_mask
from systems.attention.triton.configs import Config
from systems.attention.triton.launches import launch_backward, launch_forward
from systems.attention.triton.tables import CONFIGS
from systems.attention.triton.tuned import HEAD_DIMS, KERNELS, Key
from systems.benchmarking.timing import default_device
from systems.benchmarking.workload import random_inputs
from systems.precision.dtypes import relative_error
from systems.records.device import Device, find_gpu
from systems.records.files import write_whole
from systems.running.precompile import MOST_PROCESSES, cores
from systems.running.reports import end_with
from tools.compile_ahead import DTYPES, need_compiler
from tools.rendering import stop

# Heads and rows of the timed case; rows of the checked one, which has one head.
HEADS, N, SMALL = 16, 4096, 512
# Nearer than this two configurations are as fast, and ours stays.
TIE = 0.99
# The largest relative error of a result: far above rounding, far below a mistake.
TOLERANCE = {"half": 2e-2, "high": 1e-4, "highest": 1e-5}
# Accumulators of a thread, which has 255 registers: more would spill, fewer leave the
# tensor cores idle.
MOST_ACCUMULATORS, LEAST_ACCUMULATORS = 200, 6


class Candidate(NamedTuple):
    """One kernel with one launch configuration."""

    arithmetic: str
    kernel: str
    d: int
    causal: bool
    config: Config


def candidates(key: Key, gpu: str) -> list[Candidate]:
    """Return ours for this GPU first, then those of all other GPUs, then what differs
    from ours in one number and has room for its accumulators.
    """
    kind, kernel, d, causal = key
    ours = select_by_mask(CONFIGS[gpu][kind][kernel][d], causal)
    others = (
        select_by_mask(table[kind][kernel][d], mask)
        for table in CONFIGS.values()
        for mask in (causal, not causal)
    )
    near = (
        config
        for config in neighbours(ours)
        if LEAST_ACCUMULATORS <= accumulators(kernel, d, config) <= MOST_ACCUMULATORS
    )
    return [Candidate(*key, c) for c in dict.fromkeys((ours, *others, *near))]


def neighbours(c: Config) -> Iterator[Config]:
    """Yield tiles of twice or half as many rows, other warps, a stage more or less."""
    for side in ("q", "k"):
        for rows in (2 * getattr(c, side), getattr(c, side) // 2):
            if 16 <= rows <= 256:
                yield c._replace(**{side: rows})
    yield c._replace(warps=12 - c.warps)
    yield from (c._replace(stages=s) for s in (c.stages - 1, c.stages + 1) if s)


def accumulators(kernel: str, d: int, c: Config) -> float:
    """Return how many numbers a thread accumulates: o, dq, or dk and dv of a tile, and
    the results of its matmuls.
    """
    held = 2 * c.k * d if kernel == "dkdv" else c.q * d
    return (held + (1 if kernel == "forward" else 2) * c.q * c.k) / (32 * c.warps)


def inputs(heads: int, n: int, candidate: Candidate) -> list[Tensor]:
    """Return normal q, k, v and do: (1, heads, n, d)."""
    shape, dtype = (1, heads, n, candidate.d), DTYPES[candidate.arithmetic]
    return [x.detach() for x in random_inputs(shape, dtype, default_device())]


def prepare(candidate: Candidate, heads: int, n: int) -> Callable[[], Any]:
    """Return a call of the pass that has the candidate's kernel. Loops are not split,
    as with many heads.
    """
    high = candidate.arithmetic == "high"
    torch.set_float32_matmul_precision("high" if high else "highest")
    q, k, v, do = inputs(heads, n, candidate)
    options = candidate.causal, candidate.d**-0.5
    if candidate.kernel == "forward":
        config = candidate.config
        return lambda: launch_forward(q, k, v, *options, config, splits=1)[:1]
    o, lse = launch_forward(q, k, v, *options, splits=1)
    own: Any = {f"{candidate.kernel}_config": candidate.config}
    own |= {"dkdv_splits": 1, "dq_splits": 1}
    return lambda: launch_backward(do, q, k, v, o, lse, *options, **own)


def check(candidate: Candidate) -> str:
    """Return what is wrong with a candidate, or nothing. It runs in a process of its
    own, which leaves the compiled kernel in Triton's cache.
    """
    try:
        found = prepare(candidate, 1, SMALL)()
        q, k, v, do = (x.double().requires_grad_() for x in inputs(1, SMALL, candidate))
        o, _ = attention_reference(q, k, v, candidate.causal)
        forward = candidate.kernel == "forward"
        exact = (o,) if forward else torch.autograd.grad(o, (q, k, v), do)
        worst = max(relative_error(*pair) for pair in zip(found, exact, strict=True))
    except Exception as error:
        # A tile that does not fit is an answer.
        return f"{type(error).__name__}: {error}".splitlines()[0][:100]
    right = worst <= TOLERANCE[candidate.arithmetic]
    return "" if right else f"wrong: relative error {worst:.1e}"


def milliseconds(call: Callable[[], object]) -> float:
    """Return the median GPU time of a call."""
    times: Any = triton.testing.do_bench(call, warmup=5, rep=25, return_mode="all")
    return median(times)


def entry(times: dict[Candidate, float], ours: Candidate) -> dict[str, Any]:
    """Return the fastest as an entry of the file; ours, where that is a tie."""
    best = min(times, key=times.__getitem__)
    if ours in times and times[best] > TIE * times[ours]:
        best = ours
    of = {"pass_ms": times[best], "pass_with_ours_ms": times.get(ours)}
    return best._asdict() | {"config": list(best.config)} | of


def begin(path: Path, device: Device, force: bool) -> dict[str, Any]:
    """Return what was found before with the same kernels and Triton, to go on with; or
    a file without entries.
    """
    new = {
        "gpu": device.name,
        "software": {"torch": torch.__version__, "triton": triton.__version__},
        "source_hash": tuned.kernels_hash(),
        "measured_utc": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "shape": [HEADS, N],
        "entries": [],
    }
    try:
        old = new if force else tuned.read(path)
    except FileNotFoundError:
        return new
    same = all(old[x] == new[x] for x in ("software", "source_hash"))
    return old if same else new


def write(found: dict[str, Any], path: Path) -> None:
    """Write the file in one step, an entry a line."""
    entries = ",\n".join(f"  {json.dumps(x)}" for x in found["entries"])
    head = json.dumps({k: v for k, v in found.items() if k != "entries"}, indent=1)
    write_whole(path, f'{head[:-2]},\n "entries": [\n{entries}\n ]\n}}\n')


def tune(
    found: dict[str, Any],
    path: Path,
    tried: dict[Key, list[Candidate]],
    verdicts: dict[Candidate, str],
    timed: Callable[[Candidate], float],
) -> None:
    """Time what was found right for each key, and write an entry at once."""
    for key, these in tried.items():
        times = {c: timed(c) for c in these if not verdicts[c]}
        if times:
            found["entries"].append(fastest := entry(times, these[0]))
            write(found, path)
            arithmetic, kernel, d, causal = key
            case = f"{arithmetic} d={d} {kernel} {'causal' if causal else 'full'}"
            print(f"{case}: {fastest['pass_ms']:.4f} ms,", end=" ")
            print(f"with ours {fastest['pass_with_ours_ms'] or math.nan:.4f} ms")


def start_worker(parent: int) -> None:
    """Leave Ctrl-C to the parent, and end when it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with(parent)


def main(
    arithmetic: Annotated[
        list[str], typer.Option(help="half, high or highest; may be repeated.")
    ] = list(DTYPES),  # noqa: B006
    d: Annotated[
        list[int],
        typer.Option(help="Head dimension: 16, 32, 64, 128 or 256; may be repeated."),
    ] = list(HEAD_DIMS),  # noqa: B006
    minutes: Annotated[float, typer.Option(help="Stop after so many.")] = 20,
    force: Annotated[
        bool, typer.Option("--force", help="Begin anew, also where a file is.")
    ] = False,
) -> None:
    """Time launch configurations on this GPU and write the fastest down."""
    for option, values, known in (
        ("--arithmetic", arithmetic, tuple(DTYPES)),
        ("--d", d, HEAD_DIMS),
    ):
        for value in values:
            if value not in known:
                stop(f"{option} {value}: is none of {', '.join(map(str, known))}")
    device = find_gpu()
    if device is None or not torch.cuda.is_available():
        stop("configurations are timed on a GPU, and torch sees none here")
    need_compiler()
    name = architecture(torch.cuda.get_device_capability())
    path, deadline = tuned.path_of(device.slug), time.monotonic() + 60 * minutes
    trouble = ""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        found = begin(path, device, force)
        # Where nothing can be written, nothing is timed.
        write(found, path)
    except OSError as error:
        stop(f"can't write {path}: {error.strerror}")
    except ValueError as error:
        stop(str(error))
    there = {tuned.key_of(x) for x in found["entries"]}
    # Each process holds a context on the GPU.
    count, context = min(MOST_PROCESSES, cores()), get_context("spawn")
    with ProcessPoolExecutor(count, context, start_worker, (os.getpid(),)) as pool:
        try:
            for kind, size in product(arithmetic, d):
                keys = [(kind, k, size, m) for k in KERNELS for m in (True, False)]
                tried = {k: candidates(k, name) for k in keys if k not in there}
                if time.monotonic() > deadline and tried:
                    trouble = "out of time"
                    break
                # Not by `map`, which cancels what is left where it is interrupted: a
                # pool with cancelled work leaves some of its processes running.
                work = {c: pool.submit(check, c) for of in tried.values() for c in of}
                verdicts = {c: result.result() for c, result in work.items()}
                tune(
                    found, path, tried, verdicts,
                    lambda c: milliseconds(prepare(c, HEADS, N)),
                )  # fmt: skip
        except (RuntimeError, TritonError, OSError, KeyboardInterrupt) as error:
            said = str(error).partition("\n")[0]
            trouble = f"stopped: {type(error).__name__} {said}".strip()
            for child in active_children():
                child.terminate()
    print(f"{len(found['entries'])} configurations: {path}")
    if trouble:
        stop(f"{trouble}; the same command goes on")


if __name__ == "__main__":
    assert __doc__
    run_as_command(main, __doc__)

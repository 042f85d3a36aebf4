"""Time launch configurations of the Triton FlashAttention kernels on this GPU, and
write the fastest into a file that the kernels read.

    python tools/tune_flash.py
    python tools/tune_flash.py --arithmetic half --d 64 --d 128

takes less than 20 minutes; after an interruption, run it again to go on. Candidates are
the current configuration, those for other GPUs, and variants in one parameter. Only
candidates that agree with float64 are timed. A CUDA error stops the search; the next
one leaves that candidate out. The kernels ignore the file once their code or Triton's
version changes; records contain the file's digest.
"""

import json
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import product
from multiprocessing import active_children, get_context
from pathlib import Path
from statistics import median
from typing import Annotated, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from systems import require, run_cli

if __name__ == "__main__":
    require("torch", "triton", "fcntl", "typer", "rich", "msgspec")

import torch
import triton
import typer
from torch import Tensor
from triton.errors import TritonError

from systems.attention.reference import attention_reference
from systems.attention.triton import tuned
from systems.attention.triton.chooser import select_by_mask, table_name
from systems.attention.triton.configs import Config
from systems.attention.triton.launches import launch_backward, launch_forward
from systems.attention.triton.tables import CONFIGS
from systems.attention.triton.tuned import HEAD_DIMS, KERNELS, Key
from systems.benchmarking.timing import default_device
from systems.benchmarking.workload import random_inputs
from systems.formulas.gpus import CONTEXT_BYTES
from systems.precision.dtypes import relative_error
from systems.records.device import Device, find_gpu, is_gpu_shared
from systems.records.files import write_atomically
from systems.records.outcome import out_of_memory_reason
from systems.running.groups import CUDA_ERROR
from systems.running.machine import check_torch
from systems.running.precompile import MOST_PROCESSES, available_cores
from systems.running.reports import CannotStart, end_with_parent
from systems.running.resuming import lock_record, modification_time_ns
from tools.compile_ahead import DTYPES, check_can_compile
from tools.rendering import fail

# Heads and length of the timed inputs; length of the checked inputs (one head).
HEADS, N, CHECKED_N = 16, 4096, 512
# To win, a candidate may take at most this share of the current configuration's time.
TIE = 0.99
# The largest relative error of a correct result, well above rounding errors.
TOLERANCE = {"half": 2e-2, "high": 1e-4, "highest": 1e-5}
# Bounds on float32 accumulators per thread: more would spill a thread's 255 registers,
# fewer would leave the tensor cores idle.
MAX_ACCUMULATORS, MIN_ACCUMULATORS = 200, 6


class Candidate(NamedTuple):
    """One kernel with one launch configuration."""

    arithmetic: str
    kernel: str
    d: int
    causal: bool
    config: Config


class CrashError(RuntimeError):
    """A CUDA error broke the process. Arguments: the candidate's text, the error."""

    def __str__(self) -> str:
        return ": ".join(self.args)


def list_candidates(key: Key, gpu: str) -> list[Candidate]:
    """Return candidates for `key`: the table's entry, other GPUs' entries, variants."""
    kind, kernel, d, causal = key
    ours = select_by_mask(CONFIGS[gpu][kind][kernel][d], causal)
    others = (
        select_by_mask(table[kind][kernel][d], mask)
        for table in CONFIGS.values()
        for mask in (causal, not causal)
    )
    near = (
        config
        for config in vary_config(ours)
        if MIN_ACCUMULATORS <= count_accumulators(kernel, d, config) <= MAX_ACCUMULATORS
    )
    return [Candidate(*key, c) for c in dict.fromkeys((ours, *others, *near))]


def vary_config(c: Config) -> Iterator[Config]:
    """Yield configurations with one changed parameter: tile rows, warps or stages."""
    for side in ("q", "k"):
        for rows in (2 * getattr(c, side), getattr(c, side) // 2):
            if 16 <= rows <= 256:
                yield c._replace(**{side: rows})
    yield c._replace(warps=12 - c.warps)
    yield from (c._replace(stages=s) for s in (c.stages - 1, c.stages + 1) if s)


def count_accumulators(kernel: str, d: int, c: Config) -> float:
    """Return the number of float32 accumulators per thread, for outputs and scores."""
    outputs = 2 * c.k * d if kernel == "dkdv" else c.q * d
    return (outputs + (1 if kernel == "forward" else 2) * c.q * c.k) / (32 * c.warps)


def make_inputs(heads: int, n: int, candidate: Candidate) -> list[Tensor]:
    """Return normally distributed q, k, v and do (1, heads, n, d)."""
    shape, dtype = (1, heads, n, candidate.d), DTYPES[candidate.arithmetic]
    return [x.detach() for x in random_inputs(shape, dtype, default_device())]


def make_launch(candidate: Candidate, heads: int, n: int) -> Callable[[], Any]:
    """Return a function that runs a candidate's pass, without splitting its loops."""
    high = candidate.arithmetic == "high"
    torch.set_float32_matmul_precision("high" if high else "highest")
    q, k, v, do = make_inputs(heads, n, candidate)
    options = candidate.causal, candidate.d**-0.5
    if candidate.kernel == "forward":
        changes: Any = {"config": candidate.config, "splits": 1}
        return lambda: launch_forward(q, k, v, *options, **changes)[:1]
    o, lse = launch_forward(q, k, v, *options, splits=1)
    changes = {f"{candidate.kernel}_config": candidate.config}
    changes |= {"dkdv_splits": 1, "dq_splits": 1}
    return lambda: launch_backward(do, q, k, v, o, lse, *options, **changes)


def describe_fault(candidate: Candidate, error: Exception) -> str:
    """Return the text of an error that is the candidate's fault, such as too much
    shared memory. Raise RuntimeError for a full GPU, CrashError for other CUDA errors.
    """
    fault = f"{type(error).__name__}: {error}".splitlines()[0][:100]
    if out_of_memory_reason(error):
        raise RuntimeError(f"{candidate.config}: {fault}") from None
    if CUDA_ERROR.search(fault):
        raise CrashError(str(candidate), fault) from None
    return fault


def find_fault(candidate: Candidate) -> str:
    """Compile a candidate and compare it with float64. Return its fault, or ""; raise
    as `describe_fault` does.
    """
    try:
        results = make_launch(candidate, 1, CHECKED_N)()
        q, k, v, do = (
            x.double().requires_grad_() for x in make_inputs(1, CHECKED_N, candidate)
        )
        o, _ = attention_reference(q, k, v, candidate.causal)
        forward = candidate.kernel == "forward"
        exact = (o,) if forward else torch.autograd.grad(o, (q, k, v), do)
        pairs = zip(results, exact, strict=True)
        largest = max(relative_error(*pair) for pair in pairs)
    except Exception as error:
        return describe_fault(candidate, error)
    is_close = largest <= TOLERANCE[candidate.arithmetic]
    return "" if is_close else f"wrong: relative error {largest:.1e}"


def time_call_ms(call: Callable[[], object]) -> float:
    """Return the median time of a call by `do_bench`, in ms."""
    times: Any = triton.testing.do_bench(call, warmup=5, rep=25, return_mode="all")
    return median(times)


def time_pass_ms(candidate: Candidate) -> float:
    """Return the median ms of a candidate's pass; raise as `describe_fault` does."""
    try:
        return time_call_ms(make_launch(candidate, HEADS, N))
    except RuntimeError as error:
        describe_fault(candidate, error)
        raise


def make_entry(times: dict[Candidate, float], ours: Candidate) -> dict[str, Any]:
    """Return the file entry of the candidate with the least ms; ties go to `ours`."""
    best = min(times, key=times.__getitem__)
    if ours in times and times[best] > TIE * times[ours]:
        best = ours
    pass_times = {"pass_ms": times[best], "pass_with_ours_ms": times.get(ours)}
    return best._asdict() | {"config": list(best.config)} | pass_times


def resume_or_start(path: Path, device: Device, force: bool) -> dict[str, Any]:
    """Return the content of the file at `path`, to resume the search. Return it without
    entries if there is no file, if its code or software is old (it is renamed), or with
    `force`. Raise ValueError if it is damaged.
    """
    new = {
        "gpu": device.name,
        "software": {"torch": torch.__version__, "triton": triton.__version__},
        "source_hash": tuned.kernels_hash(),
        "measured_utc": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "shape": [HEADS, N],
        "crashed": [],
        "entries": [],
    }
    try:
        old = new if force else tuned.read(path)
    except FileNotFoundError:
        return new
    if all(old[x] == new[x] for x in ("software", "source_hash")):
        return {"crashed": []} | old
    # Keep the old file, which is still valid in the environment where it was timed.
    os.replace(path, path.with_name(f".{path.name}.{modification_time_ns(path)}"))
    return new


def write_content(content: dict[str, Any], path: Path) -> None:
    """Write `content` to `path` as JSON, with one entry per line."""
    entries = ",\n".join(f"  {json.dumps(x)}" for x in content["entries"])
    head = json.dumps({k: v for k, v in content.items() if k != "entries"}, indent=1)
    write_atomically(path, f'{head[:-2]},\n "entries": [\n{entries}\n ]\n}}\n')


def time_candidates(
    content: dict[str, Any],
    path: Path,
    candidates: dict[Key, list[Candidate]],
    faults: dict[Candidate, str],
    time_ms: Callable[[Candidate], float],
) -> None:
    """Time each key's faultless candidates; write the fastest before the next key."""
    for key, alternatives in candidates.items():
        times = {c: time_ms(c) for c in alternatives if faults.get(c) == ""}
        if times:
            fastest = make_entry(times, alternatives[0])
            content["entries"].append(fastest)
            write_content(content, path)
            arithmetic, kernel, d, causal = key
            case = f"{arithmetic} d={d} {kernel} {'causal' if causal else 'full'}"
            print(f"{case}: {fastest['pass_ms']:.4f} ms,", end=" ")
            print(f"with ours {fastest['pass_with_ours_ms'] or math.nan:.4f} ms")


def start_worker(parent: int) -> None:
    """Set up a worker: leave Ctrl-C to process `parent`, and exit when it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent)


def main(
    arithmetic: Annotated[
        list[str], typer.Option(help="half, high or highest; may be repeated.")
    ] = list(DTYPES),  # noqa: B006
    d: Annotated[
        list[int],
        typer.Option(help="Head dimension: 16, 32, 64, 128 or 256; may be repeated."),
    ] = list(HEAD_DIMS),  # noqa: B006
    force: Annotated[
        bool, typer.Option("--force", help="Start over even if a file exists.")
    ] = False,
) -> None:
    """Time launch configurations on this GPU and write the fastest into a file."""
    known = ("--arithmetic", arithmetic, tuple(DTYPES)), ("--d", d, HEAD_DIMS)
    for option, values, allowed in known:
        for value in values:
            if value not in allowed:
                fail(f"{option} {value}: is none of {', '.join(map(str, allowed))}")
    device = find_gpu()
    if device is None or not torch.cuda.is_available():
        fail("configurations are timed on a GPU, and torch sees none here")
    if is_gpu_shared():
        print("warning: others use this GPU, see nvidia-smi", file=sys.stderr)
    check_can_compile()
    name = table_name(torch.cuda.get_device_capability())
    path, problem = tuned.file_path(device.slug), ""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with ExitStack() as start:
        try:
            check_torch(device)
            start.enter_context(lock_record(path))
            content = resume_or_start(path, device, force)
            # Fail before any timing if the file can't be written.
            write_content(content, path)
        except OSError as error:
            fail(f"can't write {path}: {error.strerror}")
        except (ValueError, CannotStart) as error:
            fail(str(error))
        lock = start.pop_all()
    finished = {tuned.entry_key(x) for x in content["entries"]}
    # Limit processes, because each has a CUDA context and small tensors on the GPU.
    fitting = (device.memory_bytes or 2**40) // (2 * CONTEXT_BYTES)
    count = max(1, min(MOST_PROCESSES, available_cores(), fitting))
    context = get_context("spawn")
    workers = ProcessPoolExecutor(count, context, start_worker, (os.getpid(),))
    with lock, workers as pool:
        try:
            for kind, size in product(dict.fromkeys(arithmetic), dict.fromkeys(d)):
                keys = [(kind, k, size, m) for k in KERNELS for m in (True, False)]
                candidates = {
                    key: list_candidates(key, name)
                    for key in keys
                    if key not in finished
                }
                # `pool.map` would cancel pending work when interrupted, and a pool with
                # cancelled work leaves some of its processes running.
                futures = {
                    c: pool.submit(find_fault, c)
                    for alternatives in candidates.values()
                    for c in alternatives
                    if str(c) not in content["crashed"]
                }
                faults = {c: future.result() for c, future in futures.items()}
                time_candidates(content, path, candidates, faults, time_pass_ms)
        except (RuntimeError, TritonError, OSError, KeyboardInterrupt) as error:
            if isinstance(error, CrashError):
                content["crashed"].append(error.args[0])
                write_content(content, path)
            message = str(error).partition("\n")[0]
            problem = f"stopped: {type(error).__name__} {message}".strip()
            for child in active_children():
                child.terminate()
    print(f"{len(content['entries'])} configurations: {path}")
    if problem:
        fail(f"{problem}; the same command goes on")


if __name__ == "__main__":
    run_cli(main, __doc__)

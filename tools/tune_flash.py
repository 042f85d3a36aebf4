"""Time launch configurations of the Triton FlashAttention kernels on this GPU, and
write the fastest into a file that the kernels read.

    python tools/tune_flash.py
    python tools/tune_flash.py --arithmetic half --d 64 --d 128

takes less than 20 minutes; after an interruption, run it again to go on. Candidates are
the current configuration, those for other GPUs, and variants in one parameter. Only
candidates that agree with float64 are timed; one that crashes its process twice is
left out. The kernels ignore the file once their code or Triton's version changes;
records contain the file's digest.
"""

import json
import math
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from itertools import chain, product
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


def list_candidates(key: Key, gpu: str) -> list[Candidate]:
    """Return candidates for `key`: the current one, those for other GPUs, variants."""
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


def find_fault(candidate: Candidate) -> str:
    """Compile a candidate and compare it with float64. Return its fault, or "". Raise
    RuntimeError if the GPU's memory is full or a CUDA error broke this process.
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
        fault = f"{type(error).__name__}: {error}".splitlines()[0][:100]
        if out_of_memory_reason(error) or CUDA_ERROR.search(fault):
            # The GPU is full, or this process can't use it: others would fail here.
            raise RuntimeError(fault) from None
        # Any other error is the candidate's fault, such as too much shared memory.
        return fault
    is_close = largest <= TOLERANCE[candidate.arithmetic]
    return "" if is_close else f"wrong: relative error {largest:.1e}"


def time_pass_ms(candidate: Candidate) -> float:
    """Return the median time of a candidate's pass by `do_bench`, in ms."""
    launch = make_launch(candidate, HEADS, N)
    times: Any = triton.testing.do_bench(launch, warmup=5, rep=25, return_mode="all")
    return median(times)


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
    time_ms: Callable[[Candidate], dict[Candidate, float]],
) -> None:
    """Time each case's faultless candidates; write the fastest before the next case.
    `time_ms` returns no time for a candidate that crashes.
    """
    for key, alternatives in candidates.items():
        times = {}
        for candidate in alternatives:
            times |= time_ms(candidate) if faults.get(candidate) == "" else {}
        if times:
            fastest = make_entry(times, alternatives[0])
            content["entries"].append(fastest)
            write_content(content, path)
            print(f"{describe_case(key)}: {fastest['pass_ms']:.4f} ms,", end=" ")
            print(f"with ours {fastest['pass_with_ours_ms'] or math.nan:.4f} ms")


def describe_case(key: Key) -> str:
    arithmetic, kernel, d, causal = key
    return f"{arithmetic} d={d} {kernel} {'causal' if causal else 'full'}"


def describe(candidate: Candidate) -> str:
    return f"{describe_case(candidate[:4])} {candidate.config}"


def start_worker() -> ProcessPoolExecutor:
    """Return a pool of one process, which starts when it gets work."""
    context = get_context("spawn")
    return ProcessPoolExecutor(1, context, set_up_worker, (os.getpid(),))


def set_up_worker(parent: int) -> None:
    """Leave Ctrl-C to process `parent`, and exit when it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent(parent)


def count_workers(device: Device) -> int:
    """Return the number of processes for which cores and GPU memory suffice."""
    # Each has a CUDA context and small tensors on the GPU.
    fitting = (device.memory_bytes or 2**40) // (2 * CONTEXT_BYTES)
    return max(1, min(MOST_PROCESSES, available_cores(), fitting))


def run_in_workers(
    work: Callable[[Candidate], Any],
    candidates: Sequence[Candidate],
    workers: list[ProcessPoolExecutor],
    crashed: list[str],
) -> dict[Candidate, Any]:
    """Return {candidate: work(candidate)}, without those in `crashed`. If a candidate
    crashes its process, replace the process, and try the candidate again at the end. If
    it crashes again, add it to `crashed`. Raise RuntimeError if all of several crash.
    """
    left = [c for c in candidates if describe(c) not in crashed]
    several, tried, results = len(left) > 1, set(), {}
    idle, running = [*range(len(workers))], {}
    while left or running:
        while left and idle:
            candidate, i = left.pop(0), idle.pop()
            running[workers[i].submit(work, candidate)] = candidate, i
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            candidate, i = running.pop(future)
            idle.append(i)
            try:
                results[candidate] = future.result()
            except RuntimeError as error:
                reason = f"{type(error).__name__}: {error}".splitlines()[0][:100]
                has_ended = isinstance(error, BrokenProcessPool)
                if not (has_ended or CUDA_ERROR.search(reason)):
                    raise
                workers[i].shutdown()
                workers[i] = start_worker()
                if candidate in tried:
                    crashed.append(describe(candidate))
                    line = f"left out, because it crashes: {crashed[-1]}: {reason}"
                    print(line, file=sys.stderr)
                else:
                    # The system may have killed the process, for lack of memory.
                    tried.add(candidate)
                    left.append(candidate)
    if several and not results:
        raise RuntimeError("every candidate crashes: does the GPU work?")
    return results


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
    workers = [start_worker() for _ in range(count_workers(device))]

    def run_each(work: Callable[[Candidate], Any], *candidates: Candidate):
        return run_in_workers(work, candidates, workers, content["crashed"])

    with lock:
        try:
            for kind, size in product(dict.fromkeys(arithmetic), dict.fromkeys(d)):
                keys = [(kind, k, size, m) for k in KERNELS for m in (True, False)]
                candidates = {
                    key: list_candidates(key, name)
                    for key in keys
                    if key not in finished
                }
                faults = run_each(find_fault, *chain(*candidates.values()))
                time_candidates(
                    content, path, candidates, faults, partial(run_each, time_pass_ms)
                )
        except (RuntimeError, TritonError, OSError, KeyboardInterrupt) as error:
            message = str(error).partition("\n")[0]
            problem = f"stopped: {type(error).__name__} {message}".strip()
            for child in active_children():
                child.terminate()
        finally:
            for worker in workers:
                worker.shutdown()
    print(f"{len(content['entries'])} configurations: {path}")
    if problem:
        fail(f"{problem}; the same command goes on")


if __name__ == "__main__":
    run_cli(main, __doc__)

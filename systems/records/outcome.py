"""Run one configuration and return its row: metrics, or why there are no metrics."""

import json
import re
import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict
from tempfile import gettempdir
from typing import Any

import msgspec

from systems import escape_text
from systems.records.record import Row, faults_in_metrics

# Error messages if memory runs out (besides OutOfMemoryError), or sizes overflow.
NO_MEMORY = (
    "can't allocate memory",
    "Storage size calculation overflowed",
    "numel: integer multiplication overflow",
    "cannot be represented as a SymInt",
    "std::bad_alloc",
    "CUDA error: out of memory",
    "CUDA driver error: out of memory",
    "Triton Error [CUDA]: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUDNN_STATUS_ALLOC_FAILED",
    "DEVICE_ALLOCATION_FAILED",
)
SPACE_FAULT = "it can't in a path with a space"
# Beginning of the reason in a row whose implementation is not installed.
NOT_INSTALLED = "not installed"
# Maximum number of characters in the reason of a row.
MAX_REASON = 2000


class Unsupported(Exception):
    """Raised if an implementation can't run a configuration. This is a valid result."""


class NotInstalled(Unsupported):
    """Raised if an implementation's package is not installed."""

    def __init__(self, what: str):
        super().__init__(f"{NOT_INSTALLED}: {what}")


# An experiment's `run` returns metrics, or is a generator that yields after each turn
# (a part of the measurement), so that the turns of several rows can alternate.
Metrics = dict[str, Any]
AlternatingRun = Generator[None, None, Metrics]
Run = Callable[[Any], Metrics | AlternatingRun]


def measure_row(config: Any, run: Run) -> Row:
    """Call `run(config)` and return its row. Out-of-memory errors, `Unsupported` and a
    missing Triton or C++ compiler become the row's status; other errors are raised.
    Raise ValueError for an invalid metric.
    """
    *_, row = measure_in_turns(config, run)
    assert row is not None
    return row


def measure_in_turns(config: Any, run: Run) -> Iterator[Row | None]:
    """Call `run(config)`: yield None at each of its yields, and finally its row."""
    metrics, status, reason, error_name = {}, "ok", None, None
    try:
        result = run(config)
        metrics = (yield from result) if isinstance(result, Generator) else result
        if not (metrics and isinstance(metrics, dict)):
            raise ValueError(f"run must return a dict of metrics, not {metrics!r:.50}")
    except Unsupported as error:
        status, reason, error_name = "unsupported", str(error), type(error).__name__
    except ModuleNotFoundError as error:
        # Only this project's kernels need Triton, so a missing Triton is no error.
        if error.name != "triton":
            raise
        status, reason = "unsupported", f"{NOT_INSTALLED}: {error}"
    except Exception as error:
        error_name = type(error).__name__
        if (reason := out_of_memory_reason(error)) is not None:
            status = "out_of_memory"
        elif (reason := compiler_reason(error)) is not None:
            status = "unsupported"
        elif "does not yet support recordHistory" in str(error):
            remedy = "set PYTORCH_CUDA_ALLOC_CONF=backend:native"
            raise ValueError(f"this allocator keeps no history: {remedy}") from error
        elif (at := str(error).find("has no kernel of a GPU")) > 0:
            # Drop the path of a trace that is deleted by now.
            status, reason = "unsupported", f"the profile {str(error)[at:]}"
        else:
            raise
    for fault in faults_in_metrics(metrics):
        raise ValueError(fault)
    try:
        msgspec.json.decode(json.dumps(metrics, ensure_ascii=False).encode())
    except (TypeError, ValueError, RecursionError, msgspec.DecodeError) as error:
        raise ValueError(f"a metric is not JSON: {error}") from None
    # Each row without metrics needs a reason, but an error's message may be empty.
    yield Row(asdict(config), status, metrics, one_line(reason) or error_name)


def one_line(text: str | None) -> str | None:
    """Return the first MAX_REASON characters on one line, escaped; keep None or ""."""
    return text and escape_text(" ".join(text[:MAX_REASON].split()))


def out_of_memory_reason(error: BaseException | None) -> str | None:
    """Return the message of an out-of-memory error, or None for other errors."""
    torch = sys.modules.get("torch")
    for cause in error_chain(error):
        text = str(cause)
        if torch is not None and isinstance(cause, torch.OutOfMemoryError):
            # Keep two sentences: "CUDA out of memory. Tried to allocate 2.50 GiB".
            return ". ".join(text.split(". ")[:2])
        if isinstance(cause, MemoryError):
            return "no memory left for Python"
        if isinstance(cause, RuntimeError) and any(w in text for w in NO_MEMORY):
            # Drop the position in PyTorch's source and the C++ frames.
            return re.sub(r"^\[[^]]*\] (err == 0\. )?", "", text.splitlines()[0])
    return None


def compiler_reason(error: BaseException) -> str | None:
    """Return a message if torch.compile lacks a working C++ compiler, else None."""
    inductor = sys.modules.get("torch._inductor.exc")
    if inductor is None:
        return None
    for cause in error_chain(error):
        if isinstance(cause, inductor.InvalidCxxCompiler):
            return "torch.compile needs a C++ compiler, and found none: install g++"
        if isinstance(cause, inductor.CppCompileError):
            space = (f": {SPACE_FAULT}, {path}" for path in paths_with_a_space())
            return "torch.compile could not compile its C++ code" + next(space, "")
    return None


def paths_with_a_space() -> list[str]:
    """Return the folders of torch.compile's C++ build whose paths have a space."""
    return [path for path in (sys.prefix, gettempdir()) if " " in path]


def error_chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and the errors that caused it."""
    while error is not None:
        yield error
        error = getattr(error, "inner_exception", None) or error.__cause__

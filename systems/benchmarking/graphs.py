"""Capture a pass as CUDA graphs, one per phase: one call launches all kernels of a
phase in the same order.

Eager mode launches each kernel separately. If launching takes the CPU longer than the
kernels take the GPU, wall-clock time measures the CPU. A graph computes with the
tensors of its capture, so a training loop would copy each batch into these tensors.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch

from systems.benchmarking import phases
from systems.benchmarking.timing import Step, empty_cache
from systems.model.train_step import Phase
from systems.records.outcome import Unsupported, out_of_memory_reason


@cache
def shared_stream() -> torch.cuda.Stream:
    """Return one stream for all captures: libraries keep a workspace per stream."""
    return torch.cuda.Stream()


# --8<-- [start:captured]
@contextmanager
def capture(step: Step, clear: Callable[[], None], device: str) -> Iterator[Step]:
    """Capture each phase of `step` as a CUDA graph, and yield a step that replays the
    graphs. One eager step runs first and creates optimizer state and workspaces.
    `clear` frees gradients. Raise `Unsupported` if capture fails or there is no GPU.
    """
    if device != "cuda":
        raise Unsupported("a CPU has no CUDA graphs")
    graphs: dict[str, torch.cuda.CUDAGraph] = {}
    # Graphs that share a pool must be captured on one stream, and replayed in order.
    pool, stream = torch.cuda.graph_pool_handle(), shared_stream()

    @contextmanager
    def capture_phase(name: str) -> Iterator[None]:
        graphs[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graphs[name], pool=pool, stream=stream):
            yield

    def replay(phase: Phase) -> None:
        for name, graph in graphs.items():
            with phase(name):
                graph.replay()

    try:
        clear()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step(phases.mark)
        torch.cuda.synchronize()
        clear()
        empty_cache(device)
        # Restore the current stream, which a failed capture would leave changed.
        with wrap_capture_errors(), torch.cuda.stream(torch.cuda.current_stream()):
            step(capture_phase)
        yield replay
    finally:
        try:
            torch.cuda.synchronize()
        finally:
            for graph in graphs.values():
                graph.reset()
            # Free the gradients, which lie in the graphs' memory pool.
            clear()
            # Free cuBLAS's workspace for the stream, or later memory readings count it.
            torch._C._cuda_clearCublasWorkspaces()
    # --8<-- [end:captured]


@contextmanager
def wrap_capture_errors() -> Iterator[None]:
    """Turn an error of CUDA or PyTorch about graph capture into `Unsupported`."""
    try:
        yield
    except RuntimeError as error:
        # Re-raise errors that are not about the capture: they may have broken CUDA.
        if out_of_memory_reason(error) is not None or "captur" not in str(error):
            raise
        message = str(error).splitlines()[0]
        raise Unsupported(f"this step can't be a CUDA graph: {message}") from error

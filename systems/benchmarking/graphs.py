"""A pass as CUDA graphs, one for each of its phases: the same kernels in the same
order, launched in one call.

Eager mode launches kernel by kernel, and where the host needs longer for that than the
GPU for the kernels, the clock measures the host. A graph is recorded once and replayed:
what a replay takes is what the GPU needs. It computes with the tensors of its capture,
so a training loop would copy each batch into them.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch

from systems.benchmarking import phases
from systems.benchmarking.timing import Step, give_back
from systems.model.train_step import Phase
from systems.records.outcome import Unsupported, out_of_memory_reason


@cache
def capture_stream() -> torch.cuda.Stream:
    """One for all captures: libraries keep a workspace for each stream they met."""
    return torch.cuda.Stream()


# --8<-- [start:captured]
@contextmanager
def captured(step: Step, clear: Callable[[], None], device: str) -> Iterator[Step]:
    """A step that replays what `step` launched when it was captured, phase by phase.
    `clear` empties the gradients.

    A step before the capture creates what the first one would: an optimizer's state,
    libraries' workspaces. `Unsupported` where there is no GPU, or what the step does
    can't be captured.
    """
    if device != "cuda":
        raise Unsupported("a CPU has no CUDA graphs")
    found: dict[str, torch.cuda.CUDAGraph] = {}
    # Graphs that share memory are captured on one stream, and replayed in one order.
    pool, side = torch.cuda.graph_pool_handle(), capture_stream()

    @contextmanager
    def capture(name: str) -> Iterator[None]:
        found[name] = torch.cuda.CUDAGraph()
        with torch.cuda.graph(found[name], pool=pool, stream=side):
            yield

    def replay(phase: Phase) -> None:
        for name, graph in found.items():
            with phase(name):
                graph.replay()

    try:
        clear()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step(phases.mark)
        torch.cuda.synchronize()
        clear()
        give_back(device)
        # A capture that CUDA breaks off would leave its stream the current one.
        with refusals(), torch.cuda.stream(torch.cuda.current_stream()):
            step(capture)
        yield replay
    finally:
        try:
            torch.cuda.synchronize()
        finally:
            for graph in found.values():
                graph.reset()
            # Gradients lie in the memory of the graphs.
            clear()
            # What cuBLAS keeps for this stream is no part of what others need.
            torch._C._cuda_clearCublasWorkspaces()


# --8<-- [end:captured]


@contextmanager
def refusals() -> Iterator[None]:
    """A capture that CUDA or PyTorch refuses, as a result with its reason."""
    try:
        yield
    except RuntimeError as error:
        # All else broke for another reason, and may have broken the process.
        if out_of_memory_reason(error) is not None or "captur" not in str(error):
            raise
        said = str(error).splitlines()[0]
        raise Unsupported(f"this step can't be a CUDA graph: {said}") from error

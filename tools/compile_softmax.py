"""The Triton kernel that `torch.compile` writes for a softmax over rows of 1,024
numbers, on an H100. Written, not run: it takes a few seconds and no GPU.

    python tools/compile_softmax.py

writes it to docs/results/softmax-compiled.txt, with the versions that wrote it, whole
and without the lines that no other line reads. With a GPU PyTorch prints it itself:
docs/compile.md shows how.
"""

import ast
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from systems import ROOT, need, run_as_command

if __name__ == "__main__":
    need("torch", "triton", "typer", "msgspec")

import torch
import triton
from torch._dynamo.device_interface import CudaInterface
from torch._inductor import scheduler
from torch._inductor.debug import DebugContext
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._inductor.virtualized import V
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.traceback import preserve_node_meta
from triton.runtime import driver

from systems.formulas.chips import TARGETS
from systems.records.files import write_whole
from tools.compile_ahead import Driver, need_compiler

SOFTMAX = ROOT / "docs" / "results" / "softmax-compiled.txt"
ROWS, COLUMNS = 8192, 1024
GPU = TARGETS["h100"]
# What the compiler asks of the GPU that it writes for.
PROPERTIES = SimpleNamespace(
    major=GPU.capability[0],
    minor=GPU.capability[1],
    multi_processor_count=GPU.sms,
    warp_size=32,
    max_threads_per_block=1024,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65536,
    shared_memory_per_block_optin=227 * 1024,
)


def generated() -> str:
    """What the compiler writes: the kernel, and the Python that launches it. Leaves the
    process with a GPU that is not there, as `compile_ahead.loaded_by` does.
    """
    fake = FakeTensorMode()
    with fake, preserve_node_meta():
        x = torch.empty(ROWS, COLUMNS, device="cuda")
        traced = make_fx(lambda x: torch.softmax(x, -1), select_decomp_table())(x)
        graph = GraphLowering(traced, example_inputs=[x])
    for place in (torch.cuda, CudaInterface, CudaInterface.Worker):
        setattr(place, "get_device_properties", lambda *_: PROPERTIES)  # noqa: B010
    torch.cuda.current_device = lambda: 0
    setattr(scheduler, "has_triton", lambda *_: True)  # noqa: B010
    none: Any = Driver(GPU)
    driver.set_active(none)
    modes = DebugContext(), fake, V.set_fake_mode(fake), V.set_graph_handler(graph)
    with ExitStack() as stack:
        for mode in modes:
            stack.enter_context(mode)
        graph.run(x)
        return graph.codegen()[0].value


def kernel_of(module: str) -> str:
    """The kernel alone, out of the string that the compiler keeps it in."""
    source = module.split("'''")[1]
    return source[source.index("@triton.jit") :].strip()


def without_unread(kernel: str) -> str:
    """Without the assignments whose names nothing reads, as wide as a page shows."""
    lines = kernel.splitlines()
    while True:
        (function,) = ast.parse("\n".join(lines)).body
        read = {
            node.id
            for node in ast.walk(function)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        }
        assert isinstance(function, ast.FunctionDef)
        unread = {
            statement.lineno - 1
            for statement in function.body
            if isinstance(statement, ast.Assign | ast.AnnAssign)
            for target in [
                statement.target
                if isinstance(statement, ast.AnnAssign)
                else statement.targets[0]
            ]
            if isinstance(target, ast.Name) and target.id not in read
        }
        if not unread:
            return "\n".join(map(wrapped, lines))
        lines = [line for i, line in enumerate(lines) if i not in unread]


def wrapped(line: str) -> str:
    """On two lines, where it has more than the 88 columns of a code block."""
    if len(line) <= 88:
        return line
    end = line.rindex(", ", 0, 88) + 1
    return f"{line[:end]}\n{' ' * (line.index('(') + 1)}{line[end + 1 :]}"


def text() -> str:
    """The file: where it is from, the kernel's lines that do something, all of them."""
    kernel = kernel_of(generated())
    sections = {"short": without_unread(kernel), "whole": kernel}
    marked = (
        f"# --8<-- [start:{name}]\n{code}\n# --8<-- [end:{name}]"
        for name, code in sections.items()
    )
    versions = f"PyTorch {torch.__version__.split('+')[0]}, Triton {triton.__version__}"
    return "\n\n".join([f"# {versions}, for an H100", *marked]) + "\n"


def main() -> None:
    need_compiler()
    write_whole(SOFTMAX, text())
    print(SOFTMAX)


if __name__ == "__main__":
    assert __doc__
    run_as_command(main, __doc__)

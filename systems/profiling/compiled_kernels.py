"""Record the resources of compiled Triton kernels, and count instructions in loops."""

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any
from unittest import mock

import triton
from triton import knobs
from triton.compiler import CompiledKernel

# Matches a line of SASS: its address, and its instruction without the predicate.
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/ +(?:{ *)?(?:@!?\w+ +)?([A-Z][^;]*);")
# Matches a branch and the address that it jumps to.
BRANCH = re.compile(r"BRA.* 0x([0-9a-f]+)")


def record_kernels(work: Callable[[], Any]) -> tuple[Any, dict[str, Any]]:
    """Return the result of `work()`, and {"kernels": [resources, ...]} for each kernel
    that it launched and that computes attention scores, or {} if there is none.
    """
    launched, describe = {}, CompiledKernel.launch_metadata

    def launch_metadata(kernel: Any, *arguments: Any) -> Any:
        launched[kernel] = None
        return describe(kernel, *arguments)

    with (
        mock.patch.object(CompiledKernel, "launch_metadata", launch_metadata),
        # If a hook is set, `relaunch` lets Triton launch.
        mock.patch.object(knobs.runtime, "launch_enter_hook", lambda metadata: None),
    ):
        result = work()
    kernels = [x for x in map(kernel_resources, launched) if x["per_score"]]
    return result, {"kernels": kernels} if kernels else {}


def kernel_resources(kernel: Any) -> dict[str, Any]:
    """Return {resource: value} of a CompiledKernel; `stack_bytes` are mostly spills."""
    sass = run_cuobjdump("-sass", kernel.asm["cubin"])
    return {
        "kernel": kernel.name,
        "registers": kernel.n_regs,
        "stack_bytes": 4 * kernel.n_spills,
        "shared_bytes": kernel.metadata.shared,
        "warps": kernel.metadata.num_warps,
        "per_score": instructions_per_score(sass),
    }


def run_cuobjdump(option: str, cubin: bytes) -> str:
    """Return what Triton's copy of cuobjdump prints for `cubin` with an `option`."""
    reader = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        line = [str(reader), option, file.name]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout


def find_loops(assembly: str) -> Iterator[list[str]]:
    """Yield the instructions of each loop in SASS that has matmuls and exponentials."""
    listing = [(int(at, 16), text) for at, text in INSTRUCTION.findall(assembly)]
    for i, (address, text) in enumerate(listing):
        branch = BRANCH.match(text)
        if branch and int(branch[1], 16) < address:
            start = int(branch[1], 16)
            body = [text for at, text in listing[: i + 1] if at >= start]
            if count_ops(body, "MMA") and count_ops(body, "MUFU.EX2"):
                yield body


def count_ops(body: list[str], name: str) -> int:
    """Count the instructions of a loop whose text contains `name`, such as "MMA"."""
    return sum(name in text for text in body)


def instructions_per_score(assembly: str) -> float:
    """Return instructions per exponential in the shortest loop found in SASS, or 0."""
    body = min(find_loops(assembly), key=len, default=[])
    return round(len(body) / count_ops(body, "MUFU.EX2"), 2) if body else 0.0

"""What the attention kernels need of a GPU that is not here, by compiling them for it.

Launchers, launch configurations and Triton's compiler are the real ones. Only the
driver is none: it claims to be the wanted GPU, notes what it is given to load, and
launches nothing. `tools/tune_flash.py --compile-only` prints the table.
"""

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from systems.attention.triton.configs import CONFIGS, architecture, for_mask, padded
from systems.attention.triton.launches import (
    backward_launches,
    forward_launches,
    launch_backward,
    launch_forward,
)

KIB = 1024


class Gpu(NamedTuple):
    """What kernels may have of it, by CUDA's programming guide: bytes of shared memory
    in a block and in a streaming multiprocessor (SM), warps and blocks in an SM; and
    how many SMs it has.
    """

    capability: tuple[int, int]
    block_bytes: int
    sm_bytes: int
    sm_warps: int
    sm_blocks: int
    sms: int


GPUS = {
    "a100": Gpu((8, 0), 163 * KIB, 164 * KIB, 64, 32, 108),
    "rtx3090": Gpu((8, 6), 99 * KIB, 100 * KIB, 48, 16, 82),
    "rtx4090": Gpu((8, 9), 99 * KIB, 100 * KIB, 48, 24, 128),
    "h100": Gpu((9, 0), 227 * KIB, 228 * KIB, 64, 32, 132),
    "b200": Gpu((10, 0), 227 * KIB, 228 * KIB, 64, 32, 148),
    "rtx5090": Gpu((12, 0), 99 * KIB, 100 * KIB, 48, 24, 170),
}
# By arithmetic, the dtype of q, k and v.
DTYPES = {"half": torch.bfloat16, "high": torch.float32, "highest": torch.float32}
# So many rows that both of Hopper's backward passes take them.
BATCH, HEADS, N = 8, 16, 4096


class Needs(NamedTuple):
    """What a compiled kernel needs; `stack_bytes` of a thread are mostly registers that
    were spilled, `per_score` the instructions of its loop for each exponential.
    `load_bytes`: how much at a time a thread loads or copies from the GPU's memory, of
    all such instructions, each width once.
    """

    kernel: str
    tile: str
    warps: int
    shared_bytes: int
    registers: int
    stack_bytes: int
    per_score: float = 0.0
    load_bytes: tuple[int, ...] = ()

    def programs(self, gpu: Gpu) -> int:
        """How many of them run on an SM at a time. Registers are given to a warp in
        units of 256, of the 16,384 of each of four parts of an SM; CUDA keeps a KiB of
        shared memory for itself.
        """
        of_warp = -(-self.registers * 32 // 256) * 256
        return min(
            4 * (16384 // of_warp) // self.warps,
            gpu.sm_bytes // (self.shared_bytes + KIB),
            gpu.sm_warps // self.warps,
            gpu.sm_blocks,
        )


def read_binary(option: str, cubin: bytes) -> str:
    """What NVIDIA's reader of binaries, which comes with Triton, says of a kernel."""
    reader = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        line = [str(reader), option, file.name]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout


def resources(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack of a thread."""
    said = read_binary("-res-usage", cubin)
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found, said
    return int(found[1]), int(found[2])


# An address and an instruction without its predicate; where a branch leads.
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/ +(?:{ *)?(?:@!?\w+ +)?([A-Z][^;]*);")
BRANCH = re.compile(r"BRA.* 0x([0-9a-f]+)")


def instructions_per_score(assembly: str) -> float:
    """Instructions of the shortest loop with products and exponentials, for each of its
    exponentials: what a thread does for a score. 0 where there is no such loop.
    """
    found = [(int(at, 16), what) for at, what in INSTRUCTION.findall(assembly)]
    loops = []
    for i, (at, what) in enumerate(found):
        to = BRANCH.match(what)
        if to and int(to[1], 16) < at:
            body = [x for start, x in found[: i + 1] if start >= int(to[1], 16)]
            exponentials = sum(x.startswith("MUFU.EX2") for x in body)
            if exponentials and any("MMA" in x for x in body):
                loops.append((len(body), exponentials))
    return round(min(loops)[0] / min(loops)[1], 2) if loops else 0.0


# Loads of global memory, and copies from it to shared memory that a thread issues.
LOAD = re.compile(r"\b(?:LDG|LDGSTS)\.E([.\w]*)")
WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}


def load_bytes(assembly: str) -> tuple[int, ...]:
    """Bytes that loads of a thread take at a time, each once; what names no width takes
    four.
    """
    found = {
        next((WIDTHS[x] for x in suffixes.split(".") if x in WIDTHS), 4)
        for suffixes in LOAD.findall(assembly)
    }
    return tuple(sorted(found))


class Driver:
    """Triton's driver of a GPU that is not here."""

    def __init__(self, gpu: Gpu):
        self.arch = 10 * gpu.capability[0] + gpu.capability[1]
        self.loaded: list[Needs] = []
        self.source: Any = None
        self.metadata: Any = None
        # Whether a kernel fits is for the reader of the table.
        self.utils = SimpleNamespace(
            get_device_properties=lambda device: {"max_shared_mem": 2**30},
            load_binary=self.load,
            unload_module=lambda module: None,
        )

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self) -> int:
        # What was compiled for another GPU is not taken for this one.
        return self.arch

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")

    def map_python_to_cpp_type(self, of: str) -> str:
        return of

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        self.source, self.metadata = source, metadata
        return lambda *arguments: None

    def load(self, name: str, cubin: bytes, shared: int, device: int) -> tuple:
        registers, stack = resources(cubin)
        names = self.source.fn.arg_names
        given = {names[i]: value for (i, *_), value in self.source.constants.items()}
        sizes = {x: given[x] for x in ("BQ", "BK", "GROUPS", "ROWS") if x in given}
        tile = " ".join(f"{x}={value}" for x, value in sizes.items())
        warps = self.metadata.num_warps
        assembly = read_binary("-sass", cubin)
        needs = Needs(
            name, tile, warps, shared, registers, stack,
            instructions_per_score(assembly), load_bytes(assembly),
        )  # fmt: skip
        self.loaded.append(needs)
        return "module", "function", registers, 0, 1024


def loaded_by(
    gpu: Gpu, launch: Callable[..., object], *arguments: Any, **options: Any
) -> list[Needs] | str:
    """What this launcher loads for tensors on the meta device, or why it does not
    compile. Leaves the process with a driver that launches nothing, and torch with the
    properties of this GPU.
    """
    there: Any = Driver(gpu)
    driver.set_active(there)
    major, minor = gpu.capability
    there_is = SimpleNamespace(multi_processor_count=gpu.sms, major=major, minor=minor)
    torch.cuda.get_device_properties = lambda device: there_is
    try:
        launch(*arguments, **options)
    except Exception as error:
        # The compiler's errors are many; each is an answer.
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        return f"{launch.__module__}.{launch.__name__}: {said}"
    return there.loaded


def inputs(arithmetic: str, d: int) -> tuple[list[Tensor], Tensor]:
    """q, k, v, o and do (BATCH, HEADS, N, d) and lse, without memory."""
    shape, dtype = (BATCH, HEADS, N, d), DTYPES[arithmetic]
    lse = torch.empty(shape[:-1], device="meta")
    return [torch.empty(shape, dtype=dtype, device="meta") for _ in range(5)], lse


def compile_for(
    gpu: Gpu, arithmetic: str, d: int, causal: bool
) -> Iterator[list[Needs] | str]:
    """What the forward and the backward pass of the kernels for any GPU load, with the
    configurations that the table has for many rows on this one.
    """
    # What was launched on another GPU is compiled anew.
    forward_launches.cache_clear()
    backward_launches.cache_clear()
    (q, k, v, o, do), lse = inputs(arithmetic, d)
    passes = CONFIGS[architecture(gpu.capability)][arithmetic]
    forward, dq, dkdv = (
        for_mask(passes[name][padded(d)], causal) for name in ("forward", "dq", "dkdv")
    )
    options = causal, d**-0.5
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if arithmetic == "high" else "highest")
    try:
        yield loaded_by(
            gpu, launch_forward, q, k, v, *options,
            config=forward, splits=1, head_swizzle=1,
        )  # fmt: skip
        yield loaded_by(
            gpu, launch_backward, do, q, k, v, o, lse, *options, dkdv_config=dkdv,
            dq_config=dq, dkdv_splits=1, dq_splits=1, head_swizzle=1,
        )  # fmt: skip
    finally:
        torch.set_float32_matmul_precision(before)

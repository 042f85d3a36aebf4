"""Compile the attention kernels for a GPU that is not installed, and return the shared
memory, registers and spills of each kernel.

Launchers, launch configurations and Triton's compiler are the real ones. Only the
driver is a stand-in: it reports the requested GPU, records each kernel that Triton
loads, and launches nothing. Tests compile the kernels of each kind of GPU this way.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from systems.attention.hopper import launches as hopper
from systems.attention.hopper import one_pass_launches
from systems.attention.hopper.walks import OrderedWalk, ShiftWalk
from systems.attention.triton import launches
from systems.attention.triton.chooser import pad_head_dim, select_by_mask, table_name
from systems.attention.triton.configs import Config
from systems.attention.triton.tables import CONFIGS, FEW_ROWS
from systems.profiling.compiled_kernels import (
    count_ops,
    find_loops,
    instructions_per_score,
    run_cuobjdump,
)
from systems.running.machine import triton_cache_folder, why_unwritable
from tools.render.occupancy import Target
from tools.rendering import fail

# The dtype of q, k and v for each arithmetic (matmul precision) of the kernels.
DTYPES = {"half": torch.bfloat16, "high": torch.float32, "highest": torch.float32}
# Shape of the inputs, large enough for Hopper's one-pass and two-pass backward.
BATCH, HEADS, N = 8, 16, 4096
# Matches a load from global memory to registers (LDG) or to shared memory (LDGSTS).
LOAD = re.compile(r"\b(?:LDG|LDGSTS)\.E([.\w]*)")
LOAD_BYTES = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}


class KernelNeeds(NamedTuple):
    """Resources of a compiled kernel: `tile` such as "BQ=64 BK=64", registers and stack
    bytes (mostly spills) per thread, shared bytes per block, instructions per score,
    `load_bytes` from `global_load_widths`, and `loop` from `hottest_loop`.
    """

    kernel: str
    tile: str
    warps: int
    shared_bytes: int
    registers: int
    stack_bytes: int
    per_score: float = 0.0
    load_bytes: tuple[int, ...] = ()
    loop: Mapping[str, int] = MappingProxyType({})


# The resources of each kernel that a launch compiled, or the compiler's error.
Result = list[KernelNeeds] | str


class StandInDriver:
    """Triton's driver for a GPU that is not installed."""

    def __init__(self, gpu: Target):
        self.arch = 10 * gpu.capability[0] + gpu.capability[1]
        self.kernels: list[KernelNeeds] = []
        self.source: Any = None
        self.metadata: Any = None
        self.utils = SimpleNamespace(
            # Report 1 GiB, so that kernels that need too much shared memory compile.
            get_device_properties=lambda device: {"max_shared_mem": 2**30},
            load_binary=self.record_kernel,
            unload_module=lambda module: None,
        )

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self) -> int:
        # Triton caches kernels by device, so each kind of GPU needs its own number.
        return self.arch

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("meta")

    def map_python_to_cpp_type(self, name: str) -> str:
        return name

    def launcher_cls(self, source: Any, metadata: Any) -> Callable[..., None]:
        self.source, self.metadata = source, metadata
        return lambda *arguments: None

    def record_kernel(self, name: str, cubin: bytes, shared: int, device: int) -> tuple:
        registers, stack = count_resources(cubin)
        names = self.source.fn.arg_names
        constants = {names[i]: v for (i, *_), v in self.source.constants.items()}
        sizes = ("BQ", "BK", "GROUPS", "ROWS")
        tile = " ".join(f"{x}={constants[x]}" for x in sizes if x in constants)
        assembly = run_cuobjdump("-sass", cubin)
        needs = KernelNeeds(
            name, tile, self.metadata.num_warps, shared, registers, stack,
            instructions_per_score(assembly), global_load_widths(assembly),
            hottest_loop(assembly),
        )  # fmt: skip
        self.kernels.append(needs)
        return "module", "function", registers, stack // 4, 1024


def count_resources(cubin: bytes) -> tuple[int, int]:
    """Return the registers and the stack bytes per thread of a compiled kernel."""
    output = run_cuobjdump("-res-usage", cubin)
    match = re.search(r"REG:(\d+) STACK:(\d+)", output)
    assert match, output
    return int(match[1]), int(match[2])


def hottest_loop(assembly: str) -> dict[str, int]:
    """Count instructions, register spills and reloads in the loop over unmasked tiles,
    which has the fewest instructions per matmul. Return {} if there is no loop.
    """
    bodies = find_loops(assembly)
    body = min(bodies, key=lambda body: len(body) / count_ops(body, "MMA"), default=[])
    if not body:
        return {}
    return {
        "instructions": len(body),
        "spilled": count_ops(body, "STL"),
        "reloaded": count_ops(body, "LDL"),
    }


def global_load_widths(assembly: str) -> tuple[int, ...]:
    """Return the distinct widths of loads from global memory, in bytes per thread."""
    widths = {
        next((LOAD_BYTES[x] for x in suffixes.split(".") if x in LOAD_BYTES), 4)
        for suffixes in LOAD.findall(assembly)
    }
    return tuple(sorted(widths))


def check_can_compile() -> None:
    """Exit if Triton would interpret kernels, or can't store compiled kernels."""
    if knobs.runtime.interpret:
        fail("the interpreter compiles nothing: unset TRITON_INTERPRET")
    if fault := why_unwritable(triton_cache_folder()):
        fail(fault)


def compile_launch(
    gpu: Target, launch: Callable[..., object], *arguments: Any, **options: Any
) -> Result:
    """Call `launch`, compiling for `gpu`; return resources of its kernels, or an error.
    The stand-in driver stays active, so later launches in this process do nothing.
    """
    stand_in: Any = StandInDriver(gpu)
    driver.set_active(stand_in)
    major, minor = gpu.capability
    properties = SimpleNamespace(
        multi_processor_count=gpu.sms, major=major, minor=minor, name="not here"
    )
    torch.cuda.get_device_properties = lambda device: properties
    torch.cuda.is_current_stream_capturing = lambda: False
    try:
        launch(*arguments, **options)
    except Exception as error:
        # The compiler raises errors of many types, and each is a result.
        message = f"{type(error).__name__}: {error}".splitlines()[0]
        return f"{getattr(launch, '__name__', launch)}: {message}"
    return stand_in.kernels


def meta_inputs(arithmetic: str, d: int) -> tuple[list[Tensor], Tensor]:
    """Return q, k, v, o, do (BATCH, HEADS, N, d) and lse on the meta device."""
    shape, dtype = (BATCH, HEADS, N, d), DTYPES[arithmetic]
    lse = torch.empty(shape[:-1], device="meta")
    return [torch.empty(shape, dtype=dtype, device="meta") for _ in range(5)], lse


def list_table_configs(
    gpu: Target, arithmetic: str, d: int, causal: bool
) -> list[dict[str, Config]]:
    """Return [{kernel: configuration} for many rows, then for each few-rows tier]."""
    name, size = table_name(gpu.capability), pad_head_dim(d)
    many = {kernel: by_d[size] for kernel, by_d in CONFIGS[name][arithmetic].items()}
    few = [
        {kernel: by_d.get(size, many[kernel]) for kernel, by_d in tier.configs.items()}
        for tier in FEW_ROWS[name].get(arithmetic, ())
        if any(size in by_d for by_d in tier.configs.values())
    ]
    return [
        {kernel: select_by_mask(entry, causal) for kernel, entry in configs.items()}
        for configs in (many, *few)
    ]


def compile_portable(
    gpu: Target,
    arithmetic: str,
    d: int,
    causal: bool,
    configs: Mapping[str, Config] | None = None,
    splits: int = 1,
) -> Iterator[Result]:
    """Compile the portable Triton kernels; yield a Result for forward, then backward.
    `configs`, {kernel: configuration}, defaults to the tables' for many rows. If
    `splits` > 1, also compile the kernels that combine the splits' partial results.
    """
    configs = configs or list_table_configs(gpu, arithmetic, d, causal)[0]
    # Cached launches may hold kernels that were compiled for another GPU.
    launches.forward_launches.cache_clear()
    launches.backward_launches.cache_clear()
    (q, k, v, o, do), lse = meta_inputs(arithmetic, d)
    options = causal, d**-0.5
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if arithmetic == "high" else "highest")
    try:
        yield compile_launch(
            gpu, launches.launch_forward, q, k, v, *options,
            config=configs["forward"], splits=splits, head_swizzle=1,
        )  # fmt: skip
        yield compile_launch(
            gpu, launches.launch_backward, do, q, k, v, o, lse, *options,
            dkdv_config=configs["dkdv"], dq_config=configs["dq"], dkdv_splits=splits,
            dq_splits=splits, head_swizzle=1,
        )  # fmt: skip
    finally:
        torch.set_float32_matmul_precision(before)


def compile_hopper(gpu: Target, d: int, causal: bool) -> Iterator[Result]:
    """Yield a Result for bf16 forward, two-pass backward, each one-pass backward."""
    hopper.plan_forward.cache_clear()
    hopper.plan_two_passes.cache_clear()
    one_pass_launches.plan_one_pass.cache_clear()
    (q, k, v, o, do), lse = meta_inputs("half", d)
    options = causal, d**-0.5
    backward = do, q, k, v, o, lse, *options
    yield compile_launch(gpu, hopper.launch_forward, q, k, v, *options)
    yield compile_launch(gpu, hopper.launch_two_passes, *backward)
    for walk in (ShiftWalk(1), OrderedWalk(1, 1)):
        yield compile_launch(gpu, one_pass_launches.launch_one_pass, *backward, walk)

"""Compile the attention kernels for a GPU that is not installed, and print what each
needs: shared memory, registers, spills, thread blocks per SM.

    python tools/compile_ahead.py --gpu a100

compiles every launch configuration that the kernels may get on an A100. This takes
minutes and no GPU. The exit code is 2 if a kernel does not compile, does not fit or
spills too much.

Launchers, launch configurations and Triton's compiler are the real ones. Only the
driver is a stand-in: it reports the requested GPU, records each kernel that Triton
loads, and launches nothing.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Annotated, Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from systems import need, run_as_command

if __name__ == "__main__":
    need("torch", "triton", "typer", "rich", "msgspec")

import torch
import triton
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from systems.attention.hopper import launches as hopper
from systems.attention.hopper import one_pass_launches
from systems.attention.hopper.limits import TILE_DIMS
from systems.attention.hopper.walks import Ordered, Shift
from systems.attention.triton.chooser import architecture, pad_head_dim, select_by_mask
from systems.attention.triton.configs import Config
from systems.attention.triton.launches import (
    backward_launches,
    forward_launches,
    launch_backward,
    launch_forward,
)
from systems.attention.triton.tables import CONFIGS, FEW_ROWS
from systems.attention.triton.tuned import HEAD_DIMS
from systems.formulas.chips import KIB
from systems.running.caches import compiled_folder, unwritable
from tools.binary import (
    count_resources,
    hottest_loop,
    instructions_per_score,
    load_widths,
    read_binary,
)
from tools.rendering import stop


class Target(NamedTuple):
    """A kind of GPU with limits from CUDA's programming guide: bytes of shared memory
    per thread block and per SM, warps and thread blocks per SM, and number of SMs.
    """

    name: str
    capability: tuple[int, int]
    block_bytes: int
    sm_bytes: int
    sm_warps: int
    sm_blocks: int
    sms: int


TARGETS = {
    "a100": Target("A100", (8, 0), 163 * KIB, 164 * KIB, 64, 32, 108),
    "rtx3090": Target("RTX 3090, A10", (8, 6), 99 * KIB, 100 * KIB, 48, 16, 82),
    "rtx4090": Target("RTX 4090, L4, L40S", (8, 9), 99 * KIB, 100 * KIB, 48, 24, 128),
    "h100": Target("H100, H200", (9, 0), 227 * KIB, 228 * KIB, 64, 32, 132),
    "b200": Target("B200", (10, 0), 227 * KIB, 228 * KIB, 64, 32, 148),
    "rtx5090": Target("RTX 5090", (12, 0), 99 * KIB, 100 * KIB, 48, 24, 170),
}

# The most bytes of stack per thread, by arithmetic, and the largest share of a hot
# loop's instructions that spill registers or reload them. With several limbs per number
# some registers are spilled at any tile size.
MAX_STACK_BYTES = {"half": 640, "high": 1024, "highest": 4096}
MAX_SPILL_SHARE = {"half": 0.05, "high": 0.05, "highest": 0.2}
# Kernels whose configuration spills more but was the fastest when timed on an H100
# or H200: arithmetic, kernel, padded head dimension.
FAST_DESPITE_SPILLS = {
    *(("half", "forward", d) for d in (64, 128)),
    *(("half", "dkdv", d) for d in (128, 256)),
    *product(("high", "highest"), ("forward", "dq", "dkdv"), (256,)),
}
# Splits of the loops in short inputs. The chooser takes any power of two, and each
# compiles to a kernel of its own; this one stands for all.
SPLITS = 4
# The dtype of q, k and v by arithmetic.
DTYPES = {"half": torch.bfloat16, "high": torch.float32, "highest": torch.float32}
# Large enough for both of Hopper's backward passes.
BATCH, HEADS, N = 8, 16, 4096


class KernelNeeds(NamedTuple):
    """What a compiled kernel needs. `stack_bytes` per thread are mostly spilled
    registers, `per_score` counts instructions of the loop per exponential, `load_bytes`
    lists the widths of loads from global memory, `loop` is `binary.hottest_loop`, and
    `tensor_columns` counts columns of a B200's tensor memory.
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
    tensor_columns: int = 0

    def blocks_per_sm(self, gpu: Target) -> int:
        """Return how many thread blocks of this kernel fit on one SM.

        A warp gets registers in units of 256, out of 16,384 in each of an SM's four
        partitions. CUDA reserves 1 KiB of shared memory per block, and tensor memory
        has 512 columns.
        """
        registers_per_warp = -(-self.registers * 32 // 256) * 256
        return min(
            4 * (16384 // registers_per_warp) // self.warps,
            gpu.sm_bytes // (self.shared_bytes + KIB),
            512 // max(1, self.tensor_columns),
            gpu.sm_warps // self.warps,
            gpu.sm_blocks,
        )


# The kernels that a launch loads, or the compiler's error.
Result = list[KernelNeeds] | str


class StandInDriver:
    """Triton's driver for a GPU that is not installed."""

    def __init__(self, gpu: Target):
        self.arch = 10 * gpu.capability[0] + gpu.capability[1]
        self.kernels: list[KernelNeeds] = []
        self.source: Any = None
        self.metadata: Any = None
        self.utils = SimpleNamespace(
            # Let kernels compile that do not fit: `find_faults` reports them.
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
        constants = {
            names[i]: value for (i, *_), value in self.source.constants.items()
        }
        sizes = ("BQ", "BK", "GROUPS", "ROWS")
        tile = " ".join(f"{x}={constants[x]}" for x in sizes if x in constants)
        assembly = read_binary("-sass", cubin)
        needs = KernelNeeds(
            name, tile, self.metadata.num_warps, shared, registers, stack,
            instructions_per_score(assembly), load_widths(assembly),
            hottest_loop(assembly), getattr(self.metadata, "tmem_size", None) or 0,
        )  # fmt: skip
        self.kernels.append(needs)
        return "module", "function", registers, 0, 1024


def require_compiler() -> None:
    """Exit with one line if Triton would interpret kernels or can't store them."""
    if knobs.runtime.interpret:
        stop("the interpreter compiles nothing: unset TRITON_INTERPRET")
    if fault := unwritable(compiled_folder()):
        stop(fault)


def compile_launch(
    gpu: Target, launch: Callable[..., object], *arguments: Any, **options: Any
) -> Result:
    """Return the kernels that a launcher loads for tensors on the meta device.

    The process keeps the stand-in driver, and torch reports this GPU from then on.
    """
    stand_in: Any = StandInDriver(gpu)
    driver.set_active(stand_in)
    major, minor = gpu.capability
    properties = SimpleNamespace(
        multi_processor_count=gpu.sms, major=major, minor=minor, name="not here"
    )
    torch.cuda.get_device_properties = lambda device: properties
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


def table_configs(
    gpu: Target, arithmetic: str, d: int, causal: bool
) -> list[dict[str, Config]]:
    """Return the table's configurations by kernel: for many rows, then for few."""
    name, size = architecture(gpu.capability), pad_head_dim(d)
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
    """Compile the forward and the backward pass of the kernels for any GPU, by default
    with the table's configurations for many rows. With `splits` above 1, also the
    kernels that combine the splits.
    """
    configs = configs or table_configs(gpu, arithmetic, d, causal)[0]
    # A cached launch would hold kernels of another GPU.
    forward_launches.cache_clear()
    backward_launches.cache_clear()
    (q, k, v, o, do), lse = meta_inputs(arithmetic, d)
    options = causal, d**-0.5
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if arithmetic == "high" else "highest")
    try:
        yield compile_launch(
            gpu, launch_forward, q, k, v, *options,
            config=configs["forward"], splits=splits, head_swizzle=1,
        )  # fmt: skip
        yield compile_launch(
            gpu, launch_backward, do, q, k, v, o, lse, *options,
            dkdv_config=configs["dkdv"], dq_config=configs["dq"], dkdv_splits=splits,
            dq_splits=splits, head_swizzle=1,
        )  # fmt: skip
    finally:
        torch.set_float32_matmul_precision(before)


def compile_hopper(gpu: Target, d: int, causal: bool) -> Iterator[Result]:
    """Compile the Hopper kernels for 16-bit inputs: the forward pass, the backward pass
    in two kernels, and the one-pass backward with either walk.
    """
    hopper.plan_forward.cache_clear()
    hopper.plan_backward.cache_clear()
    one_pass_launches.plan_one_pass.cache_clear()
    (q, k, v, o, do), lse = meta_inputs("half", d)
    options = causal, d**-0.5
    backward = do, q, k, v, o, lse, *options
    yield compile_launch(gpu, hopper.launch_forward, q, k, v, *options)
    yield compile_launch(gpu, hopper.launch_two_passes, *backward)
    for walk in (Shift(1), Ordered(1, 1)):
        yield compile_launch(gpu, one_pass_launches.launch_one_pass, *backward, walk)


def find_faults(
    gpu: Target, arithmetic: str, d: int, needs: KernelNeeds
) -> Iterator[str]:
    """Yield what is wrong with a compiled kernel: it needs too much shared memory or,
    for kernels of the tables, it spills too much and was never timed.
    """
    if needs.shared_bytes > gpu.block_bytes:
        yield (
            f"needs {needs.shared_bytes} bytes of shared memory, a block has "
            f"{gpu.block_bytes}"
        )
    kernel = needs.kernel.removesuffix("_kernel")
    is_timed = (arithmetic, kernel, pad_head_dim(d)) in FAST_DESPITE_SPILLS
    if (
        not needs.loop
        or arithmetic == HOPPER
        or (gpu.capability == (9, 0) and is_timed)
    ):
        return
    if needs.stack_bytes > (most := MAX_STACK_BYTES[arithmetic]):
        yield f"has {needs.stack_bytes} bytes of stack, more than {most}"
    loop = needs.loop
    if arithmetic == "half" and loop["spilled"]:
        yield f"spills {loop['spilled']} times in its hottest loop"
    spills = loop["spilled"] + loop["reloaded"]
    if spills > MAX_SPILL_SHARE[arithmetic] * loop["instructions"]:
        yield f"spills or reloads in {spills} of {loop['instructions']} instructions"


# The name of the Hopper kernels in the column of arithmetics.
HOPPER = "half, hopper"


class Case(NamedTuple):
    """Kernels to compile together. `results` compiles as it is iterated."""

    arithmetic: str
    d: int
    causal: bool
    results: Iterator[Result]


def compile_cases(gpu: Target, arithmetic: str, d: int, causal: bool) -> Iterator[Case]:
    """Yield all that the chooser may give this GPU: kernels for many rows, kernels with
    split loops for few and, on a Hopper GPU, the Hopper kernels.
    """
    which = arithmetic, d, causal
    many, *few = table_configs(gpu, *which)
    yield Case(*which, compile_portable(gpu, *which, many))
    for configs in few or [many]:
        yield Case(*which, compile_portable(gpu, *which, configs, SPLITS))
    is_hopper = gpu.capability == (9, 0) and arithmetic == "half"
    if is_hopper and d in TILE_DIMS.values():
        yield Case(HOPPER, d, causal, compile_hopper(gpu, d, causal))


def main(
    gpu: Annotated[str, typer.Option(help=f"{', '.join(TARGETS)}.")] = "a100",
    arithmetic: Annotated[
        list[str], typer.Option(help="half, high or highest; may be repeated.")
    ] = list(DTYPES),  # noqa: B006
    d: Annotated[
        list[int], typer.Option(help="Head dimension; may be repeated.")
    ] = sorted(HEAD_DIMS),  # noqa: B006
) -> None:
    """Compile what the chooser may give this GPU and print what each kernel needs."""
    if gpu not in TARGETS:
        stop(f"--gpu {gpu}: is none of {', '.join(TARGETS)}")
    require_compiler()
    target, faults = TARGETS[gpu], []
    table = Table(
        "arithmetic", "d", "mask", "kernel", "tile", "warps", "shared KiB",
        "registers", "stack B", "spills", "per score", "per SM",
    )  # fmt: skip
    cases = [
        case
        for kind, size, causal in product(arithmetic, d, (True, False))
        for case in compile_cases(target, kind, size, causal)
    ]
    for case in track(cases, gpu, console=Console(stderr=True), transient=True):
        mask = "causal" if case.causal else "full"
        label = f"{case.arithmetic} d={case.d} {mask}"
        for result in case.results:
            if isinstance(result, str):
                faults.append(f"{label}: {result}")
                continue
            for needs in result:
                spills = sum(needs.loop.get(x, 0) for x in ("spilled", "reloaded"))
                cells = (
                    case.arithmetic, case.d, mask, needs.kernel, needs.tile,
                    needs.warps, f"{needs.shared_bytes / KIB:.1f}", needs.registers,
                    needs.stack_bytes, spills, needs.per_score,
                    needs.blocks_per_sm(target),
                )  # fmt: skip
                table.add_row(*map(str, cells))
                faults += [
                    f"{label}: {needs.kernel} {needs.tile} {fault}"
                    for fault in find_faults(target, case.arithmetic, case.d, needs)
                ]
    console = Console(width=None if sys.stdout.isatty() else 130)
    console.print(f"Triton {triton.__version__}, {gpu}", table)
    for fault in faults:
        print(f"error: {fault}")
    raise typer.Exit(2 if faults else 0)


if __name__ == "__main__":
    assert __doc__
    run_as_command(main, __doc__)

"""Compile the attention kernels for a GPU that is not here, and say what each needs:
shared memory, registers, spills, programs on an SM.

    python tools/compile_ahead.py --gpu a100

compiles every launch configuration that the kernels may get on an A100, in minutes and
without a GPU. The exit code is 2 where one does not compile, does not fit, spills or
computes a matmul twice.

Launchers, launch configurations and Triton's compiler are the real ones. Only the
driver is a stand-in: it claims to be the wanted GPU, notes what it is given to load,
and launches nothing.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
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
    LIMBS,
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
    hottest_loop,
    instructions_per_score,
    load_bytes,
    read_binary,
    resources,
)
from tools.rendering import stop


class Target(NamedTuple):
    """A kind of GPU: the names of the cards, and by CUDA's programming guide the bytes
    of shared memory of a block and of an SM, the warps and blocks of an SM, and the
    number of SMs.
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

# What a thread may spill, in bytes, and in a step of its hottest loop, in instructions
# that write registers to the stack or read them back, as a share of the loop's. With
# two or three limbs for each number some is spilled whatever the tile.
MOST_STACK = {"half": 640, "high": 1024, "highest": 4096}
MOST_RELOADED = {"half": 0.05, "high": 0.05, "highest": 0.2}
# What was timed on an H200 and is fastest though it spills more, or computes products
# more than once: by arithmetic, kernel and padded head dimension.
TIMED = {
    *(("half", "forward", d) for d in (64, 128)),
    *(("half", "dkdv", d) for d in (128, 256)),
    *product(("high", "highest"), ("forward", "dq", "dkdv"), (256,)),
}
# Into how many splits the loops of few rows go here: one of the powers of two that are
# chosen, and each is compiled for itself.
SPLITS = 4
# By arithmetic, the dtype of q, k and v.
DTYPES = {"half": torch.bfloat16, "high": torch.float32, "highest": torch.float32}
# Matmuls of a tile of queries and one of keys in each kernel, and the matmuls on tensor
# cores that one of numbers in so many limbs takes.
MATMULS = {"forward": 2, "dq": 3, "dkdv": 4}
OF_LIMBS = {1: 1, 2: 3, 3: 6}
# So many rows that both of Hopper's backward passes take them.
BATCH, HEADS, N = 8, 16, 4096


class Needs(NamedTuple):
    """What a compiled kernel needs; `stack_bytes` of a thread are mostly registers that
    were spilled, `per_score` the instructions of its loop for each exponential.
    `load_bytes`: how much at a time a thread loads or copies from the GPU's memory, of
    all such instructions, each width once. `loop`: what `binary.hottest_loop` counts.
    `tensor_columns`: those of the memory that a B200's tensor cores have of their own.
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

    def programs(self, gpu: Target) -> int:
        """How many of them run on an SM at a time. Registers are given to a warp in
        units of 256, of the 16,384 of each of four parts of an SM; CUDA keeps a KiB of
        shared memory for itself. Of the tensor cores' memory there are 512 columns.
        """
        of_warp = -(-self.registers * 32 // 256) * 256
        return min(
            4 * (16384 // of_warp) // self.warps,
            gpu.sm_bytes // (self.shared_bytes + KIB),
            512 // max(1, self.tensor_columns),
            gpu.sm_warps // self.warps,
            gpu.sm_blocks,
        )

    def repeats(self, arithmetic: str, d: int) -> float:
        """How often the hottest loop computes each of its matmuls: twice where two
        warps hold the same rows. 0 where the binary does not tell.
        """
        q, k = (int(size.split("=")[1]) for size in self.tile.split()[:2])
        matmuls = MATMULS[self.kernel.removesuffix("_kernel")]
        once = matmuls * OF_LIMBS[LIMBS[arithmetic]] * q * k * pad_head_dim(d)
        return self.warps * self.loop["products"] / once


class Driver:
    """Triton's driver of a GPU that is not here."""

    def __init__(self, gpu: Target):
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
            hottest_loop(assembly), getattr(self.metadata, "tmem_size", None) or 0,
        )  # fmt: skip
        self.loaded.append(needs)
        return "module", "function", registers, 0, 1024


def need_compiler() -> None:
    """End a command that compiles by one line where kernels would be interpreted, or
    can't be kept.
    """
    if knobs.runtime.interpret:
        stop("the interpreter compiles nothing: unset TRITON_INTERPRET")
    if fault := unwritable(compiled_folder()):
        stop(fault)


def loaded_by(
    gpu: Target, launch: Callable[..., object], *arguments: Any, **options: Any
) -> list[Needs] | str:
    """What this launcher loads for tensors on the meta device, or why it does not
    compile. Leaves the process with a driver that launches nothing, and torch with the
    properties of this GPU.
    """
    there: Any = Driver(gpu)
    driver.set_active(there)
    major, minor = gpu.capability
    there_is = SimpleNamespace(
        multi_processor_count=gpu.sms, major=major, minor=minor, name="not here"
    )
    torch.cuda.get_device_properties = lambda device: there_is
    try:
        launch(*arguments, **options)
    except Exception as error:
        # The compiler's errors are many; each is an answer.
        said = f"{type(error).__name__}: {error}".splitlines()[0]
        return f"{getattr(launch, '__name__', launch)}: {said}"
    return there.loaded


def inputs(arithmetic: str, d: int) -> tuple[list[Tensor], Tensor]:
    """q, k, v, o and do (BATCH, HEADS, N, d) and lse, without memory."""
    shape, dtype = (BATCH, HEADS, N, d), DTYPES[arithmetic]
    lse = torch.empty(shape[:-1], device="meta")
    return [torch.empty(shape, dtype=dtype, device="meta") for _ in range(5)], lse


def entries(
    gpu: Target, arithmetic: str, d: int, causal: bool
) -> list[dict[str, Config]]:
    """By kernel what the tables have for this GPU: for many rows, then for few."""
    name, size = architecture(gpu.capability), pad_head_dim(d)
    many = {kernel: by_d[size] for kernel, by_d in CONFIGS[name][arithmetic].items()}
    few = [
        {kernel: by_d.get(size, many[kernel]) for kernel, by_d in tier.configs.items()}
        for tier in FEW_ROWS[name].get(arithmetic, ())
        if any(size in by_d for by_d in tier.configs.values())
    ]
    return [
        {kernel: select_by_mask(entry, causal) for kernel, entry in passes.items()}
        for passes in (many, *few)
    ]


def compile_for(
    gpu: Target,
    arithmetic: str,
    d: int,
    causal: bool,
    passes: Mapping[str, Config] | None = None,
    splits: int = 1,
) -> Iterator[list[Needs] | str]:
    """What the forward and the backward pass of the kernels for any GPU load with these
    configurations, or those of the table for many rows. Where loops are split, also
    what combines and sums them.
    """
    passes = passes or entries(gpu, arithmetic, d, causal)[0]
    # What was launched on another GPU is compiled anew.
    forward_launches.cache_clear()
    backward_launches.cache_clear()
    (q, k, v, o, do), lse = inputs(arithmetic, d)
    options = causal, d**-0.5
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if arithmetic == "high" else "highest")
    try:
        yield loaded_by(
            gpu, launch_forward, q, k, v, *options,
            config=passes["forward"], splits=splits, head_swizzle=1,
        )  # fmt: skip
        yield loaded_by(
            gpu, launch_backward, do, q, k, v, o, lse, *options,
            dkdv_config=passes["dkdv"], dq_config=passes["dq"], dkdv_splits=splits,
            dq_splits=splits, head_swizzle=1,
        )  # fmt: skip
    finally:
        torch.set_float32_matmul_precision(before)


def compile_hopper(gpu: Target, d: int, causal: bool) -> Iterator[list[Needs] | str]:
    """The same of the kernels for Hopper, in 16 bits: the forward pass, the backward
    pass in two kernels, and in one by either walk. With a Triton, too, that they were
    not tested with.
    """
    for plan in (
        *(hopper.plan_forward, hopper.plan_backward),
        one_pass_launches.plan_one_pass,
    ):
        plan.cache_clear()
    (q, k, v, o, do), lse = inputs("half", d)
    options = causal, d**-0.5
    backward = do, q, k, v, o, lse, *options
    yield loaded_by(gpu, hopper.launch_forward, q, k, v, *options)
    yield loaded_by(gpu, hopper.launch_two_passes, *backward)
    for walk in (Shift(1), Ordered(1, 1)):
        yield loaded_by(gpu, one_pass_launches.launch_one_pass, *backward, walk)


def too_large(gpu: Target, needs: Needs) -> Iterator[str]:
    """What speaks against any compiled kernel: that it does not fit."""
    if needs.shared_bytes > gpu.block_bytes:
        yield (
            f"needs {needs.shared_bytes} bytes of shared memory, a block has "
            f"{gpu.block_bytes}"
        )


def faults(gpu: Target, arithmetic: str, d: int, needs: Needs) -> Iterator[str]:
    """What speaks against a compiled kernel of the table; nothing where it fits, spills
    little and computes each product once, or was timed and is fastest as it is.
    """
    yield from too_large(gpu, needs)
    if not needs.loop:
        return
    name = needs.kernel.removesuffix("_kernel")
    if gpu.capability == (9, 0) and (arithmetic, name, pad_head_dim(d)) in TIMED:
        return
    if needs.stack_bytes > MOST_STACK[arithmetic]:
        yield f"has {needs.stack_bytes} bytes of stack, of {MOST_STACK[arithmetic]}"
    loop = needs.loop
    if arithmetic == "half" and loop["spilled"]:
        yield f"spills {loop['spilled']} times in its hottest loop"
    spilled = loop["spilled"] + loop["reloaded"]
    if spilled > MOST_RELOADED[arithmetic] * loop["instructions"]:
        yield f"spills or reloads in {spilled} of {loop['instructions']} instructions"
    if (times := needs.repeats(arithmetic, d)) > 1.01:
        yield f"computes its products {times:.2f} times"


class Case(NamedTuple):
    """Kernels that are compiled for a GPU and judged together: `of` which arithmetic,
    and whose.
    """

    of: str
    d: int
    causal: bool
    compiled: Callable[[], Iterator[list[Needs] | str]]
    faults: Callable[[Needs], Iterator[str]]


def cases(gpu: Target, arithmetic: str, d: int, causal: bool) -> Iterator[Case]:
    """All that the chooser may give this GPU: for many rows and, with loops that are
    split, for few; and where it is a Hopper GPU, its own kernels.
    """
    of = gpu, arithmetic, d, causal
    judge = partial(faults, gpu, arithmetic, d)
    many, *few = entries(*of)
    yield Case(*of[1:], partial(compile_for, *of, many), judge)
    for passes in few or [many]:
        yield Case(*of[1:], partial(compile_for, *of, passes, SPLITS), judge)
    own = gpu.capability == (9, 0) and arithmetic == "half"
    if own and d in TILE_DIMS.values():
        compiled = partial(compile_hopper, gpu, d, causal)
        yield Case("half, hopper", d, causal, compiled, partial(too_large, gpu))


def main(
    gpu: Annotated[str, typer.Option(help=f"{', '.join(TARGETS)}.")] = "a100",
    arithmetic: Annotated[
        list[str], typer.Option(help="half, high or highest; may be repeated.")
    ] = list(DTYPES),  # noqa: B006
    d: Annotated[
        list[int], typer.Option(help="Head dimension; may be repeated.")
    ] = sorted(HEAD_DIMS),  # noqa: B006
) -> None:
    """Compile all that the chooser may give this GPU and print what it needs."""
    if gpu not in TARGETS:
        stop(f"--gpu {gpu}: is none of {', '.join(TARGETS)}")
    need_compiler()
    columns = ("arithmetic", "d", "mask", "kernel", "tile", "warps", "shared KiB")
    more = ("registers", "stack B", "spills", "per score", "per SM")
    table, wrong = Table(*columns, *more), []
    every = [
        case
        for kind, size, causal in product(arithmetic, d, (True, False))
        for case in cases(TARGETS[gpu], kind, size, causal)
    ]
    for case in track(every, gpu, console=Console(stderr=True), transient=True):
        mask = "causal" if case.causal else "full"
        for found in case.compiled():
            if isinstance(found, str):
                wrong.append(f"{case.of} d={case.d} {mask}: {found}")
                continue
            for needs in found:
                spills = sum(needs.loop.get(x, 0) for x in ("spilled", "reloaded"))
                cells = (
                    case.of, case.d, mask, needs.kernel, needs.tile, needs.warps,
                    f"{needs.shared_bytes / KIB:.1f}", needs.registers,
                    needs.stack_bytes, spills, needs.per_score,
                    needs.programs(TARGETS[gpu]),
                )  # fmt: skip
                table.add_row(*map(str, cells))
                where = f"{case.of} d={case.d} {mask}: {needs.kernel} {needs.tile}"
                wrong += [f"{where} {fault}" for fault in case.faults(needs)]
    console = Console(width=None if sys.stdout.isatty() else 130)
    console.print(f"Triton {triton.__version__}, {gpu}", table)
    for fault in wrong:
        print(f"error: {fault}")
    raise typer.Exit(2 if wrong else 0)


if __name__ == "__main__":
    assert __doc__
    run_as_command(main, __doc__)

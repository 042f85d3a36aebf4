"""Flash attention for Hopper GPUs: which inputs these kernels take, their launch
configurations, their launchers.

The kernels stand in `forward`, `backward` and, for the backward pass in one kernel,
`one_pass` with its walks `shift` and `ordered`. They are written in Gluon, the dialect
of Triton in which warps have roles and each copy, barrier and product is placed by
hand. They hold what the plain kernels promise (results that repeat bit by bit) and take
less: 16-bit dtypes, head dimensions from 40 to 128 in steps of 8, tensors that TMA can
read. `refusal` says what is missing for others, `is_faster` where it pays.
"""

from functools import cache, lru_cache, partial
from heapq import heapreplace
from itertools import accumulate
from typing import NamedTuple

import torch
import triton
from torch import Tensor
from triton import knobs

from systems.attention.relaunch import (
    Descriptor,
    Launch,
    Layout,
    ShapeAndStrides,
    empty_row_statistics,
    layout,
    on_device_of,
    rows_descriptor,
    shape_and_strides,
    statistics_descriptor,
)
from systems.attention.triton.configs import sm_count

# --8<-- [start:limits]
# Versions of Triton whose Gluon these kernels were tested with: the dialect changes
# from one to the next.
VERSIONS = ("3.6.",)
CAPABILITY = (9, 0)
# By head dimension that of its tiles, which the tables below go by: TMA fills them up
# with zeros, and leaves these out where it writes. It needs rows that begin at
# multiples of 16 bytes. Smaller head dimensions have smaller tiles in the plain
# kernels.
TILE_DIMS = {d: 64 if d <= 64 else 128 for d in range(40, 129, 8)}
DTYPES = (torch.float16, torch.bfloat16)
# With fewer scores the GPU may be done before the host has made TMA's descriptors,
# which the plain kernels don't need.
MIN_SCORES = 2**27
# With fewer queries of all heads together there are few more tiles than SMs, or fewer:
# some SMs would idle while others finish. The plain kernels split their loops then.
MIN_ROWS = 2**15
# --8<-- [end:limits]
# Of the L2 cache's 50 MiB, what the keys and values of heads that are walked through
# side by side may take.
L2_BYTES = 2**23
LOG2E = 1.4426950408889634


# --8<-- [start:configs]
class Config(NamedTuple):
    """`groups` x 64 rows stay in a program; tiles of `rows` stream past them through a
    ring of `stages`.
    """

    groups: int
    rows: int
    stages: int
    # Of each consumer's thread, and of all threads on average.
    registers: int = 240
    maxnreg: int = 168
    # Forward: P v of a step runs beside the softmax of the next in one consumer, not
    # only in the others.
    overlap: bool = True
    # dk and dv: k and v as the tensor cores' operands stay in registers.
    in_registers: bool = False
    # Forward: programs for each SM. More than one only to measure what the schedule is
    # worth.
    programs: int = 1
    # Forward: the last heads, with about this many items for each program, are handed
    # out together, longest items first.
    last_items: int = 2


# CONFIGS[kernel][head dimension of the tiles]
CONFIGS = {
    "forward": {64: Config(3, 128, 3, 160, 128, overlap=False), 128: Config(2, 128, 3)},
    "dq": {64: Config(2, 64, 4), 128: Config(2, 64, 4)},
    "dkdv": {64: Config(2, 64, 4, in_registers=True), 128: Config(2, 64, 3)},
}


# The backward pass in one kernel, also by tiles: stages of the ring of q and do, of dS
# that the dq group has yet to read, and of partial dq, each with a writer; registers of
# a key group's thread and of the dq group's.
ONE_PASS = {
    64: {
        "STAGES": 5,
        "DS_STAGES": 3,
        "DQ_STAGES": 3,
        "REGISTERS": 192,
        "DQ_REGISTERS": 80,
    },
    128: {
        "STAGES": 2,
        "DS_STAGES": 2,
        "DQ_STAGES": 2,
        "REGISTERS": 208,
        "DQ_REGISTERS": 72,
    },
}
ONE_PASS_MAXNREG = 128
ONE_PASS_KEYS, ONE_PASS_QUERIES = 128, 64
# Head dimensions from 72 to this one have products and sums of 96 columns of the 128 in
# a tile, as 64 and 32.
NARROW_HEAD = 96
# Also by tiles, under a causal mask; without one, half as many. With fewer, two passes
# are taken.
ONE_PASS_MIN_KEYS = {64: 2048, 128: 4096}
# So much of all SMs' time must go into steps, or the shift walk is not taken.
ONE_PASS_USE = 0.9
# The ordered walk, chosen on an H200 by times of this walk, the shift walk and two
# passes in turns, under a causal mask but for one. Where the shift walk can go it is as
# fast or faster, but for narrow heads, whose products only this one saves. Elsewhere
# this one beat two passes at each length that was timed: 4000 to 32,768 at tiles of
# 128, with and without shared heads, and 16,384 at 64. With fewer keys two passes are
# taken, by tiles and halved as above; a last tile may be short.
ORDERED_MIN_KEYS = {64: 4096, 128: 4096}
# With fewer programs, about two for each SM, shared heads are dealt out to twice as
# many, if there are; else two passes are taken.
ORDERED_MIN_PROGRAMS = 256
# Tiles of keys side by side: one for each SM. Where query heads share keys half as many
# are faster; without a mask twice as many, since programs that start together queue
# once.
SIDE_TILES = 128
# Tiles of keys of the heads that are walked backwards at the end, two heads or more.
BACKWARDS_TILES = 256
# Tiles of head dimension 64, up to so many keys under a causal mask, or half of them
# without: while one of four groups begins or ends an item, three work. Small tiles
# waste less on the mask.
SHORT = 2048
SHORT_FORWARD = Config(4, 64, 5, 112, 96, overlap=False)
# --8<-- [end:configs]
# What an item costs beside its steps, in steps.
ITEM_STEPS = 1


def missing(capability: tuple[int, int], version: str) -> str:
    """What these kernels need of a GPU of this compute capability and of Triton, and
    what was found; nothing where they run.
    """
    if capability != CAPABILITY:
        found = ".".join(map(str, capability))
        return f"needs a GPU of compute capability 9.0, found {found}"
    if not version.startswith(VERSIONS):
        tested = ", ".join(x.rstrip(".") for x in VERSIONS)
        return f"needs Triton {tested}, with which it was tested, found {version}"
    return ""


@cache
def missing_here(device: torch.device) -> str:
    """`missing` of this GPU and the Triton that is installed."""
    if knobs.runtime.interpret:
        return "needs a compiler, found the interpreter of TRITON_INTERPRET=1"
    return missing(torch.cuda.get_device_capability(device), triton.__version__)


@cache
def wrong_triton(device: torch.device) -> str:
    """`missing` where nothing but another Triton is missing; else nothing."""
    if device.type != "cuda" or knobs.runtime.interpret:
        return ""
    capability = torch.cuda.get_device_capability(device)
    return missing(capability, triton.__version__) if capability == CAPABILITY else ""


# --8<-- [start:takes]
def readable(x: Tensor) -> bool:
    """Whether TMA can read x: rows without gaps, and rows, heads and batches at
    multiples of 16 bytes.
    """
    *outer, last = x.stride()
    if last != 1 or x.data_ptr() % 16:
        return False
    unit = 16 // x.element_size()
    # A loop, not `all`: asked of each tensor in each call.
    for size, stride in zip(x.shape, outer, strict=False):
        if size > 1 and (stride <= 0 or stride % unit):
            return False
    return True


def refusal(q: Tensor, k: Tensor, v: Tensor) -> str:
    """What these kernels need and didn't find, to compute attention of q (..., n_q, d),
    k and v (..., n_k, d) with 3 or 4 dimensions; nothing where they can.
    """
    if q.device.type != "cuda":
        return f"needs a CUDA GPU, found {q.device.type}"
    if missing_here(q.device):
        return missing_here(q.device)
    if q.dtype not in DTYPES:
        return f"needs float16 or bfloat16, found {q.dtype}"
    if q.shape[-1] not in TILE_DIMS:
        found = q.shape[-1]
        return f"needs a head dimension from 40 to 128 that 8 divides, found {found}"
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not readable(x):
            return (
                "needs rows without gaps that begin at multiples of 16 bytes, "
                f"found {name} with strides {x.stride()} at address {x.data_ptr()}"
            )
    return ""


def is_faster(q: Tensor, k: Tensor) -> bool:
    """Whether q (..., n_q, d) and k (..., n_k, d) are large enough for these kernels to
    be faster than the plain ones.
    """
    rows = q.numel() // q.shape[-1]
    return rows >= MIN_ROWS and rows * k.shape[-2] >= MIN_SCORES


# --8<-- [end:takes]


# --8<-- [start:schedule]
@lru_cache(maxsize=256)
def schedule(
    n_q: int, n_k: int, batch_heads: int, head_swizzle: int, rows: int, keys: int,
    causal: bool, programs: int, last_items: int, device: torch.device,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """(starts, items): program i computes items[starts[i]] to items[starts[i + 1] - 1],
    in this order.

    An item is a tile of `rows` queries + tiles · head. Long ones first, each to the
    program that is free first: under a causal mask their lengths differ by the number
    of tiles. `head_swizzle` heads are walked through side by side, and so are the
    last ones, from which programs take what makes them end together.
    """
    tiles = triton.cdiv(n_q, rows)
    steps = [
        triton.cdiv(min(n_k, (tile + 1) * rows) if causal else n_k, keys)
        for tile in range(tiles)
    ]
    bulk = max(0, batch_heads - triton.cdiv(last_items * programs, tiles))
    groups = [
        range(start, min(start + head_swizzle, bulk))
        for start in range(0, bulk, head_swizzle)
    ]
    order = (
        tile + tiles * head
        for some in (*groups, range(bulk, batch_heads))
        for tile in reversed(range(tiles))
        for head in some
    )
    taken: list[list[int]] = [[] for _ in range(min(programs, tiles * batch_heads))]
    free = [(0, program) for program in range(len(taken))]
    for item in order:
        time, program = free[0]
        taken[program].append(item)
        heapreplace(free, (time + steps[item % tiles] + ITEM_STEPS, program))
    starts = [0, *accumulate(len(items) for items in taken)]
    as_tensor = partial(torch.tensor, dtype=torch.int32, device=device)
    return as_tensor(starts), as_tensor([item for items in taken for item in items])


# --8<-- [end:schedule]


def head_swizzle_for(k: Layout, heads: int, causal: bool, dtype: torch.dtype) -> int:
    """How many heads are walked through side by side: those whose k and v (b, h, n, d)
    stay in the L2 cache.

    Without a mask all items are as long, and short ones are many: then one head after
    the other reads less.
    """
    if not causal or k.shape[2] <= SHORT // 2:
        return 1
    return min(
        heads, max(1, L2_BYTES // (2 * k.shape[2] * k.shape[3] * dtype.itemsize))
    )


class Forward(NamedTuple):
    """A forward launch, and what it reads besides o and lse."""

    launch: Launch
    q: Descriptor
    k: Descriptor
    v: Descriptor
    starts: Tensor
    items: Tensor


@lru_cache(maxsize=1024)
def forward_plan(
    dtype: torch.dtype, device: torch.device, config: Config | None, causal: bool,
    scale: float,
    *tensors: ShapeAndStrides,
) -> Forward:  # fmt: skip
    """For q, k, v and o that lie so."""
    from systems.attention.hopper.forward import forward_kernel

    q, k, v, o = (layout(*lies) for lies in tensors)
    batch, heads, n_q, d = q.shape
    kv_heads, n_k = k.shape[1:3]
    tile_d = TILE_DIMS[d]
    short = tile_d == 64 and n_k <= (SHORT if causal else SHORT // 2)
    c = config or (SHORT_FORWARD if short else CONFIGS["forward"][tile_d])
    head_swizzle = head_swizzle_for(k, batch * heads, causal, dtype)
    starts, items = schedule(
        n_q,
        n_k,
        batch * heads,
        head_swizzle,
        64 * c.groups,
        c.rows,
        causal,
        c.programs * sm_count(device),
        c.last_items,
        device,
    )
    launch = Launch(
        forward_kernel, (len(starts) - 1,),
        (*o.strides[:3], heads, n_q, n_k, scale * LOG2E),
        {"BK": c.rows, "HEAD": d, "D": tile_d, "HEADS_PER_KV": heads // kv_heads,
         "CAUSAL": causal, "GROUPS": c.groups, "STAGES": c.stages,
         "OVERLAP": c.overlap, "REGISTERS": c.registers},
        num_warps=4, maxnreg=c.maxnreg,
    )  # fmt: skip
    described = (
        rows_descriptor(x, rows, tile_d, dtype)
        for x, rows in ((q, 64), (k, c.rows), (v, c.rows))
    )
    return Forward(launch, *described, starts, items)


def launch_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    scale: float,
    config: Config | None = None,
) -> tuple[Tensor, Tensor]:
    """(o, lse); `config` overrides the table."""
    o, lse = torch.empty_like(q), empty_row_statistics(q)
    plan = forward_plan(
        q.dtype, q.device, config, causal, scale, *map(shape_and_strides, (q, k, v, o))
    )
    with on_device_of(q):
        plan.launch(plan.q(q), plan.k(k), plan.v(v), o, lse, plan.starts, plan.items)
    return o, lse


class Backward(NamedTuple):
    """The launches of a backward pass, and what describes their tensors: by tensor, of
    dq's and of dkdv's tiles.
    """

    dq: Launch
    dq_of: dict[str, Descriptor]
    dkdv: Launch
    dkdv_of: dict[str, Descriptor]
    stride: int


@lru_cache(maxsize=1024)
def backward_plan(
    dtype: torch.dtype,
    device: torch.device,
    causal: bool,
    scale: float,
    *tensors: ShapeAndStrides,
) -> Backward:
    """For q, k, v, o, do, dq, dk and dv that lie so."""
    from systems.attention.hopper.backward import dkdv_kernel, dq_kernel

    q, k, v, o, do, dq, dk, dv = (layout(*lies) for lies in tensors)
    batch, heads, n_q, d = q.shape
    kv_heads, n_k = k.shape[1:3]
    # Rows of lse and delta, 16 bytes aligned.
    stride = triton.cdiv(n_q, 4) * 4
    tile_d = TILE_DIMS[d]
    constants = {"D": tile_d, "HEADS_PER_KV": heads // kv_heads, "CAUSAL": causal}

    def described(tiles: dict[str, tuple[Layout, int]]) -> dict[str, Descriptor]:
        return {
            name: rows_descriptor(x, rows, tile_d, dtype)
            for name, (x, rows) in tiles.items()
        }

    c, e = CONFIGS["dq"][tile_d], CONFIGS["dkdv"][tile_d]
    statistics = statistics_descriptor(batch * heads, n_q, stride, e.rows)
    return Backward(
        Launch(
            dq_kernel, (triton.cdiv(n_q, 64 * c.groups) * batch * heads,),
            (heads, n_q, n_k, stride, scale * LOG2E, scale),
            {"BK": c.rows, "GROUPS": c.groups, "STAGES": c.stages,
             "REGISTERS": c.registers, **constants},
            num_warps=4, maxnreg=c.maxnreg,
        ),
        described({"q": (q, 64), "k": (k, c.rows), "v": (v, c.rows), "o": (o, 64),
                   "do": (do, 64), "dq": (dq, 64)}),
        Launch(
            dkdv_kernel, (triton.cdiv(n_k, 64 * e.groups) * batch * kv_heads,),
            (heads, n_q, n_k, scale * LOG2E, scale),
            {"BQ": e.rows, "GROUPS": e.groups, "STAGES": e.stages,
             "IN_REGISTERS": e.in_registers, "REGISTERS": e.registers, **constants},
            num_warps=4, maxnreg=e.maxnreg,
        ),
        described({"q": (q, e.rows), "k": (k, 64), "v": (v, 64), "do": (do, e.rows),
                   "dk": (dk, 64), "dv": (dv, 64)})
        | {"statistics": statistics},
        stride,
    )  # fmt: skip


def groups_in_one_pass(q: Layout, k: Layout, causal: bool, processors: int) -> int:
    """How many heads the shift walk works on at a time; 0 where it can't go, or would
    leave SMs idle.

    All programs of a head run side by side, one on each SM, and wait for one another.
    """
    batch, heads, n, d = k.shape
    tiles = n // ONE_PASS_KEYS
    least = ONE_PASS_MIN_KEYS[TILE_DIMS[d]] // (1 if causal else 2)
    if q.shape != k.shape or n % ONE_PASS_KEYS or n < least or tiles > processors:
        return 0
    groups = min(processors // tiles, batch * heads)
    walks = triton.cdiv(batch * heads, groups)
    # Under a causal mask two heads take a program tiles + 1 steps, and one left over
    # takes some program `tiles`.
    longest = walks // 2 * (tiles + 1) + walks % 2 * tiles if causal else walks * tiles
    steps = (
        batch * heads * tiles * (tiles + 1) // 2 if causal else batch * heads * tiles**2
    )
    return groups if steps >= ONE_PASS_USE * processors * longest else 0


class Shift(NamedTuple):
    """The walk of `shift`, `groups` heads at a time."""

    groups: int


class Ordered(NamedTuple):
    """The walk of `ordered`: `side` heads of keys side by side, those from `turn` on
    backwards, the query heads that share keys in `parts`. Parts count as heads.
    """

    side: int
    turn: int
    parts: int = 1


# --8<-- [start:walks]
def ordered_walk(q: Layout, k: Layout, causal: bool) -> Ordered | None:
    """For q (b, h, n_q, d) and k (b, h_kv, n_k, d); nothing where two passes are
    faster.
    """
    batch, kv_heads, n_k, d = k.shape
    shared, n_q = q.shape[1] // kv_heads, q.shape[2]
    tiles = triton.cdiv(n_k, ONE_PASS_KEYS)
    least = ORDERED_MIN_KEYS[TILE_DIMS[d]] // (1 if causal else 2)
    if triton.cdiv(min(n_q, n_k), ONE_PASS_KEYS) * ONE_PASS_KEYS < least:
        return None
    programs = batch * kv_heads * tiles
    parts = 1
    if programs < ORDERED_MIN_PROGRAMS:
        wanted = 2 * ORDERED_MIN_PROGRAMS
        parts = next((x for x in divisors(shared) if x * programs >= wanted), shared)
    heads = batch * kv_heads * parts
    # A single head has nothing that could fill up the end.
    if programs * parts < ORDERED_MIN_PROGRAMS or heads == 1:
        return None
    if not causal:
        return Ordered(min(heads, max(1, 2 * SIDE_TILES // tiles)), heads, parts)
    side = max(1, SIDE_TILES // tiles // (2 if shared > parts else 1))
    backwards = min(heads // 2, max(2, BACKWARDS_TILES // tiles))
    return Ordered(min(heads, side), heads - backwards, parts)


def divisors(n: int) -> list[int]:
    return [x for x in range(1, n + 1) if n % x == 0]


@lru_cache(maxsize=1024)
def walk_in_one_pass(
    q: Layout, k: Layout, causal: bool, processors: int
) -> Shift | Ordered | None:
    """How the backward pass goes in one kernel; nothing where two passes are faster."""
    groups = groups_in_one_pass(q, k, causal, processors)
    ordered = ordered_walk(q, k, causal)
    if groups and not (ordered and is_narrow(q.shape[-1])):
        return Shift(groups)
    return ordered


# --8<-- [end:walks]


def is_narrow(d: int) -> bool:
    return TILE_DIMS[d] == 128 and d <= NARROW_HEAD


class BackwardInOnePass(NamedTuple):
    """The launches of a backward pass, and what describes their tensors; tiles of
    queries of all heads, and how far apart rows of lse and delta are.
    """

    delta: Launch
    main: Launch
    of: dict[str, Descriptor]
    rounded: Launch
    tiles: int
    stride: int


@lru_cache(maxsize=1024)
def one_pass_plan(
    dtype: torch.dtype,
    device: torch.device,
    walk: Shift | Ordered,
    causal: bool,
    scale: float,
    *tensors: ShapeAndStrides,
) -> BackwardInOnePass:
    """For q, k, v, o, do, dq, dk and dv that lie so."""
    from systems.attention.hopper import ordered, shift
    from systems.attention.hopper.one_pass import delta_kernel, round_kernel

    q, k, v, o, do, dq, dk, dv = (layout(*lies) for lies in tensors)
    batch, heads, n_q, d = q.shape
    kv_heads, n_k = k.shape[1:3]
    step, tile_d = ONE_PASS_QUERIES, TILE_DIMS[d]
    tiles = batch * heads * triton.cdiv(n_q, step)
    tiles_k = triton.cdiv(n_k, ONE_PASS_KEYS)
    # Rows of lse and delta, 16 bytes aligned.
    stride = triton.cdiv(n_q, 4) * 4
    # The shift walk has no products of 96 columns.
    narrow = is_narrow(d) and isinstance(walk, Ordered)
    ragged = {"HEAD": d, "D": tile_d, "RAGGED": n_q % step > 0}
    strides = (*dk.strides[:3], *dv.strides[:3])
    scales = (scale * LOG2E, scale)
    constants = {"HEAD": d, "D": tile_d, "CAUSAL": causal, **ONE_PASS[tile_d]}
    options = {"num_warps": 4, "maxnreg": ONE_PASS_MAXNREG}
    if isinstance(walk, Shift):
        main = Launch(
            shift.one_pass_kernel, (tiles_k * walk.groups,),
            (*strides, batch, heads, tiles_k, walk.groups, *scales),
            constants,
            # Programs wait for one another: a launch that the GPU can't hold whole must
            # fail, not hang.
            launch_cooperative_grid=True, **options,
        )  # fmt: skip
    else:
        batch_kv_heads = batch * kv_heads * walk.parts
        main = Launch(
            ordered.one_pass_kernel, (tiles_k * batch_kv_heads,),
            (*strides, heads, batch_kv_heads, n_q, n_k, *walk, *scales),
            {"HEADS_PER_KV": heads // kv_heads // walk.parts,
             "RAGGED": n_k % ONE_PASS_KEYS > 0, "NARROW": narrow, **constants},
            **options,
        )  # fmt: skip
    return BackwardInOnePass(
        Launch(
            delta_kernel, (tiles,),
            (*o.strides, *do.strides, heads, n_q, stride),
            {"COPY": stride > n_q, **ragged},
        ),
        main,
        {
            "q": rows_descriptor(q, step, tile_d, dtype),
            "k": rows_descriptor(k, ONE_PASS_KEYS, tile_d, dtype),
            "v": rows_descriptor(v, ONE_PASS_KEYS, tile_d, dtype),
            "do": rows_descriptor(do, step, tile_d, dtype),
            "statistics": statistics_descriptor(batch * heads, n_q, stride, step),
            # As held: 32 numbers a row, a step's rows at a time, or where it is narrow
            # three quarters of them in three boxes.
            "dq": Descriptor(
                (tiles * step * tile_d // 32, 32), (32, 1),
                [64 if narrow else step * tile_d // 32, 32], torch.float32, swizzle=128
            ),
        },
        Launch(
            round_kernel, (tiles,), (*dq.strides, heads, n_q),
            {"NARROW": narrow, **ragged},
        ),
        tiles,
        stride,
    )  # fmt: skip


def launch_one_pass(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
    walk: Shift | Ordered,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv)."""
    do = do if readable(do) else do.contiguous()
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    parts = walk.parts if isinstance(walk, Ordered) else 1
    if parts > 1:
        # [2, ..., h_kv · parts, n_k, d]: each part's own sums.
        of_parts = (2, *k.shape[:-3], k.shape[-3] * parts, *k.shape[-2:])
        dk, dv = k.new_empty(of_parts, dtype=torch.float32)
    lies = map(shape_and_strides, (q, k, v, o, do, dq, dk, dv))
    plan = one_pass_plan(q.dtype, q.device, walk, causal, scale, *lies)
    n_q, d = q.shape[-2:]
    copied = plan.stride > n_q
    rows = lse.new_empty((1 + copied, lse.numel() // n_q, plan.stride))
    # What TMA reads: lse itself where its rows begin at multiples of 16 bytes.
    delta, lse_rows = rows[0], rows[1] if copied else lse
    held = q.new_empty((plan.tiles * ONE_PASS_QUERIES, TILE_DIMS[d]), dtype=torch.float)
    # The first kernel makes them zero.
    semaphores = torch.empty(plan.tiles, dtype=torch.int32, device=q.device)
    of = plan.of
    with on_device_of(q):
        plan.delta(o, do, lse, delta, lse_rows, semaphores)
        plan.main(
            of["q"](q), of["k"](k), of["v"](v), of["do"](do),
            of["statistics"](lse_rows), of["statistics"](delta),
            of["dq"](held), dk, dv, semaphores,
        )  # fmt: skip
        plan.rounded(held, dq)
    if parts > 1:
        # In the order of parts: the same bits each time.
        dk, dv = (x.unflatten(-3, (-1, parts)).sum(-3).to(q.dtype) for x in (dk, dv))
    return dq, dk, dv


def launch_two_passes(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv)."""
    # The gradient of a sum is one number with strides of zero: it is written out.
    do, o = (x if readable(x) else x.contiguous() for x in (do, o))
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    plan = backward_plan(
        q.dtype,
        q.device,
        causal,
        scale,
        *map(shape_and_strides, (q, k, v, o, do, dq, dk, dv)),
    )
    lse_log2, delta = lse.new_empty((2, lse.numel() // lse.shape[-1], plan.stride))
    by, of = plan.dq_of, plan.dkdv_of
    with on_device_of(q):
        plan.dq(
            by["q"](q),
            by["k"](k),
            by["v"](v),
            by["o"](o),
            by["do"](do),
            by["dq"](dq),
            lse,
            lse_log2,
            delta,
        )
        plan.dkdv(
            of["q"](q), of["k"](k), of["v"](v), of["do"](do),
            of["statistics"](lse_log2), of["statistics"](delta),
            of["dk"](dk), of["dv"](dv),
        )  # fmt: skip
    return dq, dk, dv


def launch_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv) in one pass where that is faster, else in two."""
    layouts = (layout(*shape_and_strides(x)) for x in (q, k))
    walk = walk_in_one_pass(*layouts, causal, sm_count(q.device))
    if walk:
        return launch_one_pass(do, q, k, v, o, lse, causal, scale, walk)
    return launch_two_passes(do, q, k, v, o, lse, causal, scale)

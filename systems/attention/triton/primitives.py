"""Helpers of the Triton kernels: assign tiles to programs, load and store tiles, split
into limbs, multiply.

Tensor cores multiply 16-bit numbers. To multiply float32, each number is written as a
sum of bfloat16 limbs, and a product becomes a sum of products of limbs (Henry, Tang and
Heinecke 2019, arXiv 1904.06376). Small products are dropped: two limbs need three
matmuls and give 16 bits, three limbs need six and give the 24 bits of float32. Either
`limbs_kernel` splits the inputs ahead (LIMBS > 1), or the compiler splits them in each
matmul (LIMBS = 1, PRECISION `bf16x3` or `bf16x6`). Letters as in `forward`.
"""

import triton
import triton.language as tl
from triton import knobs

INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
# The initial running maximum: not -∞, or rows that see no key of a split would be NaN.
LOWEST = tl.constexpr(-3.4028234663852886e38)
# Magnitude of huge scores (scaled, base 2): rounding to float32 can move them by 16.
HUGE = tl.constexpr(2.0**28)


# --8<-- [start:tiles]
@triton.jit
def program_tile(tiles, head_swizzle, SPLITS: tl.constexpr):
    """Return this program's (tile, head, number of heads, split). Heads are numbered
    across batches, and have `tiles` tiles each. Programs are ordered by group of
    `head_swizzle` heads, then by tile, head and split.
    """
    # Without splits program_id(1) is 0. A constant 0 made the second loop slower.
    split = tl.program_id(0) % SPLITS if SPLITS > 1 else tl.program_id(1)
    program, heads = tl.program_id(0) // SPLITS, tl.num_programs(0) // SPLITS // tiles
    group = program // (tiles * head_swizzle)
    members = tl.minimum(head_swizzle, heads - group * head_swizzle)
    rest = program - group * tiles * head_swizzle
    return (
        rest // members,
        (group * head_swizzle + rest % members).to(tl.int64),
        heads,
        split,
    )


@triton.jit
def hint_factor(stride_b, stride_h, stride_n, UNIT: tl.constexpr):
    """Return the strides in a form that shows the compiler that UNIT divides them, so
    that loads are vectorized. By itself Triton only detects divisibility by 16.
    """
    return stride_b // UNIT * UNIT, stride_h // UNIT * UNIT, stride_n // UNIT * UNIT


@triton.jit
def offsets(rows, columns, stride_n, stride_d):
    """Return a tile's 64-bit offsets, row · stride_n + column · stride_d."""
    return (
        rows[:, None].to(tl.int64) * stride_n + columns[None, :].to(tl.int64) * stride_d
    )


@triton.jit
def advance_rows(ptr, rows, stride_n):
    """Return the pointer advanced by this many rows, with 64-bit arithmetic."""
    return ptr + tl.cast(rows, tl.int64) * stride_n


@triton.jit
def step_ptrs(
    ptr, tile_offsets, start, rows, columns, stride_n, stride_d, RECOMPUTE: tl.constexpr
):
    """Return pointers to the tile at row `start`. By default, advance `tile_offsets` of
    the first tile; if RECOMPUTE, use this tile's `rows` instead, to save registers.
    """
    if RECOMPUTE != "":
        ptrs = ptr + offsets(rows, columns, stride_n, stride_d)
    else:
        ptrs = advance_rows(ptr, start, stride_n) + tile_offsets
    return ptrs


@triton.jit
def first_step(split, steps, SPLITS: tl.constexpr):
    """Return the number of this split's first step in a loop, if splits get steps in
    round-robin order, and earlier loops had `steps` steps.
    """
    return (split + SPLITS - steps % SPLITS) % SPLITS if SPLITS > 1 else split


@triton.jit
def round_to(x, TYPE: tl.constexpr):
    """Return float32 x, rounded to the nearest value of TYPE."""
    if INTERPRETED and TYPE == tl.bfloat16 and x.dtype != TYPE:
        # The interpreter would truncate, so round to nearest even here: add half a unit
        # and clear the lower bits.
        bits = x.to(tl.int32, bitcast=True)
        x = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(
            tl.float32, bitcast=True
        )
    return x.to(TYPE)


@triton.jit
def load_tile(
    ptrs, rows, columns, n, HEAD: tl.constexpr, RAGGED: tl.constexpr,
    CACHE: tl.constexpr = tl.constexpr(""),
):  # fmt: skip
    """Load a tile, with zeros in padding columns and, if RAGGED, in rows beyond n.
    CACHE ".cg" bypasses the L1 cache.
    """
    PADDED: tl.constexpr = columns.shape[0] != HEAD
    if RAGGED and PADDED:
        mask = (rows < n)[:, None] & (columns < HEAD)[None, :]
        tile = tl.load(ptrs, mask=mask, other=0.0, cache_modifier=CACHE)
    elif RAGGED:
        mask = (rows < n)[:, None]
        tile = tl.load(ptrs, mask=mask, other=0.0, cache_modifier=CACHE)
    elif PADDED:
        mask = (columns < HEAD)[None, :]
        tile = tl.load(ptrs, mask=mask, other=0.0, cache_modifier=CACHE)
    else:
        tile = tl.load(ptrs, cache_modifier=CACHE)
    return tile


@triton.jit
def store_tile(ptrs, tile, rows, columns, n, HEAD: tl.constexpr):
    """Round a tile to the output dtype and store the part inside the tensor."""
    mask = (rows < n)[:, None] & (columns < HEAD)[None, :]
    tl.store(ptrs, round_to(tile, ptrs.dtype.element_ty), mask=mask)


@triton.jit
def locate_rows(
    program, out_ptr, stride_b, stride_h, heads, n, ROWS: tl.constexpr, D: tl.constexpr
):
    """Return where a program's ROWS rows are: (pointer to their head, rows, columns,
    rows numbered across all heads).
    """
    tiles = tl.cdiv(n, ROWS)
    batch_head = (program // tiles).to(tl.int64)
    rows, columns = program % tiles * ROWS + tl.arange(0, ROWS), tl.arange(0, D)
    return (
        out_ptr + batch_head // heads * stride_b + batch_head % heads * stride_h,
        rows,
        columns,
        batch_head * n + rows,
    )
    # --8<-- [end:tiles]


# --8<-- [start:huge]
@triton.jit
def factor_and_shift(m, scale_log2):
    """Return (factor, shift) for rows with maximum m, such that p = exp2(s · factor -
    shift).

    m · factor is rounded before the multiply-add, so the largest p is exp2(rounding
    error), not 1. For huge scores this error can make p infinite or zero in the whole
    row. For such rows `factor` is a power of two, so m · factor is exact. Lower scores
    get p ≤ 2^-16 with either factor, because huge float32 numbers are ≥ 16 apart.
    """
    scale = tl.zeros_like(m) + scale_log2
    bits = tl.minimum(scale.to(tl.int32, bitcast=True) + 0x7FFFFF, 0x7F000000)
    power = (bits & 0x7F800000).to(tl.float32, bitcast=True)
    huge = tl.abs(m) >= HUGE / scale_log2
    shift = tl.where(huge, m * power, m * scale)
    return tl.where(huge, power, scale), tl.maximum(shift, LOWEST)


@triton.jit
def row_lse(m, l, shift, scale_log2):
    """Return lse (natural logarithm), given m, l and shift from `factor_and_shift`."""
    huge = tl.abs(m) >= HUGE / scale_log2
    return (tl.where(huge, m * scale_log2, shift) + tl.log2(l)) * LN2


@triton.jit
def mask_huge_lse(lse):
    """Return lse, or infinity where it is huge, so that p = exp(score - lse) is 0."""
    return tl.where(tl.abs(lse) >= HUGE * LN2, float("inf"), lse)
    # --8<-- [end:huge]


# --8<-- [start:limbs]
@triton.jit
def to_limbs(x, TYPE: tl.constexpr, LIMBS: tl.constexpr):
    """Split float32 x into a tuple of LIMBS summands of TYPE, the largest first."""
    limbs = (round_to(x, TYPE),)
    for i in tl.static_range(LIMBS - 1):
        x -= limbs[i].to(tl.float32)
        limbs = limbs + (round_to(x, TYPE),)  # noqa: RUF005
    return limbs


@triton.jit
def sum_limbs(limbs):
    """Return the sum of limbs in float32."""
    x = limbs[0].to(tl.float32)
    for i in tl.static_range(1, len(limbs)):
        x += limbs[i].to(tl.float32)
    return x


@triton.jit
def load_limbs(
    ptrs, rows, columns, n,
    HEAD: tl.constexpr, RAGGED: tl.constexpr, LIMBS: tl.constexpr,
):  # fmt: skip
    """Load a tile as a tuple of limbs; the limbs of a row are adjacent in memory."""
    limbs = (load_tile(ptrs, rows, columns, n, HEAD, RAGGED),)
    for i in tl.static_range(1, LIMBS):
        limb = load_tile(ptrs + i * HEAD, rows, columns, n, HEAD, RAGGED)
        limbs = limbs + (limb,)  # noqa: RUF005
    return limbs


@triton.jit
def transpose_limbs(x):
    """Return the limbs of a tile, each transposed."""
    limbs = (tl.trans(x[0]),)
    for i in tl.static_range(1, len(x)):
        limbs = limbs + (tl.trans(x[i]),)  # noqa: RUF005
    return limbs


@triton.jit
def dot(a, b, acc, PRECISION: tl.constexpr):
    """Return acc + a @ b, summed in float32."""
    if INTERPRETED:
        # The interpreter would multiply bit patterns of bfloat16, so convert first.
        acc = tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    return acc


@triton.jit
def matmul(a, b, PRECISION: tl.constexpr):
    """Return a @ b in float32 for tuples of limbs, adding small products first."""
    acc = tl.zeros([a[0].shape[0], b[0].shape[1]], tl.float32)
    for larger in tl.static_range(len(a)):
        for i in tl.static_range(len(a) - larger):
            acc = dot(a[len(a) - 1 - larger - i], b[i], acc, PRECISION)
    return acc


@triton.jit
def add_matmul(a, b, acc, PRECISION: tl.constexpr):
    """Return acc + a @ b for tuples of limbs. With several limbs, a @ b is computed
    first and then added with rounding, because tensor cores truncate sums.
    """
    if len(a) == 1:
        acc = dot(a[0], b[0], acc, PRECISION)
    else:
        acc += matmul(a, b, PRECISION)
    return acc


@triton.jit
def matmul_from_memory(
    a, ptrs, rows, columns, n, acc,
    HEAD: tl.constexpr, RAGGED: tl.constexpr, TRANSPOSED: tl.constexpr,
    CACHE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return acc + a @ tile, or acc + a @ tileᵀ if TRANSPOSED, loading one limb of the
    tile at a time. If CACHE differs from an earlier load's, the compiler loads again.
    """
    limb = load_tile(ptrs, rows, columns, n, HEAD, RAGGED, CACHE)
    b = (tl.trans(limb),) if TRANSPOSED else (limb,)
    acc = dot(a[len(a) - 1], b[0], acc, PRECISION)
    for i in tl.static_range(1, len(a)):
        limb = load_tile(ptrs + i * HEAD, rows, columns, n, HEAD, RAGGED, CACHE)
        b = b + ((tl.trans(limb),) if TRANSPOSED else (limb,))
        acc = dot(a[len(a) - 1 - i], b[i], acc, PRECISION)
    for larger in tl.static_range(1, len(a)):
        for i in tl.static_range(len(a) - larger):
            acc = dot(a[len(a) - 1 - larger - i], b[i], acc, PRECISION)
    return acc


@triton.jit
def add_matmul_from_memory(
    a, ptrs, rows, columns, n, acc,
    HEAD: tl.constexpr, RAGGED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Return acc + a @ tile as `add_matmul` does, loading the tile from memory."""
    if len(a) == 1:
        acc = matmul_from_memory(
            a, ptrs, rows, columns, n, acc, HEAD, RAGGED, False, ".cg", PRECISION
        )
    else:
        acc += matmul_from_memory(
            a, ptrs, rows, columns, n, tl.zeros_like(acc), HEAD, RAGGED, False, ".cg",
            PRECISION,
        )  # fmt: skip
    return acc
    # --8<-- [end:limbs]


# --8<-- [start:limbs_kernel]
@triton.jit
def split_rows_to_limbs(
    program, x_ptr, limbs_ptr, stride_b, stride_h, stride_n, stride_d,
    heads, n, ROWS: tl.constexpr, HEAD: tl.constexpr, D: tl.constexpr,
    LIMBS: tl.constexpr,
):  # fmt: skip
    """Split ROWS rows of (batch, heads, n, HEAD) into limbs (..., LIMBS, HEAD)."""
    x_ptr, rows, columns, row_index = locate_rows(
        program, x_ptr, stride_b, stride_h, heads, n, ROWS, D
    )
    x = load_tile(
        x_ptr + offsets(rows, columns, stride_n, stride_d), rows, columns, n, HEAD, True
    )
    limbs = to_limbs(x, limbs_ptr.dtype.element_ty, LIMBS)
    for i in tl.static_range(LIMBS):
        store_tile(
            limbs_ptr + offsets(row_index, columns, LIMBS * HEAD, 1) + i * HEAD,
            limbs[i],
            rows,
            columns,
            n,
            HEAD,
        )


@triton.jit(do_not_specialize=["batch", "heads", "kv_heads", "n_q", "n_k"])
def limbs_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, q_limbs_ptr, k_limbs_ptr, v_limbs_ptr, do_limbs_ptr,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_gb, stride_gh, stride_gn, stride_gd,
    batch, heads, kv_heads, n_q, n_k,
    ROWS: tl.constexpr, HEAD: tl.constexpr, D: tl.constexpr, LIMBS: tl.constexpr,
):  # fmt: skip
    """Split q, k, v (and do, if the grid covers it) into limbs, ROWS rows a program."""
    program = tl.program_id(0)
    q_programs = tl.cdiv(n_q, ROWS) * batch * heads
    k_programs = tl.cdiv(n_k, ROWS) * batch * kv_heads
    if program < q_programs:
        split_rows_to_limbs(
            program, q_ptr, q_limbs_ptr, stride_qb, stride_qh, stride_qn, stride_qd,
            heads, n_q, ROWS, HEAD, D, LIMBS,
        )  # fmt: skip
    elif program < q_programs + k_programs:
        split_rows_to_limbs(
            program - q_programs, k_ptr, k_limbs_ptr, stride_kb, stride_kh, stride_kn,
            stride_kd, kv_heads, n_k, ROWS, HEAD, D, LIMBS,
        )  # fmt: skip
    elif program < q_programs + 2 * k_programs:
        split_rows_to_limbs(
            program - q_programs - k_programs, v_ptr, v_limbs_ptr, stride_vb, stride_vh,
            stride_vn, stride_vd, kv_heads, n_k, ROWS, HEAD, D, LIMBS,
        )  # fmt: skip
    else:
        split_rows_to_limbs(
            program - q_programs - 2 * k_programs, do_ptr, do_limbs_ptr, stride_gb,
            stride_gh, stride_gn, stride_gd, heads, n_q, ROWS, HEAD, D, LIMBS,
        )  # fmt: skip
    # --8<-- [end:limbs_kernel]

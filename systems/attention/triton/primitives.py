"""What the Triton kernels share: which tile a program has, how tiles are loaded, stored, cut into pieces, multiplied.

Matrix units multiply numbers of 16 bits. A float32 is the sum of bfloat16 pieces, each the nearest to what the ones
before leave, and a product of two is a sum of products of pieces (Henry, Tang and Heinecke 2019, arXiv 1904.06376).
Of PIECES of either factor those products count that are not smaller than what the pieces leave out: two pieces have
three such products and keep 16 bits, three have six and keep the 24 of float32. float16 and bfloat16 are one piece.
Letters as in `flash_triton_forward`.
"""

import triton
import triton.language as tl
from triton import knobs

INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))
LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


# --8<-- [start:tiles]
@triton.jit
def place(tiles, together, PARTS: tl.constexpr):
    """(tile, batch · heads + head, how many heads there are, part) of this program.

    Of `together` heads first come all parts of the first tile of each, then of the second; then the next heads. So no
    long tile, nor a part of one, starts when all other work is done.
    """
    # Alone, the part is zero; were that known when the kernel is compiled, its second loop would become slower.
    part = tl.program_id(0) % PARTS if PARTS > 1 else tl.program_id(1)
    program, heads = tl.program_id(0) // PARTS, tl.num_programs(0) // PARTS // tiles
    group = program // (tiles * together)
    members = tl.minimum(together, heads - group * together)
    rest = program - group * tiles * together
    return (
        rest // members,
        (group * together + rest % members).to(tl.int64),
        heads,
        part,
    )


@triton.jit
def offsets(rows, columns, stride_n, stride_d):
    """Where a tile's elements lie, in 64 bits: a long tensor reaches past 2³¹ elements."""
    return (
        rows[:, None].to(tl.int64) * stride_n + columns[None, :].to(tl.int64) * stride_d
    )


@triton.jit
def skip(ptr, rows, stride_n):
    """The pointer moved on by this many rows, in 64 bits."""
    return ptr + tl.cast(rows, tl.int64) * stride_n


@triton.jit
def turn(part, steps, PARTS: tl.constexpr):
    """Which step of a loop is the first of this part, where the loops before had so many: dealt out on and on."""
    return (part + PARTS - steps % PARTS) % PARTS if PARTS > 1 else part


@triton.jit
def narrow(x, TYPE: tl.constexpr):
    """float32 rounded to the nearest value of TYPE."""
    if INTERPRETED and TYPE == tl.bfloat16 and x.dtype != TYPE:
        # The interpreter cuts the low 16 bits off: half a unit, and ties to even, must be added first. What is left of
        # them it would take, beside a zero, for another number.
        bits = x.to(tl.int32, bitcast=True)
        x = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(
            tl.float32, bitcast=True
        )
    return x.to(TYPE)


@triton.jit
def load_tile(ptrs, rows, columns, n, HEAD: tl.constexpr, RAGGED: tl.constexpr):
    """Zero where a column is padding and, if RAGGED, where a row lies past n: such memory is not ours to read."""
    PADDED: tl.constexpr = columns.shape[0] != HEAD
    if RAGGED and PADDED:
        tile = tl.load(
            ptrs, mask=(rows < n)[:, None] & (columns < HEAD)[None, :], other=0.0
        )
    elif RAGGED:
        tile = tl.load(ptrs, mask=(rows < n)[:, None], other=0.0)
    elif PADDED:
        tile = tl.load(ptrs, mask=(columns < HEAD)[None, :], other=0.0)
    else:
        tile = tl.load(ptrs)
    return tile


@triton.jit
def store_tile(ptrs, tile, rows, columns, n, HEAD: tl.constexpr):
    """Round to the dtype of the memory and write what lies inside it."""
    mask = (rows < n)[:, None] & (columns < HEAD)[None, :]
    tl.store(ptrs, narrow(tile, ptrs.dtype.element_ty), mask=mask)


@triton.jit
def rows_of_program(
    program, out_ptr, stride_b, stride_h, heads, n, ROWS: tl.constexpr, D: tl.constexpr
):
    """(head's output, rows, columns, where these rows stand among those of all heads)."""
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


# --8<-- [start:pieces]
@triton.jit
def cut(x, TYPE: tl.constexpr, PIECES: tl.constexpr):
    """float32 as a tuple of PIECES of TYPE, the largest first; one piece of float32 is x itself."""
    pieces = (narrow(x, TYPE),)
    for i in tl.static_range(PIECES - 1):
        x -= pieces[i].to(tl.float32)
        pieces = pieces + (narrow(x, TYPE),)  # noqa: RUF005
    return pieces


@triton.jit
def joined(pieces):
    """A tile in pieces as float32."""
    x = pieces[0].to(tl.float32)
    for i in tl.static_range(1, len(pieces)):
        x += pieces[i].to(tl.float32)
    return x


@triton.jit
def load_pieces(
    ptrs,
    rows,
    columns,
    n,
    HEAD: tl.constexpr,
    RAGGED: tl.constexpr,
    PIECES: tl.constexpr,
):
    """A tile of which memory holds the pieces, those of a row side by side."""
    pieces = (load_tile(ptrs, rows, columns, n, HEAD, RAGGED),)
    for i in tl.static_range(1, PIECES):
        pieces = pieces + (load_tile(ptrs + i * HEAD, rows, columns, n, HEAD, RAGGED),)  # noqa: RUF005
    return pieces


@triton.jit
def turned(x):
    """The transposed of a tile in pieces."""
    pieces = (tl.trans(x[0]),)
    for i in tl.static_range(1, len(x)):
        pieces = pieces + (tl.trans(x[i]),)  # noqa: RUF005
    return pieces


@triton.jit
def dot(a, b, acc, PRECISION: tl.constexpr):
    """acc + a b with sums in float32."""
    if INTERPRETED:
        # The interpreter multiplies the bit patterns of bfloat16; float32 holds the same values.
        acc = tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")
    else:
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    return acc


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """a b of tiles in pieces, float32. Small products come first, so that they are not lost beside large ones."""
    acc = tl.zeros([a[0].shape[0], b[0].shape[1]], tl.float32)
    for larger in tl.static_range(len(a)):
        for i in tl.static_range(len(a) - larger):
            acc = dot(a[len(a) - 1 - larger - i], b[i], acc, PRECISION)
    return acc


@triton.jit
def add_product(a, b, acc, PRECISION: tl.constexpr):
    """acc + a b of tiles in pieces, float32.

    Matrix units cut off what an addition leaves over. Beside the rounding of 16 bits that is nothing; in float32 a long
    sum would drift. So there the products of a step are added up on their own, then to the rest, rounding.
    """
    if len(a) == 1:
        acc = dot(a[0], b[0], acc, PRECISION)
    else:
        acc += product(a, b, PRECISION)
    return acc


# --8<-- [end:pieces]


# --8<-- [start:cut_kernel]
@triton.jit
def cut_rows(
    program, x_ptr, pieces_ptr, stride_b, stride_h, stride_n, stride_d,
    heads, n, ROWS: tl.constexpr, HEAD: tl.constexpr, D: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    """ROWS rows of a float32 tensor (batch, heads, n, HEAD) as pieces (batch, heads, n, PIECES, HEAD)."""
    x_ptr, rows, columns, own = rows_of_program(
        program, x_ptr, stride_b, stride_h, heads, n, ROWS, D
    )
    x = load_tile(
        x_ptr + offsets(rows, columns, stride_n, stride_d), rows, columns, n, HEAD, True
    )
    pieces = cut(x, pieces_ptr.dtype.element_ty, PIECES)
    for i in tl.static_range(PIECES):
        store_tile(
            pieces_ptr + offsets(own, columns, PIECES * HEAD, 1) + i * HEAD,
            pieces[i],
            rows,
            columns,
            n,
            HEAD,
        )


@triton.jit(do_not_specialize=["batch", "heads", "kv_heads", "n_q", "n_k"])
def cut_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, q_pieces_ptr, k_pieces_ptr, v_pieces_ptr, do_pieces_ptr,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_gb, stride_gh, stride_gn, stride_gd,
    batch, heads, kv_heads, n_q, n_k,
    ROWS: tl.constexpr, HEAD: tl.constexpr, D: tl.constexpr, PIECES: tl.constexpr,
):  # fmt: skip
    """q, k, v and, if there is one, do of float32, cut into pieces. Grid: programs for q, then k, then v, then do."""
    program = tl.program_id(0)
    of_q = tl.cdiv(n_q, ROWS) * batch * heads
    of_k = tl.cdiv(n_k, ROWS) * batch * kv_heads
    if program < of_q:
        cut_rows(
            program, q_ptr, q_pieces_ptr, stride_qb, stride_qh, stride_qn, stride_qd,
            heads, n_q, ROWS, HEAD, D, PIECES,
        )  # fmt: skip
    elif program < of_q + of_k:
        cut_rows(
            program - of_q, k_ptr, k_pieces_ptr, stride_kb, stride_kh, stride_kn, stride_kd,
            kv_heads, n_k, ROWS, HEAD, D, PIECES,
        )  # fmt: skip
    elif program < of_q + 2 * of_k:
        cut_rows(
            program - of_q - of_k, v_ptr, v_pieces_ptr, stride_vb, stride_vh, stride_vn, stride_vd,
            kv_heads, n_k, ROWS, HEAD, D, PIECES,
        )  # fmt: skip
    else:
        cut_rows(
            program - of_q - 2 * of_k, do_ptr, do_pieces_ptr, stride_gb, stride_gh, stride_gn, stride_gd,
            heads, n_q, ROWS, HEAD, D, PIECES,
        )  # fmt: skip


# --8<-- [end:cut_kernel]

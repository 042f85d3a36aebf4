"""How the Triton kernels are launched: which run for inputs that lie so, in what
memory, with what for constants.

All that follows from dtypes, shapes and strides is found once and kept (`launching`). A
pass of the plain kernels is what cuts float32 into pieces, if it is cut ahead, then one
kernel (forward) or two (dq; dk and dv), then what puts together what programs shared,
if they did.
"""

from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from systems.attention.relaunch import (
    Launch,
    Layout,
    ShapeAndStrides,
    layout,
    numbers_for,
    on_device_of,
    shape_and_strides,
)
from systems.attention.triton.backward import dkdv_kernel, dq_kernel, sum_kernel
from systems.attention.triton.configs import (
    Tile,
    choose,
    heads_together,
    padded,
    parts_for,
)
from systems.attention.triton.forward import forward_kernel, merge_kernel
from systems.attention.triton.primitives import LOG2E, cut_kernel

# Numbers that one program puts together from parts: four of each part for each of its
# threads, one load. With more, fewer programs wait for more loads.
MERGED_NUMBERS = 512
# Numbers that one program cuts into pieces.
CUT_NUMBERS = 2048
# Of how many bfloat16 pieces a float32 is taken as the sum: products of three are as
# good as float32's own, of which the matrix units know nothing; products of two keep 16
# bits.
PIECES = {"half": 1, "high": 2, "highest": 3}
# What tl.dot is told to do with factors that have not been cut ahead: the same in each
# step.
PRECISION = {"half": "ieee", "high": "bf16x3", "highest": "bf16x6"}


def arithmetic(dtype: torch.dtype) -> str:
    """How products are formed: "half" of 16 bits; float32 as
    `torch.set_float32_matmul_precision` says.
    """
    if dtype != torch.float32:
        return "half"
    return "highest" if torch.get_float32_matmul_precision() == "highest" else "high"


def rows_in_one_piece(x: Tensor) -> tuple[Tensor, ShapeAndStrides]:
    """x, or a copy of it, and how that lies: each tile is read by many programs, and
    rows in pieces cost each of them many loads. The gradient of a sum, one number with
    strides of zero, is written out here.
    """
    lies = shape_and_strides(x)
    if lies[1][-1] == 1:
        return x, lies
    x = x.contiguous()
    return x, shape_and_strides(x)


def memory_for(x: Tensor, parts: int) -> Tensor:
    """Where a kernel writes: x itself, or (parts, *x.shape) in float32 if programs
    share its loops.
    """
    return x if parts == 1 else x.new_empty((parts, *x.shape), dtype=torch.float32)


def strides_of(x: Layout, parts: int) -> tuple[int, ...]:
    """Those of x (b, h, n, d), or of what `memory_for` makes, where b counts on from
    part to part.
    """
    _, heads, n, d = x.shape
    return x.strides if parts == 1 else (heads * n * d, n * d, d, 1)


def cutting(q: Layout, k: Layout, v: Layout, do: Layout | None, pieces: int) -> Launch:
    """What cuts q, k, v and, of a backward pass, do into pieces."""
    batch, heads, n_q, d = q.shape
    kv_heads, n_k = k.shape[1:3]
    rows = CUT_NUMBERS // padded(d)
    programs = (
        triton.cdiv(n_q, rows) * heads * (2 if do else 1)
        + 2 * triton.cdiv(n_k, rows) * kv_heads
    )
    return Launch(
        cut_kernel, (programs * batch,),
        (*q.strides, *k.strides, *v.strides, *(do or q).strides, batch, heads, kv_heads, n_q, n_k),
        {"ROWS": rows, "HEAD": d, "D": padded(d), "PIECES": pieces},
    )  # fmt: skip


def in_pieces(x: Layout, pieces: int) -> Layout:
    """How the pieces of x (b, h, n, d) lie: those of a row side by side."""
    _, heads, n, d = x.shape
    return Layout(x.shape, (heads * n * pieces * d, n * pieces * d, pieces * d, 1))


def cut_by(launch: Launch, *tensors: Tensor) -> list[Tensor]:
    """q, k, v, and in a backward pass do, (..., d), as bfloat16 pieces (..., pieces ·
    d).
    """
    pieces = launch.constants["PIECES"]
    cut = [
        x.new_empty((*x.shape[:-1], pieces * x.shape[-1]), dtype=torch.bfloat16)
        for x in tensors
    ]
    # In place of a missing do stands q, of which no program asks there.
    launch(*(*tensors, *tensors[:1])[:4], *(*cut, *cut[:1])[:4])
    return cut


class Forward(NamedTuple):
    """The launches of a forward pass: what cuts float32 ahead, if the tile says so;
    what merges parts, if there are.
    """

    cut: Launch | None
    kernel: Launch
    merge: Launch


@lru_cache(maxsize=4096)
def forward_launches(
    arithmetic: str, dtype: torch.dtype, device: torch.device, tile: Tile | None,
    parts: int | None,
    together: int | None, causal: bool, scale: float, *tensors: ShapeAndStrides,
) -> Forward:  # fmt: skip
    """The kernels of a forward pass for q, k, v and o that lie so.

    What isn't used here decides what Triton compiles.
    """
    q, k, v, o = (layout(*lies) for lies in tensors)
    batch, heads, n_q, d = q.shape
    kv_heads, n_k = k.shape[1:3]
    t = tile or choose("forward", d, arithmetic, causal, batch * heads * n_q, device)
    programs = triton.cdiv(n_q, t.q) * batch * heads
    parts = parts or parts_for(programs, t.warps, n_k, t.k, arithmetic, device)
    sizes, merged = (
        {"PARTS": parts, "HEAD": d, "D": padded(d)},
        MERGED_NUMBERS // padded(d),
    )
    together = together or heads_together(k, batch * heads, causal, arithmetic)
    pieces, cut = 1, None
    if t.ahead:
        pieces = PIECES[arithmetic]
        cut = cutting(q, k, v, None, pieces)
        q, k, v = (in_pieces(x, pieces) for x in (q, k, v))
    return Forward(
        cut,
        Launch(
            forward_kernel, (programs * parts,),
            (*q.strides, *k.strides, *v.strides, *strides_of(o, parts), heads, n_q, n_k, together,
             scale * LOG2E.value),
            {"BQ": t.q, "BK": t.k, "GROUP": heads // kv_heads, "CAUSAL": causal, "PIECES": pieces,
             "PRECISION": PRECISION[arithmetic], **sizes},
            **t.options,
        ),
        Launch(
            merge_kernel, (triton.cdiv(n_q, merged) * batch * heads,),
            (*o.strides, heads, n_q),
            {"ROWS": merged, **sizes},
        ),
    )  # fmt: skip


def launch_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    scale: float,
    tile: Tile | None = None,
    parts: int | None = None,
    together: int | None = None,
) -> tuple[Tensor, Tensor]:
    """(o, lse); `tile`, `parts` and `together` override what `tiles` chooses."""
    o, lse = torch.empty_like(q), numbers_for(q)
    (q, q_lies), (k, k_lies), (v, v_lies) = (
        rows_in_one_piece(q),
        rows_in_one_piece(k),
        rows_in_one_piece(v),
    )
    launch = forward_launches(
        arithmetic(q.dtype), q.dtype, q.device, tile, parts, together, causal, scale,
        q_lies, k_lies, v_lies, shape_and_strides(o),
    )  # fmt: skip
    shares: int = launch.kernel.constants["PARTS"]
    with on_device_of(q):
        if launch.cut:
            q, k, v = cut_by(launch.cut, q, k, v)
        if shares == 1:
            launch.kernel(q, k, v, o, lse)
        else:
            acc, m_l = memory_for(o, shares), lse.new_empty((2, shares, *lse.shape))
            launch.kernel(q, k, v, acc, m_l)
            launch.merge(acc, m_l, o, lse)
    return o, lse


class Backward(NamedTuple):
    """The launches of a backward pass: what cuts float32 ahead, if a tile says so; what
    sums parts, if there are.
    """

    cut: Launch | None
    dq: Launch
    dkdv: Launch
    sums: Launch


@lru_cache(maxsize=4096)
def backward_launches(
    arithmetic: str, dtype: torch.dtype, device: torch.device, dkdv_tile: Tile | None,
    dq_tile: Tile | None,
    parts: int | None, together: int | None, causal: bool, scale: float,
    *tensors: ShapeAndStrides,
) -> Backward:  # fmt: skip
    """The kernels of a backward pass for q, k, v, o, do, dq, dk and dv that lie so."""
    q, k, v, o, do, dq, dk, dv = (layout(*lies) for lies in tensors)
    batch, heads, n_q, d = q.shape
    kv_heads, n_k = k.shape[1:3]
    sizes = {"HEAD": d, "D": padded(d)}
    constants = {
        **sizes,
        "GROUP": heads // kv_heads,
        "CAUSAL": causal,
        "PRECISION": PRECISION[arithmetic],
    }
    together = together or heads_together(k, batch * heads, causal, arithmetic)
    numbers = (heads, n_q, n_k, together, scale * LOG2E.value, scale)
    t = dkdv_tile or choose(
        "dkdv", d, arithmetic, causal, batch * kv_heads * n_k, device
    )
    u = dq_tile or choose("dq", d, arithmetic, causal, batch * heads * n_q, device)
    dkdv_programs, dq_programs = (
        triton.cdiv(n_k, t.k) * batch * kv_heads,
        triton.cdiv(n_q, u.q) * batch * heads,
    )
    dkdv_parts = parts or parts_for(
        dkdv_programs, t.warps, heads // kv_heads * n_q, t.q, arithmetic, device
    )
    dq_parts = parts or parts_for(dq_programs, u.warps, n_k, u.k, arithmetic, device)

    inputs, cut = (q, k, v, do), None
    of_dq, of_dkdv = (PIECES[arithmetic] if tile.ahead else 1 for tile in (u, t))
    if u.ahead or t.ahead:
        cut = cutting(*inputs, PIECES[arithmetic])
    pieces = tuple(in_pieces(x, PIECES[arithmetic]) for x in inputs)
    dq_reads, dkdv_reads = (
        [x.strides for x in (pieces if tile.ahead else inputs)] for tile in (u, t)
    )

    rows = MERGED_NUMBERS // padded(d)
    dq_sums = triton.cdiv(n_q, rows) * batch * heads if dq_parts > 1 else 0
    dkdv_sums = 2 * triton.cdiv(n_k, rows) * batch * kv_heads if dkdv_parts > 1 else 0
    return Backward(
        cut,
        Launch(
            dq_kernel, (dq_programs * dq_parts,),
            (*chain(*dq_reads[:3]), *o.strides, *dq_reads[3], *strides_of(dq, dq_parts), *numbers),
            {"BQ": u.q, "BK": u.k, "PARTS": dq_parts, "PIECES": of_dq, **constants}, **u.options,
        ),
        Launch(
            dkdv_kernel, (dkdv_programs * dkdv_parts,),
            (*chain(*dkdv_reads), *strides_of(dk, dkdv_parts), *strides_of(dv, dkdv_parts), *numbers),
            {"BQ": t.q, "BK": t.k, "PARTS": dkdv_parts, "RAGGED": n_q % t.q != 0, "PIECES": of_dkdv,
             **constants},
            **t.options,
        ),
        Launch(
            sum_kernel, (dq_sums + dkdv_sums,),
            (*dq.strides, *dk.strides, *dv.strides, batch, heads, kv_heads, n_q, n_k),
            {"DQ_PARTS": dq_parts, "DKDV_PARTS": dkdv_parts, "ROWS": rows, **sizes},
        ),
    )  # fmt: skip


def launch_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
    dkdv_tile: Tile | None = None,
    dq_tile: Tile | None = None,
    parts: int | None = None,
    together: int | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """(dq, dk, dv); the tiles, `parts` and `together` override what `tiles` chooses."""
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    rows = lse.new_empty((*lse.shape, 2))
    (q, q_lies), (k, k_lies), (v, v_lies), (do, do_lies) = map(
        rows_in_one_piece, (q, k, v, do)
    )
    launch = backward_launches(
        arithmetic(q.dtype), q.dtype, q.device, dkdv_tile, dq_tile, parts, together,
        causal, scale,
        q_lies, k_lies, v_lies, shape_and_strides(o), do_lies,
        *map(shape_and_strides, (dq, dk, dv)),
    )  # fmt: skip
    dkdv_parts, dq_parts = launch.dkdv.constants["PARTS"], launch.dq.constants["PARTS"]
    with on_device_of(q):
        to_dq, to_dk, to_dv = (
            memory_for(dq, dq_parts),
            memory_for(dk, dkdv_parts),
            memory_for(dv, dkdv_parts),
        )
        inputs = [q, k, v, do]
        pieces = cut_by(launch.cut, *inputs) if launch.cut else inputs
        q, k, v, do = inputs if launch.dq.constants["PIECES"] == 1 else pieces
        launch.dq(q, k, v, o, do, lse, rows, to_dq)
        launch.dkdv(
            *(inputs if launch.dkdv.constants["PIECES"] == 1 else pieces),
            rows,
            to_dk,
            to_dv,
        )
        if dq_parts > 1 or dkdv_parts > 1:
            launch.sums(to_dq, to_dk, to_dv, dq, dk, dv)
    return dq, dk, dv

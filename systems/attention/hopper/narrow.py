"""Steps of the one-pass backward for head dimensions from 72 to 96. Unlike in
`one_pass`, the matmul for the next step's S is queued behind the matmuls for dv and dk,
and one wait covers all three, so that tensor cores don't idle between steps.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import warpgroup_mma_wait

from systems.attention.hopper.forward import release_stage, wait_full
from systems.attention.hopper.matmuls import start_add_matmul, start_matmul
from systems.attention.hopper.one_pass import apply_mask, store_ds, wait_empty
from systems.attention.triton.primitives import LOG2E


@gluon.jit
def keep_branch():
    """Emit a no-op in assembly, so that the compiler doesn't if-convert this branch."""
    gl.inline_asm_elementwise(
        "mov.u32 $0, 0;", "=r,r", [0], dtype=gl.int32, is_pure=False, pack=1
    )


# --8<-- [start:process_narrow_tile]
@gluon.jit
def process_narrow_tile(
    dk, dv, s, q, do, resident, ring, statistics, ds_ring, i, end, hidden, limit,
    is_cut, scale_log2, GROUP: gl.constexpr, MASKED: gl.constexpr, RAGGED: gl.constexpr,
):  # fmt: skip
    """Accumulate dk and dv from query tile i, store its dS, compute S of tile i + 1."""
    k, v, zeros = resident
    STAGES: gl.constexpr = statistics.lse.shape[0]
    COLUMNS: gl.constexpr = gl.SliceLayout(0, zeros.type.layout)
    TYPE: gl.constexpr = q.dtype
    dp_token = start_matmul(v, do, zeros, True)
    if MASKED:
        if is_cut:
            keep_branch()
            s = apply_mask(s, hidden, limit, RAGGED)
    lse = statistics.lse.index(i % STAGES).load(COLUMNS) * LOG2E
    p = gl.exp2(s * scale_log2 - lse[None, :])
    # This wait also keeps the compiler from moving the wait for dP above exp2.
    stage = wait_empty(ds_ring, i)
    # The matmul for dv does not need dP, so it overlaps with the wait for dP.
    dv_tokens = start_add_matmul(dv, p.to(TYPE), do)
    dp = warpgroup_mma_wait(2, deps=(dp_token,))
    delta = statistics.delta.index(i % STAGES).load(COLUMNS)
    # [64 keys, QUERIES]
    ds = (p * (dp - delta[None, :])).to(TYPE)
    tokens = dv_tokens + start_add_matmul(dk, ds, q)
    store_ds(ds, ds_ring, stage, GROUP)
    q_next, do_next = wait_full(ring, i + 1, i + 1 < end)
    # After the last step this matmul reads old tiles, and its result is unused.
    s_token = start_matmul(k, q_next, zeros, True)
    sums = warpgroup_mma_wait(0, deps=(s_token,) + tokens)  # noqa: RUF005
    release_stage(ring, i)
    return sums[3:], sums[1:3], sums[0], q_next, do_next
    # --8<-- [end:process_narrow_tile]


@gluon.jit
def process_narrow_tiles(
    steps, heads, dk, dv, resident, ring, statistics, ds_ring, hidden, shift, limit,
    cut, cut_end, scale_log2,
    GROUP: gl.constexpr, MASKED: gl.constexpr, RAGGED: gl.constexpr,
):  # fmt: skip
    """Accumulate dk, dv over heads; mask steps `cut` to `cut_end` - 1 of each head."""
    k, v, zeros = resident
    end = steps * heads
    q, do = wait_full(ring, 0, end > 0)
    s = warpgroup_mma_wait(0, deps=(start_matmul(k, q, zeros, True),))
    for i in range(end):
        head_step = i % steps
        dk, dv, s, q, do = process_narrow_tile(
            dk, dv, s, q, do, resident, ring, statistics, ds_ring, i, end,
            hidden + head_step * shift, limit,
            (head_step >= cut) & (head_step < cut_end), scale_log2, GROUP, MASKED,
            RAGGED,
        )  # fmt: skip
    return dk, dv

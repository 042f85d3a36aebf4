"""Answers to exercises 2, 3 and 6: what to write for each `...`. Those to the others
are in kernels of this guide: systems/weighted_sum.py, systems/attention/first.py.
"""

# ruff: noqa: F821

# --8<-- [start:row_softmax]
x = tl.load(x_ptr + row * stride_x + columns, mask=columns < d, other=float("-inf"))
e = tl.exp(x - tl.max(x, 0))
p = e / tl.sum(e, 0)
# --8<-- [end:row_softmax]

# --8<-- [start:online_softmax]
m_new = tl.maximum(m, tl.max(x, 0))
l = tl.exp(m - m_new) * l + tl.sum(tl.exp(x - m_new), 0)
# --8<-- [end:online_softmax]

# --8<-- [start:handout_kernel]
first = tl.program_id(0) * Q_TILE_SIZE
batch = tl.program_id(1)
q = tl.load(
    Q_ptr + batch * stride_qb
    + queries[:, None] * stride_qq + columns[None, :] * stride_qd
)  # fmt: skip
end = tl.minimum(N_KEYS, first + Q_TILE_SIZE)
k = tl.load(
    K_ptr + batch * stride_kb
    + keys[:, None] * stride_kk + columns[None, :] * stride_kd
)  # fmt: skip
v = tl.load(
    V_ptr + batch * stride_vb
    + keys[:, None] * stride_vk + columns[None, :] * stride_vd
)  # fmt: skip
# --8<-- [end:handout_kernel]

"""Work items of the forward kernel (tiles of queries), and causal ranges of keys."""

from typing import NamedTuple

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


class Problem(NamedTuple):
    """The problem's size (queries, keys, query heads), and scale · log2(e)."""

    n_q: gl.tensor
    n_k: gl.tensor
    heads: gl.tensor
    scale_log2: gl.tensor


class Schedule(NamedTuple):
    """A program's items: their numbers are items_ptr[first] to items_ptr[end - 1]."""

    items_ptr: gl.tensor
    first: gl.tensor
    end: gl.tensor


class Item(NamedTuple):
    """A tile of queries of one head, with its number of steps over tiles of keys."""

    batch: gl.tensor
    head: gl.tensor
    q_start: gl.tensor
    steps: gl.tensor


@gluon.jit
def get_item(number, problem, BQ: gl.constexpr, BK: gl.constexpr, CAUSAL: gl.constexpr):
    """Return the Item of a number, which is tile + tiles · (batch · heads + head)."""
    tiles = gl.cdiv(problem.n_q, BQ)
    batch_head = number // tiles
    q_start = number % tiles * BQ
    batch, head = batch_head // problem.heads, batch_head % problem.heads
    keys = count_visible_keys(q_start, BQ, problem.n_k, CAUSAL)
    return Item(batch, head, q_start, gl.cdiv(keys, BK))


@gluon.jit
def count_visible_keys(q_start, BQ: gl.constexpr, n_k, CAUSAL: gl.constexpr):
    """Return how many keys, from key 0 on, any of BQ queries from q_start on sees."""
    keys = n_k
    if CAUSAL:
        keys = gl.minimum(n_k, q_start + BQ)
    return keys


@gluon.jit
def visible_mask(rows, keys, n_k, CAUSAL: gl.constexpr):
    """Return a mask [rows, keys] of the keys that each row attends to."""
    if CAUSAL:
        visible = keys[None, :] <= gl.minimum(rows, n_k - 1)[:, None]
    else:
        visible = (keys < n_k)[None, :]
    return visible

"""Choose between one and two kernels for the Hopper backward pass, and the walk of the
one: the order in which programs of a head, each with a tile of keys, meet the tiles of
queries.

Programs add to dq in memory in the walk's order, so that results are bitwise
reproducible. `shift` and `ordered` hold the kernels of the walks. Two passes run where
they were faster on an H200.
"""

from functools import lru_cache
from typing import NamedTuple

import triton

from systems.attention.hopper.configs import ONE_PASS_KEYS
from systems.attention.hopper.limits import TILE_DIMS
from systems.attention.relaunch import Layout

# --8<-- [start:limits]
# Head dimensions from 72 to this one have products and sums of 96 columns of the 128 in
# a tile, as 64 and 32.
NARROW_HEAD = 96
# The shift walk takes at least so many rows, by the head dimension of its tiles, under
# a causal mask; without one, half as many.
ONE_PASS_MIN_KEYS = {64: 2048, 128: 4096}
# So much of all SMs' time must go into steps, or the shift walk is not taken.
ONE_PASS_USE = 0.9
# The ordered walk, chosen on an H200 by times of this walk, the shift walk and two
# passes in turns, all but one of them under a causal mask. Where the shift walk can go
# it is as fast or faster, but for narrow heads, whose products only this one saves.
# Elsewhere this one beat two passes at each length that was timed: 4000 to 32,768 at
# tiles of 128, with and without shared heads, and 16,384 at 64. With fewer keys or
# queries two passes are taken, by tiles and halved as above; a last one may be short.
ORDERED_MIN_KEYS = {64: 4096, 128: 4096}
# With fewer programs, about two for each SM, shared heads are dealt out to twice as
# many, or to one program each. If these are still too few, two passes are taken.
ORDERED_MIN_PROGRAMS = 256
# Tiles of 128 keys, times the query heads that share them. With so many the walk of one
# program is too long: its neighbours drift apart, and what one has read has left the L2
# cache when the next one comes. Then each head has programs of its own, whose dk and dv
# are summed afterwards. On an H200, under a causal mask and at tiles of 128 columns,
# 4 heads of 8192 rows (64 tiles) were faster so, and 4 of 4096 slower, as were 4 of
# 8192 at tiles of 64 columns. More queries than keys, or fewer, were not timed.
DEALT_TILES = 256
# Tiles of keys side by side: about one for each SM. Half as many where a program has
# several query heads under a causal mask. Twice as many where long walks were dealt
# out, and without a mask: there the programs of a head start at the same queries and
# queue, but only once.
SIDE_TILES = 128
# Tiles of keys of the heads that are walked backwards at the end: two heads or more,
# but half of all at most.
BACKWARDS_TILES = 256
# With a single head of keys nothing could fill up the end, so it takes two passes. With
# so many tiles the end is short enough: walked backwards, 65,536 keys were faster, at
# head dimension 64 and with one head of queries; others were not timed.
LONE_TILES = 512
# --8<-- [end:limits]


class Shift(NamedTuple):
    """The walk of `shift`, with `groups` heads at a time."""

    groups: int


class Ordered(NamedTuple):
    """The walk of `ordered`: `side` KV heads are interleaved, and those from `turn` on
    walked backwards. The query heads of a KV head are divided into `parts`, each
    scheduled like a head.
    """

    side: int
    turn: int
    parts: int = 1


def count_shift_groups(q: Layout, k: Layout, causal: bool, processors: int) -> int:
    """Return how many heads the shift walk processes at a time, 0 if it can't run or
    would leave SMs idle.

    All programs of a head run at once, one per SM, and wait for one another.
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


# --8<-- [start:walks]
def plan_ordered_walk(q: Layout, k: Layout, causal: bool) -> Ordered | None:
    """Return the ordered walk for q (b, h, n_q, d) and k (b, h_kv, n_k, d), or None
    where two passes are faster.
    """
    batch, kv_heads, n_k, d = k.shape
    shared, n_q = q.shape[1] // kv_heads, q.shape[2]
    tiles = triton.cdiv(n_k, ONE_PASS_KEYS)
    least = ORDERED_MIN_KEYS[TILE_DIMS[d]] // (1 if causal else 2)
    if triton.cdiv(min(n_q, n_k), ONE_PASS_KEYS) * ONE_PASS_KEYS < least:
        return None
    programs = batch * kv_heads * tiles
    parts = 1
    wide = causal and TILE_DIMS[d] == 128
    one_head_each = wide and shared > 1 and shared * tiles >= DEALT_TILES
    if one_head_each:
        parts = shared
    elif programs < ORDERED_MIN_PROGRAMS:
        target = 2 * ORDERED_MIN_PROGRAMS
        parts = next((x for x in divisors(shared) if x * programs >= target), shared)
    heads = batch * kv_heads * parts
    if heads == 1 and causal and tiles >= LONE_TILES:
        return Ordered(1, 0)
    if programs * parts < ORDERED_MIN_PROGRAMS or heads == 1:
        return None
    if not causal:
        return Ordered(min(heads, max(1, 2 * SIDE_TILES // tiles)), heads, parts)
    beside = 2 * SIDE_TILES if one_head_each else SIDE_TILES
    side = max(1, beside // tiles // (2 if shared > parts else 1))
    backwards = min(heads // 2, max(2, BACKWARDS_TILES // tiles))
    return Ordered(min(heads, side), heads - backwards, parts)


def divisors(n: int) -> list[int]:
    return [x for x in range(1, n + 1) if n % x == 0]


@lru_cache(maxsize=1024)
def choose_walk(
    q: Layout, k: Layout, causal: bool, processors: int
) -> Shift | Ordered | None:
    """Return the walk of the one-pass backward, or None where two passes are faster."""
    groups = count_shift_groups(q, k, causal, processors)
    ordered = plan_ordered_walk(q, k, causal)
    if groups and not (ordered and is_narrow(q.shape[-1])):
        return Shift(groups)
    return ordered


# --8<-- [end:walks]


def is_narrow(d: int) -> bool:
    return TILE_DIMS[d] == 128 and d <= NARROW_HEAD

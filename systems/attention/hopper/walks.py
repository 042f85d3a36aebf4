"""Choose whether the Hopper backward pass has one kernel or two, and for one kernel the
walk: the order in which programs, each with a tile of keys, process the tiles of
queries and add to dq. The limits were timed on an H200.
"""

from functools import lru_cache
from typing import NamedTuple

import triton

from systems.attention.hopper.configs import ONE_PASS_KEYS
from systems.attention.hopper.limits import TILE_DIMS
from systems.attention.relaunch import Layout

# --8<-- [start:limits]
# Largest narrow head dimension: from 72 on, matmuls use blocks of 64 and 32 columns.
NARROW_HEAD = 96
# Minimum keys for the shift walk if causal, by padded head dimension; otherwise half.
SHIFT_MIN_KEYS = {64: 2048, 128: 4096}
# The shift walk needs this SM utilization: steps / (SMs x most steps of a program).
SHIFT_MIN_USE = 0.9
# Minimum queries and keys for the ordered walk if causal, rounded up to whole tiles;
# otherwise half. Where both walks apply, the shift walk is used, except for narrow
# heads, whose padding only the ordered walk skips.
ORDERED_MIN_KEYS = {64: 4096, 128: 4096}
# Minimum number of programs, about two per SM. With fewer, the query heads of a KV head
# are divided among programs; if that is not enough, two kernels run instead.
ORDERED_MIN_PROGRAMS = 256
# If causal, with padded head dimension 128, programs have one query head each where
# (tiles of 128 keys) x (query heads per KV head) is at least this: in longer loops
# programs drift apart, and tiles leave the L2 cache before they are read again.
DEALT_TILES = 256
# Key tiles in all interleaved heads, about one per SM. Doubled if not causal or if
# DEALT_TILES applies; halved if causal programs have several query heads.
SIDE_TILES = 128
# Key tiles in the heads that loop backwards: at least 2 heads, at most half of all.
BACKWARDS_TILES = 256
# Under a causal mask, a single KV head needs this many key tiles for the ordered walk,
# because no other head fills the SMs at the end.
LONE_TILES = 512
# --8<-- [end:limits]


class ShiftWalk(NamedTuple):
    """The walk of the module `shift`; `groups` heads run at the same time."""

    groups: int


class OrderedWalk(NamedTuple):
    """The walk of the module `ordered`, whose class `Walk` explains the fields."""

    side: int
    turn: int
    parts: int = 1


def count_shift_groups(q: Layout, k: Layout, causal: bool, processors: int) -> int:
    """Return how many heads a shift walk on `processors` SMs runs at once, or 0 if it
    can't run these shapes or is too slow for them.
    """
    batch, heads, n, d = k.shape
    tiles = n // ONE_PASS_KEYS
    min_keys = SHIFT_MIN_KEYS[TILE_DIMS[d]] // (1 if causal else 2)
    if q.shape != k.shape or n % ONE_PASS_KEYS or n < min_keys or tiles > processors:
        return 0
    groups = min(processors // tiles, batch * heads)
    walks = triton.cdiv(batch * heads, groups)
    # Here a step has 128 queries. Under a causal mask heads are paired: a program takes
    # tiles + 1 steps for a pair, and at most `tiles` for a last head alone.
    longest = walks // 2 * (tiles + 1) + walks % 2 * tiles if causal else walks * tiles
    steps = (
        batch * heads * tiles * (tiles + 1) // 2 if causal else batch * heads * tiles**2
    )
    return groups if steps >= SHIFT_MIN_USE * processors * longest else 0


# --8<-- [start:walks]
def plan_ordered_walk(q: Layout, k: Layout, causal: bool) -> OrderedWalk | None:
    """Return parameters of a one-kernel backward pass, or None if two kernels win."""
    batch, kv_heads, n_k, d = k.shape
    group, n_q = q.shape[1] // kv_heads, q.shape[2]
    tiles = triton.cdiv(n_k, ONE_PASS_KEYS)
    min_keys = ORDERED_MIN_KEYS[TILE_DIMS[d]] // (1 if causal else 2)
    if triton.cdiv(min(n_q, n_k), ONE_PASS_KEYS) * ONE_PASS_KEYS < min_keys:
        return None
    programs = batch * kv_heads * tiles
    parts = 1
    wide = causal and TILE_DIMS[d] == 128
    one_head_each = wide and group > 1 and group * tiles >= DEALT_TILES
    if one_head_each:
        parts = group
    elif programs < ORDERED_MIN_PROGRAMS:
        target = 2 * ORDERED_MIN_PROGRAMS
        parts = next((x for x in divisors(group) if x * programs >= target), group)
    heads = batch * kv_heads * parts
    if heads == 1 and causal and tiles >= LONE_TILES:
        return OrderedWalk(1, 0)
    if programs * parts < ORDERED_MIN_PROGRAMS or heads == 1:
        return None
    if not causal:
        return OrderedWalk(min(heads, max(1, 2 * SIDE_TILES // tiles)), heads, parts)
    side_tiles = 2 * SIDE_TILES if one_head_each else SIDE_TILES
    side = max(1, side_tiles // tiles // (2 if group > parts else 1))
    backwards = min(heads // 2, max(2, BACKWARDS_TILES // tiles))
    return OrderedWalk(min(heads, side), heads - backwards, parts)


def divisors(n: int) -> list[int]:
    return [x for x in range(1, n + 1) if n % x == 0]


@lru_cache(maxsize=1024)
def choose_walk(
    q: Layout, k: Layout, causal: bool, processors: int
) -> ShiftWalk | OrderedWalk | None:
    """Return the walk of the one-kernel backward, or None if two kernels are faster."""
    groups = count_shift_groups(q, k, causal, processors)
    ordered = plan_ordered_walk(q, k, causal)
    if groups and not (ordered and is_narrow(q.shape[-1])):
        return ShiftWalk(groups)
    return ordered
    # --8<-- [end:walks]


def is_narrow(d: int) -> bool:
    return TILE_DIMS[d] == 128 and d <= NARROW_HEAD

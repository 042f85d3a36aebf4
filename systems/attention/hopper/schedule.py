"""Assign the items (tiles of queries) of the Hopper forward pass to its programs."""

from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from heapq import heapreplace
from itertools import accumulate

import torch
import triton
from torch import Tensor

# Overhead of an item, in units of the time of a step.
ITEM_STEPS = 1


# --8<-- [start:schedule]
@lru_cache(maxsize=256)
def make_schedule(
    n_q: int, n_k: int, batch_heads: int, head_swizzle: int, rows: int, keys: int,
    causal: bool, programs: int, last_items: int, device: torch.device,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Return (starts, items), int32: program i computes items[starts[i]:starts[i + 1]].

    An item is a tile of `rows` queries, with the number tile + (tiles per head) · head.
    It takes one step for each tile of `keys` keys. Heads are interleaved in groups of
    `head_swizzle`; the last heads form one group of about `last_items` items per
    program, so that programs end together. In a group, longer items come first. The
    program that is free first gets the next item.
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
        for group in (*groups, range(bulk, batch_heads))
        for tile in reversed(range(tiles))
        for head in group
    )
    items_by_program: list[list[int]] = [
        [] for _ in range(min(programs, tiles * batch_heads))
    ]
    free = [(0, program) for program in range(len(items_by_program))]
    for item in order:
        time, program = free[0]
        items_by_program[program].append(item)
        heapreplace(free, (time + steps[item % tiles] + ITEM_STEPS, program))
    starts = [0, *accumulate(map(len, items_by_program))]
    items = [item for of_program in items_by_program for item in of_program]
    as_tensor = partial(torch.tensor, dtype=torch.int32, device=device)
    # Allocate in another thread: while `torch.compile` warms up a CUDA graph, tensors
    # allocated in this thread belong to the graph's memory pool.
    with ThreadPoolExecutor(1) as thread:
        return tuple(thread.map(as_tensor, (starts, items)))  # pyright: ignore
    # --8<-- [end:schedule]

"""Formulas for strategies of `systems.model.checkpointing`: number of forward passes
and peak memory. "halving" and "chain" are recursive. Letters as in `memory_costs`.
"""

import math
from collections.abc import Iterator
from dataclasses import replace

from systems.formulas.memory_costs import (
    BF16_BYTES,
    Bytes,
    Pass,
    attention_bytes,
    block_matrix_entries,
    block_saved_bytes,
    residual_bytes,
    weight_bytes,
)
from systems.formulas.memory_peak import (
    BackwardBlock,
    block_backward_bytes,
    last_forward_bytes,
    peak_candidates,
)


def count_kept_inputs(strategy: str, layers: int, block: int) -> int:
    """Return the number of block inputs in memory while `block` is recomputed."""
    if strategy == "halving":
        # The model's input, and that of each nested second half around `block`.
        return 1 + sum(second for second in in_second_halves(layers, block))
    if strategy == "chain":
        return min(block, 2)
    return block


def count_forward_passes(strategy: str, layers: int) -> float:
    """Return how often a block is computed on average, counting the forward pass."""
    # A single block has no halves: it runs without a checkpoint.
    if strategy == "none" or (strategy, layers) == ("halving", 1):
        return 1
    if strategy == "halving":
        # A block is computed in the forward pass, for its own backward pass, and for
        # each first half that contains it (but the outermost), to get the input of the
        # second half. There PyTorch stops, because it has recomputed all saved tensors.
        blocks = range(1, layers + 1)
        firsts = sum(not s for b in blocks for s in in_second_halves(layers, b)[1:])
        return 2 + firsts / layers
    if strategy == "chain":
        # A block is computed in the forward pass, and again for each backward pass of
        # this block or a later one.
        return 1 + (layers + 1) / 2
    return 2


def in_second_halves(layers: int, block: int) -> list[bool]:
    """Return if block (1 to layers) is in the second half, for each nested halving."""
    if layers == 1:
        return []
    middle = layers // 2
    second = block > middle
    inner = (layers - middle, block - middle) if second else (middle, block)
    return [second, *in_second_halves(*inner)]


def best_run_lengths(p: Pass) -> tuple[float, float]:
    """Return two estimates of the run length that minimizes the peak: √layers (as if a
    block saved only its input), and one from the bytes that a block saves.
    """
    layers = p.shape.num_layers
    smaller = residual_bytes(p) / block_saved_bytes(p)
    return math.sqrt(layers), math.sqrt(layers * smaller)


# --8<-- [start:peaks]
def strategy_peaks(p: Pass, strategy: str, run: int = 1) -> tuple[int, int]:
    """Return two peaks of forward and backward in bytes: with gradients allocated
    during the pass, and with all gradients allocated before it.
    """
    moments = list(strategy_peak_candidates(p, strategy, run))
    growing = max(sum(moment.values()) for moment in moments)
    gradients = {"gradients": weight_bytes(p)}
    return growing, max(sum((moment | gradients).values()) for moment in moments)


def strategy_peak_candidates(p: Pass, strategy: str, run: int) -> Iterator[Bytes]:
    """Yield bytes by category at every moment that may be a strategy's peak."""
    layers = p.shape.num_layers
    if strategy in ("none", "attention") or (strategy, layers) == ("halving", 1):
        recomputed = replace(p, recompute_attention=strategy == "attention")
        yield from peak_candidates(recomputed).values()
    elif strategy in ("runs", "by_hand"):
        for when, moment in peak_candidates(replace(p, checkpoint=run)).items():
            # `RecomputeBlock` keeps the incoming gradient until the block is finished.
            inside = when.startswith("backward") and "block" in when
            held_gradient = residual_bytes(p) if strategy == "by_hand" and inside else 0
            yield moment | {"temporaries": moment["temporaries"] + held_gradient}
    else:
        single = replace(p, checkpoint=1)
        ends = peak_candidates(single)
        # At the loss and the embedding, strategies differ only in the saved inputs.
        saved_inputs = {"half_blocks": 2 * layers, "halving": 2, "chain": 1}[strategy]
        extra = saved_inputs - layers
        for when in ("after the forward pass", "backward, the loss"):
            saved = ends[when]["saved activations"] + extra * residual_bytes(p)
            yield ends[when] | {"saved activations": saved}
        yield ends["backward, the embedding"]
        # After the forward pass, all temporaries are those that last.
        lasting = ends["after the forward pass"]
        for moment in block_peak_candidates(single, strategy):
            temporaries = lasting["temporaries"] + moment["temporaries"]
            weights = {"weights": lasting["weights"]}
            yield weights | moment | {"temporaries": temporaries}


def block_peak_candidates(p: Pass, strategy: str) -> Iterator[Bytes]:
    """Yield bytes by category: the last block's forward, then each block's backward."""
    layers, residual = p.shape.num_layers, residual_bytes(p)
    # Half blocks keep two inputs per block; nested runs keep one per enclosing run.
    halves = strategy == "half_blocks"
    inputs = 2 * layers - 1 if halves else count_kept_inputs(strategy, layers, layers)
    yield from last_forward_bytes(p, inputs).values()
    for block in range(1, layers + 1):
        inputs = 2 * block if halves else count_kept_inputs(strategy, layers, block)
        moment = block_backward_bytes(p, BackwardBlock(block, inputs))
        feed_forward, attention = moment["feed-forward half"], moment["attention"]
        if halves:
            less = sum(attention_bytes(p).values())
            feed_forward["temporaries"] -= less
            attention["saved activations"] -= residual
        yield feed_forward
        yield attention
        if strategy == "chain" and p.autocast:
            # Autocast caches bf16 weights of blocks 1 to `block`, which are recomputed.
            copies = block * block_matrix_entries(p) * BF16_BYTES
            new_tensors = block_saved_bytes(p) + residual + residual // 2
            yield attention | {"weight copies": copies, "temporaries": new_tensors}
    # --8<-- [end:peaks]

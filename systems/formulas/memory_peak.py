"""Formulas for a pass's peak memory: bytes by category at every moment that may be the
peak. Letters as in `memory_costs`.
"""

from dataclasses import dataclass

from systems.formulas.costs import FP32_BYTES, INT64_BYTES
from systems.formulas.memory_costs import (
    BF16_BYTES,
    BOOL_BYTES,
    Bytes,
    Pass,
    attention_backward_bytes,
    block_matrix_entries,
    block_saved_bytes,
    count_segments,
    graph_bytes,
    logits_bytes,
    loss_saved_bytes,
    outside_block_bytes,
    residual_bytes,
    rotary_table_bytes,
    weight_bytes,
    weight_copy_bytes,
)
from systems.formulas.symbols import maximum, minimum
from systems.profiling.memory.snapshot import CATEGORIES


# --8<-- [start:most]
def category_peaks(p: Pass) -> Bytes:
    """Return each category's maximum bytes over time; temporaries are left out."""
    graphs = {"forward": 0, "forward_two_graphs": 2}.get(p.mode, 1)
    trains = p.mode in ("forward_backward", "step")
    states = p.optimizer_states if p.mode == "step" else 0
    return {
        "weights": weight_bytes(p) + rotary_table_bytes(p),
        "optimizer state": states * weight_bytes(p),
        "gradients": weight_bytes(p) if trains else 0,
        # Weight copies exist until autocast ends, or as long as autograd's graph.
        "weight copies": max(1, graphs) * weight_copy_bytes(p),
        "saved activations": graphs * graph_bytes(p)
        + (sum(loss_saved_bytes(p).values()) if trains else 0),
    }
    # --8<-- [end:most]


# --8<-- [start:peak]
def bytes_at_peak(p: Pass) -> Bytes:
    """Return the bytes of each category at the peak, including temporaries."""
    return max(peak_candidates(p).values(), key=lambda moment: sum(moment.values()))


def peak_candidates(p: Pass) -> dict[str, Bytes]:
    """Return the bytes by category at every moment that may be the peak. The formulas
    assume several layers and d_ff ≥ d_model.
    """
    if p.mode in ("forward_backward", "step"):
        by_moment = training_candidates(p)
    elif p.mode == "forward":
        by_moment = no_graph_candidates(p)
    else:
        # The end is the peak if the scores are smaller than the other tensors. With
        # recomputation they often are not, so `Pass` refuses it in these modes.
        stream = {"temporaries": residual_bytes(p) if p.autocast else 0}
        by_moment = {"after the forward pass": category_peaks(p) | stream}
    lasting = {name: category_peaks(p)[name] for name in ("weights", "optimizer state")}
    # Token ids, targets, and a cuBLAS workspace for each thread that runs matmuls.
    threads = 2 if p.mode in ("forward_backward", "step") else 1
    always = threads * p.workspace_bytes + 2 * p.tokens * INT64_BYTES
    return {
        when: {name: {**lasting, **moment}.get(name, 0) for name in CATEGORIES}
        | {"temporaries": moment.get("temporaries", 0) + always}
        for when, moment in by_moment.items()
    }


def no_graph_candidates(p: Pass) -> dict[str, Bytes]:
    """Return the bytes at the possible peaks of a forward pass without autograd graph:
    in the last block's attention, in its feed-forward half, and in the head.

    A score takes 12 bytes in fp32 (three matrices) and under autocast (two bf16 and two
    fp32 matrices), and 6 bytes in pure bf16. All heads share a mask.
    """
    n, d, f, s = p.tokens, p.shape.d_model, p.shape.d_ff, p.context
    low, wide, eager = p.matmul_itemsize, p.weight_itemsize, p.attention == "eager"
    scores = n * p.shape.num_heads * s * 3 * wide + s * s * BOOL_BYTES if eager else 0
    copies = weight_copy_bytes(p)
    head = p.vocab * d * BF16_BYTES if p.autocast else 0
    last = (3 * d * f + d * d) * BF16_BYTES if p.autocast else 0
    return {
        "in the last attention": {
            "weight copies": copies - head - last,
            "temporaries": n * d * (4 * wide + 3 * low) + scores,
        },
        "in the last feed-forward half": {
            "weight copies": copies - head,
            "temporaries": n * d * 3 * wide + n * f * 3 * low,
        },
        "at the head": {
            "weight copies": copies,
            "temporaries": n * d * (2 * wide + (low if p.autocast else 0))
            + logits_bytes(p),
        },
    }


def training_candidates(p: Pass) -> dict[str, Bytes]:
    """Return the bytes at the possible peaks of a training pass: in the loss, in the
    backward pass of some blocks, and in the optimizer.

    From block to block, activations are freed and gradients allocated by constant
    amounts, so the peak is at either end of the model or of a recomputed segment.
    """
    n, d, f, layers = p.tokens, p.shape.d_model, p.shape.d_ff, p.shape.num_layers
    graph, loss = graph_bytes(p), sum(loss_saved_bytes(p).values())
    wide = p.weight_itemsize
    copies = weight_copy_bytes(p)
    head = p.vocab * d
    inputs = 0
    if p.checkpoint:
        # The weight copies of a checkpointed segment are freed after its forward pass.
        copies = head * BF16_BYTES if p.autocast else 0
        last = count_segments(p) - 1
        whole_run = maximum(last - 1, 0)
        # If the last segment has several blocks, its last block's input is kept, too.
        inputs = last + 1 + minimum(layers - 1 - last * p.checkpoint, 1)
        run_end = minimum((whole_run + 1) * p.checkpoint, layers)
        first_end = minimum(p.checkpoint, layers)
        ends = {
            "last block": block_position(p, last, layers),
            "first block of the last run": block_position(p, last),
            "last block of a whole run": block_position(p, whole_run, run_end),
            "first block of that run": block_position(p, whole_run),
            "last block of the first run": block_position(p, 0, first_end),
            "first block": block_position(p, 0),
        }
    else:
        ends = {"last block": BackwardBlock(layers), "first block": BackwardBlock(1)}
    # Gradients of the log-softmax and of the logits. Under autocast, the fp32 copy of
    # the log-softmax is freed before the gradient of the logits is allocated.
    loss_gradients = n * p.vocab * (4 if p.autocast else 2 * p.matmul_itemsize)
    candidates = {
        **(last_forward_bytes(p, inputs) if p.checkpoint else {}),
        "after the forward pass": {
            "weight copies": copies,
            "saved activations": graph + loss,
        },
        "backward, the loss": {
            "weight copies": copies,
            "saved activations": graph - logits_bytes(p) + loss,
            "temporaries": loss_gradients,
        },
        # The backward pass of the norm keeps five fp32 tensors at once.
        "backward, the last norm": {
            "gradients": head * wide,
            "weight copies": copies - (head * BF16_BYTES if p.autocast else 0),
            "saved activations": graph
            - logits_bytes(p)
            - sum(outside_block_bytes(p).values())
            + n * d * FP32_BYTES,
            "temporaries": 5 * n * d * FP32_BYTES,
        },
        **{
            f"backward, {half} of the {block_name}": moment
            for block_name, end in ends.items()
            for half, moment in block_backward_bytes(p, end).items()
        },
        # With tied weights, the gradients of embedding and head coexist with their sum.
        # Under autocast the head's is a new fp32 copy, to which autograd adds in place.
        "backward, the embedding": {
            "gradients": weight_bytes(p),
            "temporaries": residual_bytes(p)
            + (2 - p.embeddings) * head * (FP32_BYTES if p.autocast else 2 * wide),
        },
    }
    if p.mode == "step":
        # AdamW allocates the square root of the second moment, one parameter at a time.
        # Optimizers with fewer than two states need no square root.
        root = wide * (p.optimizer_states // 2)
        for name, largest in {"a feed-forward matrix": d * f, "the head": head}.items():
            candidates[f"optimizer, {name}"] = {
                "gradients": weight_bytes(p),
                "temporaries": largest * root,
            }
    return candidates


def last_forward_bytes(p: Pass, inputs: int) -> dict[str, Bytes]:
    """Return the bytes at the possible peaks of the last block's forward pass, while
    `inputs` block inputs are in memory (`no_graph_candidates` counts one of them).
    """
    keeping_nothing = no_graph_candidates(p)
    kept_inputs = (inputs - 1) * residual_bytes(p)
    return {
        f"forward, {when}": keeping_nothing[when] | {"saved activations": kept_inputs}
        for when in ("in the last attention", "in the last feed-forward half")
    }


@dataclass(frozen=True)
class BackwardBlock:
    """A block in the backward pass: its number, from 1; if blocks are recomputed, also
    the number of block inputs in memory and of earlier blocks in its segment.
    """

    block: int
    inputs: int = 1
    before: int = 0


def block_position(p: Pass, run: int, block: int | None = None) -> BackwardBlock:
    """Return `block` (default: the first) of segment `run`, counted from 0."""
    first = run * p.checkpoint + 1
    block = first if block is None else block
    return BackwardBlock(block, run + 1, block - first)


def block_backward_bytes(p: Pass, position: BackwardBlock) -> dict[str, Bytes]:
    """Return the bytes by category in a block's backward pass, for its feed-forward
    half and its attention.
    """
    n, d, f = p.tokens, p.shape.d_model, p.shape.d_ff
    low, wide = p.matmul_itemsize, p.weight_itemsize
    entries = block_matrix_entries(p) + 2 * d
    saved_block = block_saved_bytes(p)
    # This block, earlier blocks and the embedding have no gradients yet.
    embedding = (p.embeddings - 1) * p.vocab * d
    gradients = weight_bytes(p) - (position.block * entries + embedding) * wide
    copy = BF16_BYTES if p.autocast else 0
    before = position.before if p.checkpoint else position.block - 1
    copies = before * block_matrix_entries(p) * copy
    # The input that the segment's first norm (without recomputation: the model's) saves
    # in fp32. In pure bf16 it is a copy of the segment's input.
    stream = n * d * FP32_BYTES
    earlier = before * saved_block
    if p.checkpoint and p.precision == "pure_bf16":
        earlier += stream

    def bytes_at(saved: int, weight_copies: int, graded: int, work: int) -> Bytes:
        """Return {category: bytes} while half the block holds `saved` activation bytes,
        `weight_copies`, `work` temporaries, and gradients of `graded` weights.
        """
        saved, weight_copies = earlier + saved, copies + weight_copies
        at = {"gradients": gradients + graded * wide}
        if p.checkpoint:
            # Count recomputed activations as temporaries.
            at["saved activations"] = position.inputs * residual_bytes(p)
            return at | {"temporaries": saved + weight_copies + work}
        at |= {"saved activations": saved + stream, "weight copies": weight_copies}
        return at | {"temporaries": work}

    # These tensors are freed before softmax's backward pass, which needs 5 matrices.
    freed = ("v", "input of the output projection", "residual stream, fp32")
    saved_sizes = attention_backward_bytes(p)
    for name in ("probabilities", *freed):
        saved_sizes.pop(name, None)
    scores = n * p.shape.num_heads * p.context if p.attention == "eager" else 0
    return {
        # The gradients of w2, of the gated value and of its two factors exist; the
        # gated value itself is freed.
        "feed-forward half": bytes_at(
            saved=saved_block - stream - n * f * low,
            weight_copies=(block_matrix_entries(p) - d * f) * copy,
            graded=d * f,
            work=n * d * wide + 3 * n * f * low,
        ),
        "attention": bytes_at(
            saved=sum(saved_sizes.values()),
            weight_copies=(d + 2 * p.kv_width) * d * copy,
            graded=d * d + 3 * d * f + d,
            work=n * d * (wide + low) + 5 * scores * wide,
        ),
    }
    # --8<-- [end:peak]

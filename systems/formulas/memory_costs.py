"""What a pass must keep in memory, by formula: every saved tensor by name, and the peak
of each mode by category.

Arithmetic only, as in `costs`: the renderer sets it beside what was measured, and
beside what ran out of memory. Tests hold it to what autograd saves in passes of several
sizes.

Letters: b sequences of s tokens, n = b·s; d model width, f feed-forward width, h heads
of width e, v vocabulary.
"""

from dataclasses import asdict, dataclass

from systems.formulas.costs import FP32_BYTES, INT64_BYTES, parameters_by_part
from systems.model.sizes import SIZES, VOCAB_SIZE
from systems.profiling.memory.snapshot import CATEGORIES

BF16_BYTES = 2
BOOL_BYTES = 1
Bytes = dict[str, int]


@dataclass(frozen=True)
class Pass:
    """What is run: fields as in the `Config` of `peak_memory`."""

    size: str
    context: int
    mode: str
    precision: str
    attention: str = "eager"
    checkpoint: str = "no"
    batch: int = 4
    vocab: int = VOCAB_SIZE

    @property
    def low(self) -> int:
        """Bytes of an element that a matrix product reads and writes."""
        return FP32_BYTES if self.precision == "fp32" else BF16_BYTES


# --8<-- [start:saved]
def attention_saved(p: Pass) -> Bytes:
    """What the attention half of one block keeps for the backward pass, by tensor; the
    norm before it included.
    """
    shape = SIZES[p.size]
    n, d, h, s = p.batch * p.context, shape.d_model, shape.num_heads, p.context
    low, fp32, scores = p.low, FP32_BYTES, p.batch * h * s * s
    # Under autocast q, k and v each cast the norm's output, which is fp32, and each
    # keeps its copy.
    inputs = (
        {"input of q, k, v": n * d * fp32}
        if low == fp32
        else {"inputs of q, k, v, cast three times": 3 * n * d * low}
    )
    kept = {
        "norm before its weight, fp32": n * d * fp32,
        "inverse rms, fp32": n * fp32,
        **inputs,
        "cosines and sines for q and k, fp32": 2 * s * d // h * fp32,
        "q and k, rotated": 2 * n * d * low,
        "v": n * d * low,
    }
    if p.attention == "eager":
        kept |= {
            "mask": s * s * BOOL_BYTES,
            "positions of the maxima, int64": n * h * INT64_BYTES,
            "exponentials, fp32": scores * fp32,
            "row sums, fp32": n * h * fp32,
            "probabilities": scores * low,
        }
    else:
        kept |= {"output of the kernel": n * d * low, "log-sum-exp, fp32": n * h * fp32}
    return kept | {
        "input of the output projection": n * d * low,
        "residual stream, fp32": n * d * fp32,
    }


def feed_forward_saved(p: Pass) -> Bytes:
    """The same of the feed-forward half."""
    shape = SIZES[p.size]
    n, d, f, low, fp32 = (
        p.batch * p.context,
        shape.d_model,
        shape.d_ff,
        p.low,
        FP32_BYTES,
    )
    inputs = (
        {"input of w1, w3": n * d * fp32}
        if low == fp32
        else {"inputs of w1, w3, cast twice": 2 * n * d * low}
    )
    return {
        "norm before its weight, fp32": n * d * fp32,
        "inverse rms, fp32": n * fp32,
        **inputs,
        "gate w1 x": n * f * low,
        "sigmoid": n * f * low,
        "silu": n * f * low,
        "value w3 x": n * f * low,
        "gated value, the input of w2": n * f * low,
        "residual stream, fp32": n * d * fp32,
    }


def ends_saved(p: Pass) -> Bytes:
    """What is kept before the first block and after the last, up to the logits."""
    shape = SIZES[p.size]
    n, d = p.batch * p.context, shape.d_model
    return {
        "embedded tokens, fp32": n * d * FP32_BYTES,
        "final norm before its weight, fp32": n * d * FP32_BYTES,
        "inverse rms, fp32": n * FP32_BYTES,
        "input of the head": n * d * p.low,
    }


def loss_saved(p: Pass) -> Bytes:
    """What the loss keeps; the logits are held by whoever called the model.

    CUDA's autocast casts `nll_loss` and not `cross_entropy`, which asks for a
    log-softmax in the dtype of the logits.
    """
    entries = p.batch * p.context * p.vocab
    return {
        "log-softmax": entries * p.low,
        "log-softmax, cast for the loss, fp32": entries * FP32_BYTES
        if p.low < FP32_BYTES
        else 0,
        "loss and its total weight, fp32": 2 * FP32_BYTES,
    }


def logits_bytes(p: Pass) -> int:
    return p.batch * p.context * p.vocab * p.low


def residual_bytes(p: Pass) -> int:
    """One tensor of the residual stream, (b, s, d) in fp32, under autocast too: sums
    with fp32 are fp32.
    """
    return p.batch * p.context * SIZES[p.size].d_model * FP32_BYTES


# --8<-- [end:saved]


def weight_bytes(p: Pass) -> int:
    """All parameters in fp32."""
    return (
        sum(parameters_by_part(vocab_size=p.vocab, **asdict(SIZES[p.size])).values())
        * FP32_BYTES
    )


def table_bytes(p: Pass) -> int:
    """The cosines and sines of every position, fp32: no parameter, but as lasting as
    one.
    """
    return p.context * SIZES[p.size].d_model // SIZES[p.size].num_heads * FP32_BYTES


def copied_bytes(p: Pass) -> int:
    """The bf16 copies of all weight matrices that autocast makes, the embedding not
    among them.
    """
    shape = SIZES[p.size]
    matrices = (
        shape.num_layers * (4 * shape.d_model**2 + 3 * shape.d_model * shape.d_ff)
        + p.vocab * shape.d_model
    )
    return matrices * BF16_BYTES if p.precision == "bf16" else 0


def kept_bytes(p: Pass) -> int:
    """What one forward pass keeps with its graph, the logits included."""
    block = sum(attention_saved(p).values()) + sum(feed_forward_saved(p).values())
    if p.checkpoint == "yes":
        # The input of each block alone, which is the output of the one before.
        block = residual_bytes(p)
    return (
        SIZES[p.size].num_layers * block + sum(ends_saved(p).values()) + logits_bytes(p)
    )


# --8<-- [start:most]
def most(p: Pass) -> Bytes:
    """The most that each category holds at any moment of the pass. Temporaries are left
    to `peak`.
    """
    graphs = {"forward": 0, "forward_two_graphs": 2}.get(p.mode, 1)
    trains = p.mode in ("forward_backward", "step")
    return {
        "weights": weight_bytes(p) + table_bytes(p),
        # m and v.
        "optimizer state": 2 * weight_bytes(p) if p.mode == "step" else 0,
        "gradients": weight_bytes(p) if trains else 0,
        # Until autocast ends, or as long as a graph needs them.
        "weight copies": max(1, graphs) * copied_bytes(p),
        "saved activations": graphs * kept_bytes(p)
        + (sum(loss_saved(p).values()) if trains else 0),
    }


# --8<-- [end:most]


# --8<-- [start:peak]
def peak(p: Pass) -> Bytes:
    """All categories at the moment of the pass that needs most, temporaries included."""
    moments = (
        at_rest(p)
        if p.mode == "forward"
        else in_training(p)
        if most(p)["gradients"]
        else [after_forward(p)]
    )
    lasting = {name: most(p)[name] for name in ("weights", "optimizer state")}
    found = [
        {name: {**lasting, **moment}.get(name, 0) for name in CATEGORIES}
        for moment in moments
    ]
    return max(found, key=lambda moment: sum(moment.values()))


def at_rest(p: Pass) -> list[Bytes]:
    """A forward pass that keeps nothing: inside the last block's attention, inside its
    feed-forward half, at the head.

    The scores are 12 bytes per entry in either precision: three fp32 matrices, or two
    in bf16 and two in fp32.
    """
    shape = SIZES[p.size]
    n, d, f, low, fp32 = (
        p.batch * p.context,
        shape.d_model,
        shape.d_ff,
        p.low,
        FP32_BYTES,
    )
    scores = n * shape.num_heads * p.context if p.attention == "eager" else 0
    head = p.vocab * d * BF16_BYTES if p.precision == "bf16" else 0
    last = (3 * d * f + d * d) * BF16_BYTES if p.precision == "bf16" else 0
    copies = copied_bytes(p)
    return [
        {
            "weight copies": copies - head - last,
            "temporaries": n * d * (4 * fp32 + 3 * low) + 12 * scores,
        },
        {
            "weight copies": copies - head,
            "temporaries": n * d * 3 * fp32 + n * f * 3 * low,
        },
        {
            "weight copies": copies,
            "temporaries": n * d * (2 * fp32 + low) + logits_bytes(p),
        },
    ]


def after_forward(p: Pass) -> Bytes:
    """The end of a forward pass with a graph. All is kept but, under autocast, the fp32
    norm before the head's cast.

    True while the scores of one block are smaller than the rest that it keeps; beyond,
    its softmax is the peak.
    """
    work = residual_bytes(p) if p.precision == "bf16" else 0
    return {name: most(p)[name] for name in ("weight copies", "saved activations")} | {
        "temporaries": work
    }


def in_training(p: Pass) -> list[Bytes]:
    """The loss, its gradient, the gradients of the last and of the first block, and the
    optimizer.

    From block to block activations go and gradients come, both by the same amount: the
    peak is at one of the two ends.
    """
    shape = SIZES[p.size]
    wide_logits = p.batch * p.context * p.vocab * FP32_BYTES
    kept, loss, copies = kept_bytes(p), sum(loss_saved(p).values()), copied_bytes(p)
    if p.checkpoint == "yes":
        copies = 0
    largest = max(shape.d_model * shape.d_ff, p.vocab * shape.d_model) * FP32_BYTES
    return [
        {"weight copies": copies, "saved activations": kept + loss},
        {
            "weight copies": copies,
            "saved activations": kept - logits_bytes(p) + loss,
            # The gradient of the log-softmax and that of the logits; under autocast its
            # fp32 copy goes between them.
            "temporaries": wide_logits if p.precision == "bf16" else 2 * wide_logits,
        },
        *(
            half
            for blocks in {1, shape.num_layers}
            for half in block_backward(p, blocks)
        ),
        {"gradients": weight_bytes(p), "temporaries": largest},
    ]


def block_backward(p: Pass, blocks: int) -> list[Bytes]:
    """Inside the backward pass of a block with `blocks` - 1 before it: in its
    feed-forward half, and in its attention.

    Eager attention needs most where it divides by the row sums: five fp32 matrices
    beside the exponentials, as `costs.attention_peak_bytes` counts them.
    """
    shape = SIZES[p.size]
    n, d, f, low, fp32 = (
        p.batch * p.context,
        shape.d_model,
        shape.d_ff,
        p.low,
        FP32_BYTES,
    )
    scores = n * shape.num_heads * p.context if p.attention == "eager" else 0
    attention, feed_forward = attention_saved(p), feed_forward_saved(p)
    # Gone by then: what the output projection, the product with v and the norm after it
    # needed.
    done = (
        "probabilities",
        "v",
        "input of the output projection",
        "residual stream, fp32",
    )
    left = sum(size for name, size in attention.items() if name not in done)
    whole = sum(attention.values()) + sum(feed_forward.values())
    before = (blocks - 1) * (
        residual_bytes(p) if p.checkpoint == "yes" else whole
    ) + residual_bytes(p)
    # Parameters of this block and of those before it have no gradient yet, nor has the
    # embedding.
    block = 4 * d * d + 3 * d * f + 2 * d
    ungraded = blocks * block + p.vocab * d
    gradients = weight_bytes(p) - ungraded * fp32
    copy = BF16_BYTES if p.precision == "bf16" else 0
    copies = (
        (blocks - 1) * (4 * d * d + 3 * d * f) * copy if p.checkpoint == "no" else 0
    )
    # Where a block is computed again, what it keeps is as short-lived as the rest of
    # the backward pass.
    now = "temporaries" if p.checkpoint == "yes" else "saved activations"
    own_copies = "temporaries" if p.checkpoint == "yes" else "weight copies"
    halves = [
        (
            whole - residual_bytes(p),
            (4 * d * d + 3 * d * f) * copy,
            0,
            n * d * fp32 + 3 * n * f * low,
        ),
        (
            left,
            3 * d * d * copy,
            d * d + 3 * d * f + d,
            n * d * (fp32 + low) + 5 * scores * fp32,
        ),
    ]
    moments = []
    for kept, needed, graded, work in halves:
        moment = {
            "gradients": gradients + graded * fp32,
            "saved activations": before,
            "weight copies": copies,
        }
        moment["temporaries"] = work
        moment[now] += kept
        moment[own_copies] += needed
        moments.append(moment)
    return moments


# --8<-- [end:peak]

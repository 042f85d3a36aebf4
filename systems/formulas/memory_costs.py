"""Formulas for the bytes of every tensor that autograd saves in a forward pass. Tests
compare them with the tensors that autograd saves and with measured peaks.

Letters: b sequences of s tokens, n = b·s; d model width, f feed-forward width, h heads.
"""

from dataclasses import dataclass, replace
from numbers import Integral

from systems.formulas.costs import FP32_BYTES, INT64_BYTES, parameters_by_part
from systems.formulas.symbols import Expression
from systems.model.sizes import SIZES, VOCAB_SIZE, ModelSize

BF16_BYTES = 2
BOOL_BYTES = 1
# cuBLAS workspace per thread on compute capability 9.0 and 10.0, and on other GPUs
# (source: PyTorch's aten/src/ATen/cuda/CublasHandlePool.cpp).
HOPPER_WORKSPACE = 32 * 2**20
WORKSPACE = 8_320 * 2**10
Bytes = dict[str, int]
# Allowed names in a `Pass`. "pure_bf16": weights, gradients, optimizer states and
# activations in bf16; "bf16": autocast; "flash": any attention without a score matrix.
KNOWN = {
    "mode": "forward forward_graph forward_two_graphs forward_backward step",
    "precision": "fp32 bf16 pure_bf16",
    "attention": "eager flash",
}
MAY_BE_0 = "checkpoint recompute_attention optimizer_states workspace_bytes"


def check(field: str, value: object, met: bool, rule: str) -> None:
    """Raise ValueError, "FIELD is VALUE, must RULE", unless `met` is true."""
    if not met:
        raise ValueError(f"{field} is {value!r}, must {rule}")


@dataclass(frozen=True)
class Pass:
    """A pass of the model: forward, forward and backward, or a training step.

    `size` is a name in `SIZES` or a shape. Numbers may be symbolic expressions
    (`systems.formulas.symbols`), so formulas must not branch on them.
    """

    size: str | ModelSize
    context: int
    mode: str
    precision: str
    attention: str = "eager"
    # Number of blocks that are recomputed together; 0 to keep all activations.
    checkpoint: int = 0
    # Whether the backward pass recomputes the scores of each block from q, k and v.
    recompute_attention: bool = False
    batch: int = 4
    vocab: int = VOCAB_SIZE
    # Number of optimizer states per parameter, such as AdamW's two moments.
    optimizer_states: int = 2
    # Bytes of the cuBLAS workspace of each thread that runs matmuls.
    workspace_bytes: int = HOPPER_WORKSPACE
    # Number of KV heads in grouped-query attention; None: as many as query heads.
    kv_heads: int | None = None
    # 1 if the head shares the embedding's matrix (tied weights), else 2.
    embeddings: int = 2

    def __post_init__(self) -> None:
        """Raise ValueError for unknown names and wrong numbers that aren't symbolic."""
        names = KNOWN | {"size": " ".join(SIZES)}
        for field, known in names.items():
            name = getattr(self, field)
            met = isinstance(name, ModelSize) or name in known.split()
            check(field, name, met, f"be one of: {known}")
        run, again = self.checkpoint, self.recompute_attention
        backward = self.mode in ("forward_backward", "step")
        check("checkpoint", run, backward or run == 0, f"be 0 in mode {self.mode}")
        alone = backward and run == 0 and self.attention == "eager"
        rule = "be False without backward pass, with checkpoint or flash attention"
        check("recompute_attention", again, alone or not again, rule)
        shape = self.shape
        given = (vars(self) | vars(shape)).items()
        numbers = {k: n for k, n in given if k not in names and n is not None}
        if any(isinstance(n, Expression) for n in numbers.values()):
            return
        for field, n in numbers.items():
            least = int(field not in MAY_BE_0.split())
            met = isinstance(n, Integral) and int(n) >= least
            check(field, n, met, f"be a whole number of at least {least}")
        d, heads, groups = shape.d_model, shape.num_heads, self.kv_heads or 1
        check("num_heads", heads, d % heads == 0, f"divide d_model, {d}")
        check("kv_heads", groups, heads % groups == 0, f"divide num_heads, {heads}")
        layers, matrices = shape.num_layers, self.embeddings
        check("checkpoint", run, run <= layers, f"be at most num_layers, {layers}")
        check("embeddings", matrices, matrices <= 2, "be at most 2")

    @property
    def shape(self) -> ModelSize:
        return SIZES[self.size] if isinstance(self.size, str) else self.size

    @property
    def kv_width(self) -> int:
        """The width of k and of v, over all KV heads."""
        d, h = self.shape.d_model, self.shape.num_heads
        return d if self.kv_heads is None else d // h * self.kv_heads

    @property
    def tokens(self) -> int:
        return self.batch * self.context

    @property
    def autocast(self) -> bool:
        return self.precision == "bf16"

    @property
    def matmul_itemsize(self) -> int:
        """Bytes per element of matmul inputs and outputs."""
        return FP32_BYTES if self.precision == "fp32" else BF16_BYTES

    @property
    def weight_itemsize(self) -> int:
        """Bytes per element of weights, gradients, residual stream and softmax."""
        return BF16_BYTES if self.precision == "pure_bf16" else FP32_BYTES


# --8<-- [start:saved]
def attention_bytes(p: Pass) -> Bytes:
    """Return the bytes by tensor that a block's norm and attention save."""
    n, d, h, s = p.tokens, p.shape.d_model, p.shape.num_heads, p.context
    low, wide, fp32, kv = p.matmul_itemsize, p.weight_itemsize, FP32_BYTES, p.kv_width
    # Under autocast each of the q, k and v projections saves its own bf16 input.
    inputs = {"input of q, k, v": n * d * low}
    if p.autocast:
        inputs = {"inputs of q, k, v, cast three times": 3 * n * d * low}
    saved = {
        "norm before its weight, fp32": n * d * fp32,
        "inverse rms, fp32": n * fp32,
        **inputs,
        "cosines and sines for q and k": 2 * s * (d // h) * wide,
    }
    if p.recompute_attention:
        # The recomputation starts from rotated q and k, before autocast casts them.
        saved |= {"q and k, rotated": n * (d + kv) * wide, "v": n * kv * low}
    else:
        saved |= {"q and k, rotated": n * (d + kv) * low, "v": n * kv * low}
        saved |= scores_saved_bytes(p)
    return saved | {
        "input of the output projection": n * d * low,
        "residual stream, fp32": n * d * fp32,
    }


def scores_saved_bytes(p: Pass) -> Bytes:
    """Return the bytes by tensor that attention saves, besides q, k and v."""
    n, d, h, s = p.tokens, p.shape.d_model, p.shape.num_heads, p.context
    if p.attention == "flash":
        return {
            "output of the kernel": n * d * p.matmul_itemsize,
            "log-sum-exp, fp32": n * h * FP32_BYTES,
        }
    return {
        "mask": s * s * BOOL_BYTES,
        "positions of the maxima, int64": n * h * INT64_BYTES,
        "exponentials": n * h * s * p.weight_itemsize,
        "row sums": n * h * p.weight_itemsize,
        "probabilities": n * h * s * p.matmul_itemsize,
    }


def attention_backward_bytes(p: Pass) -> Bytes:
    """Return the bytes by tensor that norm and attention hold in the backward pass."""
    if not p.recompute_attention:
        return attention_bytes(p)
    n, d, kv = p.tokens, p.shape.d_model, p.kv_width
    recomputed = attention_bytes(replace(p, recompute_attention=False))
    # Under autocast the matmuls keep casts of q and k besides the originals.
    rotated = n * (d + kv) * p.weight_itemsize if p.autocast else 0
    v_bytes = n * kv * p.matmul_itemsize
    return recomputed | {"inputs of the recomputation": v_bytes + rotated}


def feed_forward_bytes(p: Pass) -> Bytes:
    """Return the bytes that the feed-forward half of a block saves, by tensor."""
    n, d, f, low = p.tokens, p.shape.d_model, p.shape.d_ff, p.matmul_itemsize
    inputs = {"input of w1, w3": n * d * low}
    if p.autocast:
        inputs = {"inputs of w1, w3, cast twice": 2 * n * d * low}
    return {
        "norm before its weight, fp32": n * d * FP32_BYTES,
        "inverse rms, fp32": n * FP32_BYTES,
        **inputs,
        "gate w1 x": n * f * low,
        "sigmoid": n * f * low,
        "silu": n * f * low,
        "value w3 x": n * f * low,
        "gated value, the input of w2": n * f * low,
        "residual stream, fp32": n * d * FP32_BYTES,
    }


def block_saved_bytes(p: Pass) -> int:
    """Return the bytes that a block saves if nothing is recomputed."""
    return sum(attention_bytes(p).values()) + sum(feed_forward_bytes(p).values())


def outside_block_bytes(p: Pass) -> Bytes:
    """Return the bytes by tensor that embedding, final norm and head save."""
    n, d = p.tokens, p.shape.d_model
    return {
        "embedded tokens, fp32": n * d * FP32_BYTES,
        "final norm before its weight, fp32": n * d * FP32_BYTES,
        "inverse rms, fp32": n * FP32_BYTES,
        "input of the head": n * d * p.matmul_itemsize,
    }


def loss_saved_bytes(p: Pass) -> Bytes:
    """Return the bytes that the loss saves besides the logits. On CUDA, autocast runs
    `nll_loss` in fp32 but not the log-softmax.
    """
    entries, cast_bytes = p.tokens * p.vocab, FP32_BYTES if p.autocast else 0
    return {
        "log-softmax": entries * p.matmul_itemsize,
        "log-softmax, cast for the loss, fp32": entries * cast_bytes,
        "loss and its total weight": 2 * p.weight_itemsize,
    }


def logits_bytes(p: Pass) -> int:
    return p.tokens * p.vocab * p.matmul_itemsize


def residual_bytes(p: Pass) -> int:
    """Return the bytes of one residual stream (b, s, d), which is fp32 in autocast."""
    return p.tokens * p.shape.d_model * p.weight_itemsize
    # --8<-- [end:saved]


def weight_bytes(p: Pass) -> int:
    """Return the bytes of all weights; gradients, or one moment, take as many."""
    d, layers = p.shape.d_model, p.shape.num_layers
    norms = parameters_by_part(vocab_size=p.vocab, **vars(p.shape))["norms"]
    matrices = layers * block_matrix_entries(p) + p.embeddings * p.vocab * d
    return (matrices + norms) * p.weight_itemsize


def rotary_table_bytes(p: Pass) -> int:
    """Return the bytes of the rotary embedding's table, a buffer of the model."""
    return p.context * (p.shape.d_model // p.shape.num_heads) * p.weight_itemsize


def block_matrix_entries(p: Pass) -> int:
    """Return the number of entries in a block's weight matrices."""
    return p.shape.d_model * (2 * p.shape.d_model + 2 * p.kv_width + 3 * p.shape.d_ff)


def weight_copy_bytes(p: Pass) -> int:
    """Return the bytes of autocast's bf16 weight copies (all but the embedding)."""
    if not p.autocast:
        return 0
    head = p.vocab * p.shape.d_model
    return (p.shape.num_layers * block_matrix_entries(p) + head) * BF16_BYTES


def count_segments(p: Pass) -> int:
    """Return the number of segments of p.checkpoint blocks; the last may have fewer."""
    return (p.shape.num_layers + p.checkpoint - 1) // p.checkpoint


def graph_bytes(p: Pass) -> int:
    """Return the bytes a forward pass saves; checkpointed segments save only inputs."""
    if p.checkpoint:
        blocks = count_segments(p) * residual_bytes(p)
    else:
        blocks = p.shape.num_layers * block_saved_bytes(p)
    return blocks + sum(outside_block_bytes(p).values()) + logits_bytes(p)

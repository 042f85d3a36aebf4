"""The Transformer language model that most experiments measure, as the course defines
it.

Pre-norm blocks, RMSNorm, rotary embedding, SwiGLU, untied embedding and head, no
biases. Names, signatures and state-dict keys match the course's package, so checkpoints
load in either. The model is deliberately *eager*: each operation is a separate kernel,
five of them in softmax and two in SiLU, because experiments measure these kernels.
`BasicsTransformerLM(..., attention=NAME)` selects a fused attention.

Shapes: b batch, s sequence, v vocabulary, d model width, h heads, e head width, f
feed-forward width.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict
from importlib import import_module

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from systems.attention import IMPLEMENTATIONS
from systems.model.sizes import SIZES, VOCAB_SIZE

AttentionFn = Callable[[Tensor, Tensor, Tensor], Tensor]


ROPE_THETA = 10_000.0


def truncated_normal(shape: tuple[int, ...], std: float) -> nn.Parameter:
    """Return a normal parameter (mean 0, deviation `std`), truncated at 3 · `std`."""
    return nn.Parameter(
        nn.init.trunc_normal_(torch.empty(shape), std=std, a=-3 * std, b=3 * std)
    )


class Linear(nn.Module):
    """Linear layer without bias: y = x Wᵀ, where W has the shape (d_out, d_in)."""

    def __init__(self, d_in: int, d_out: int):
        super().__init__()
        self.weight = truncated_normal((d_out, d_in), std=math.sqrt(2 / (d_in + d_out)))

    def forward(self, x: Float[Tensor, "... d_in"]) -> Float[Tensor, "... d_out"]:
        return torch.einsum("...i,oi->...o", x, self.weight)


class Embedding(nn.Module):
    """Embedding layer: a row of `weight` (vocab_size, d_model) for each token id."""

    def __init__(self, vocab_size: int, d_model: int):
        super().__init__()
        self.weight = truncated_normal((vocab_size, d_model), std=1.0)

    def forward(self, token_ids: Int[Tensor, "..."]) -> Float[Tensor, "... d"]:
        return self.weight[token_ids]


# --8<-- [start:rmsnorm]
class RMSNorm(nn.Module):
    """RMSNorm (Zhang and Sennrich 2019): x / sqrt(mean(x²) + eps) · weight, computed in
    fp32. The result has the dtype of x.
    """

    def __init__(self, hidden_size: int, eps: float = 1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.eps = eps

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        x_fp32 = x.to(torch.float32)
        inverse_rms = torch.rsqrt(x_fp32.pow(2).mean(-1, keepdim=True) + self.eps)
        return (self.weight * (x_fp32 * inverse_rms)).to(x.dtype)


# --8<-- [end:rmsnorm]


def silu(x: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
    """Return x · sigmoid(x), computed by two kernels as in the course."""
    return x * torch.sigmoid(x)


class SwiGLU(nn.Module):
    """SwiGLU feed-forward layer (Shazeer 2020, equation 6): w2(silu(w1 x) · w3 x);
    w1 is the gate, w3 the value and w2 the output projection.
    """

    def __init__(self, d_model: int, d_ff: int):
        super().__init__()
        self.w1 = Linear(d_model, d_ff)
        self.w2 = Linear(d_ff, d_model)
        self.w3 = Linear(d_model, d_ff)

    def forward(self, x: Float[Tensor, "... d"]) -> Float[Tensor, "... d"]:
        return self.w2(silu(self.w1(x)) * self.w3(x))


class RotaryEmbedding(nn.Module):
    """Rotary position embedding (Su et al. 2021, equation 15), which rotates each pair
    (2i, 2i+1) of x by the angle position · theta^(-2i/dim).
    """

    def __init__(self, context_length: int, dim: int, theta: float = ROPE_THETA):
        super().__init__()
        self.theta = theta
        # (2, context_length, dim / 2): cosines, then sines. Not saved in checkpoints,
        # because it can be recomputed.
        self.register_buffer(
            "cos_sin", torch.empty(2, context_length, dim // 2), persistent=False
        )
        self.compute_table()

    def compute_table(self) -> None:
        """Fill `cos_sin` from angles in fp32 or wider: bf16 rounds positions > 256."""
        table = self.get_buffer("cos_sin")
        _, context_length, pairs = table.shape
        dtype = torch.promote_types(table.dtype, torch.float32)
        even = torch.arange(0, 2 * pairs, 2, dtype=dtype, device=table.device)
        position = torch.arange(context_length, dtype=dtype, device=table.device)
        angle = torch.outer(position, self.theta ** -(even / (2 * pairs)))
        table.copy_(torch.stack((angle.cos(), angle.sin())))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True):
        """Recompute the table after a move or a cast: `to_empty` fills it with garbage,
        and a cast from 16 bits to 32 would keep the rounding errors of 16 bits.
        """
        before = self.get_buffer("cos_sin")
        super()._apply(fn, recurse)
        if self.get_buffer("cos_sin") is not before:
            self.compute_table()
        return self

    def forward(
        self, x: Float[Tensor, "... s e"], positions: Int[Tensor, "... s"]
    ) -> Float[Tensor, "... s e"]:
        cos, sin = self.get_buffer("cos_sin")[:, positions]
        even, odd = x[..., 0::2], x[..., 1::2]
        return torch.stack(
            (cos * even - sin * odd, sin * even + cos * odd), dim=-1
        ).flatten(-2)


# --8<-- [start:attention]
def softmax(x: Float[Tensor, "..."], dim: int = -1) -> Float[Tensor, "..."]:
    """Compute softmax over `dim` unfused, as five kernels: max, subtract, exp, sum and
    divide. Each kernel reads a tensor as large as x.
    """
    exponentials = torch.exp(x - torch.max(x, dim=dim, keepdim=True).values)
    return exponentials / torch.sum(exponentials, dim=dim, keepdim=True)


def scaled_dot_product_attention(
    Q: Float[Tensor, "... q e"],
    K: Float[Tensor, "... k e"],
    V: Float[Tensor, "... k e"],
    mask: Bool[Tensor, "... q k"] | None = None,
) -> Float[Tensor, "... q e"]:
    """Return softmax(Q Kᵀ / sqrt(e)) V; the mask is True where a score is kept, False
    where it becomes -inf (Vaswani et al. 2017, equation 1).
    """
    scores = torch.einsum("...qe,...ke->...qk", Q, K) / math.sqrt(K.shape[-1])
    if mask is not None:
        scores = torch.where(mask, scores, float("-inf"))
    return torch.einsum("...qk,...ke->...qe", softmax(scores), V)


def eager_attention(
    q: Float[Tensor, "b h s e"],
    k: Float[Tensor, "b h s e"],
    v: Float[Tensor, "b h s e"],
) -> Tensor:
    """Compute causal attention with `scaled_dot_product_attention`. Each call looks
    that function up in this module, so replacing it there changes every layer.
    """
    position = torch.arange(q.shape[-2], device=q.device)
    return scaled_dot_product_attention(q, k, v, mask=position[:, None] >= position)


# --8<-- [end:attention]


def load_attention(name: str) -> AttentionFn:
    """Return the causal attention function of this name. It maps q, k and v of shape
    (b, h, s, e) to an output of this shape. Raise ValueError if the name is unknown.
    """
    # Named in code, so that source hashes of experiments cover `eager_attention`.
    if name == "eager":
        return eager_attention
    if name not in IMPLEMENTATIONS:
        raise ValueError(
            f"no attention implementation is named {name!r}; there are: "
            f"{', '.join(IMPLEMENTATIONS)}"
        )
    module, function = IMPLEMENTATIONS[name].split(":")
    return getattr(import_module(module), function)


class CausalMultiHeadSelfAttention(nn.Module):
    """Multi-head attention with rotary q and k, and a selectable attention function."""

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        rotary: RotaryEmbedding,
        attention: AttentionFn,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = Linear(d_model, d_model)
        self.k_proj = Linear(d_model, d_model)
        self.v_proj = Linear(d_model, d_model)
        self.output_proj = Linear(d_model, d_model)
        self.rotary = rotary
        self.attention = attention
        self.register_load_state_dict_post_hook(move_table_to_weights)

    def forward(self, x: Float[Tensor, "b s d"]) -> Float[Tensor, "b s d"]:
        batch, sequence, d_model = x.shape

        # (b, s, d) -> (b, h, s, e)
        def split_heads(projected: Tensor) -> Tensor:
            return projected.view(batch, sequence, self.num_heads, -1).transpose(1, 2)

        q, k, v = (
            split_heads(project(x))
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        positions = torch.arange(sequence, device=x.device)
        o = self.attention(self.rotary(q, positions), self.rotary(k, positions), v)
        return self.output_proj(o.transpose(1, 2).reshape(batch, sequence, d_model))


def move_table_to_weights(layer: CausalMultiHeadSelfAttention, _: object) -> None:
    """Move the rotary table to the device and dtype of the weights after
    `load_state_dict(assign=True)` has replaced them.
    """
    weight, table = layer.q_proj.weight, layer.rotary.get_buffer("cos_sin")
    if (weight.device, weight.dtype) != (table.device, table.dtype):
        layer.rotary.to_empty(device=weight.device).to(weight.dtype)


class TransformerBlock(nn.Module):
    """Pre-norm block: x + attention(norm(x)), then x + feed-forward(norm(x))."""

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        d_ff: int,
        rotary: RotaryEmbedding,
        attention: AttentionFn,
    ):
        super().__init__()
        self.attn = CausalMultiHeadSelfAttention(d_model, num_heads, rotary, attention)
        self.ffn = SwiGLU(d_model, d_ff)
        self.ln1 = RMSNorm(d_model)
        self.ln2 = RMSNorm(d_model)

    def forward(self, x: Float[Tensor, "b s d"]) -> Float[Tensor, "b s d"]:
        x = x + self.attn(self.ln1(x))
        return x + self.ffn(self.ln2(x))


Block = Callable[[Tensor], Tensor]
RunBlocks = Callable[[Iterable[Block], Tensor], Tensor]


def run_blocks(blocks: Iterable[Block], x: Tensor) -> Tensor:
    """Pass x through all blocks, one after another."""
    for block in blocks:
        x = block(x)
    return x


# --8<-- [start:model]
class BasicsTransformerLM(nn.Module):
    """Transformer language model: maps token ids (b, s) to logits (b, s, v).

    `attention` is a name in `systems.attention.IMPLEMENTATIONS`. Raise ValueError for
    other names, an odd or fractional head width, or a sequence beyond the context.
    """

    def __init__(
        self,
        vocab_size: int,
        context_length: int,
        d_model: int,
        num_layers: int,
        num_heads: int,
        d_ff: int,
        rope_theta: float = ROPE_THETA,
        attention: str = "eager",
    ):
        super().__init__()
        if d_model % num_heads or (d_model // num_heads) % 2:
            raise ValueError(
                f"d_model {d_model} must split into {num_heads} heads of even width"
            )
        self.context_length = context_length
        self.token_embeddings = Embedding(vocab_size, d_model)
        rotary = RotaryEmbedding(context_length, d_model // num_heads, rope_theta)
        attention_fn = load_attention(attention)
        self.layers = nn.ModuleList(
            TransformerBlock(d_model, num_heads, d_ff, rotary, attention_fn)
            for _ in range(num_layers)
        )
        self.run_blocks: RunBlocks | None = None
        self.ln_final = RMSNorm(d_model)
        self.lm_head = Linear(d_model, vocab_size)

    def forward(self, token_ids: Int[Tensor, "b s"]) -> Float[Tensor, "b s v"]:
        if token_ids.shape[-1] > self.context_length:
            raise ValueError(
                f"a sequence of {token_ids.shape[-1]} tokens exceeds the context of "
                f"{self.context_length}"
            )
        x = self.token_embeddings(token_ids)
        if self.run_blocks is not None:
            x = self.run_blocks(self.layers, x)
        else:
            # Not `run_blocks(...)`: during the call, x here would stay in memory.
            for block in self.layers:
                x = block(x)
        return self.lm_head(self.ln_final(x))

    def set_run_blocks(self, function: RunBlocks) -> None:
        """Make the forward pass call function(blocks, x), for example to checkpoint
        activations. The function must not close over this model, or a copy of the model
        would run the original's blocks.
        """
        self.run_blocks = function


# --8<-- [end:model]


def build_model(
    size: str,
    context_length: int,
    vocab_size: int = VOCAB_SIZE,
    attention: str = "eager",
):
    """Return the model of this size in float32, on the current default device (`with
    torch.device("cuda"): ...`).

    Raise KeyError for a size that isn't in `SIZES`, ValueError for unknown attention.
    """
    return BasicsTransformerLM(
        vocab_size, context_length, **asdict(SIZES[size]), attention=attention
    )

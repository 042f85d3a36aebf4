"""Every way to compute attention that is measured here, by name: ours, plain PyTorch,
and PyTorch's own fused ones.

Each is a function (q, k, v) -> o of tensors (b, h, n, d). `only(name)` surrounds
whatever runs it: there, the named implementation runs or `Unsupported` is raised, and
nothing stands in for it.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import cache

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from systems.attention.triton.function import FlashAttentionTriton, chosen
from systems.records.outcome import Unsupported

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]
BACKENDS = {
    "sdpa_flash": SDPBackend.FLASH_ATTENTION,
    "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa_math": SDPBackend.MATH,
}
# Of ours by name: "ours_triton" runs on a Hopper GPU what ours runs on any other.
OURS = {"ours": "auto", "ours_high": "auto", "ours_triton": "triton"}
# How CUDA and the CPU say that a forced backend can't run.
NO_BACKEND = ("No available kernel", "No viable backend")


# --8<-- [start:plain]
def plain(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """softmax(q kᵀ / sqrt(d)) v as one writes it down: each operation reads and writes
    all the scores.
    """
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        rows, keys = (torch.arange(x.shape[-2], device=x.device) for x in (q, k))
        s = s.masked_fill(rows[:, None] < keys, float("-inf"))
    return torch.softmax(s, -1) @ v


# --8<-- [end:plain]


def attention(name: str, causal: bool, n: int, device: str) -> Attention:
    """The implementation of this name for n queries and keys."""
    if name in OURS:
        backend = OURS[name]
        return lambda q, k, v: FlashAttentionTriton.apply(
            q, k, v, causal, None, backend
        )
    if name == "plain":
        return lambda q, k, v: plain(q, k, v, causal)
    if name == "compiled":
        return compiled_plain(causal)
    if name == "flex":
        return flex(causal, n, device)
    if name == "sdpa" or name in BACKENDS:
        return lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=causal)
    raise ValueError(f"no attention is named {name!r}")


@contextmanager
def only(name: str) -> Iterator[None]:
    """Inside, this implementation runs alone: SDPA is held to one backend, and fp32
    products to the named precision.
    """
    torch.set_float32_matmul_precision("high" if name == "ours_high" else "highest")
    backend = sdpa_kernel(BACKENDS[name]) if name in BACKENDS else nullcontext()
    try:
        with backend:
            yield
    except RuntimeError as error:
        if not any(words in str(error) for words in NO_BACKEND):
            raise
        raise Unsupported(
            f"SDPA has no {name.removeprefix('sdpa_')} kernel for this input"
        ) from error
    finally:
        torch.set_float32_matmul_precision("highest")


def what_ran(name: str, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> str:
    """What computes these inputs inside `only`: our kernels' name, or the backend that
    SDPA chooses.
    """
    if name in OURS:
        return chosen(OURS[name], q, k, v)
    if name == "sdpa" or name in BACKENDS:
        # The function by which PyTorch itself decides, on the same inputs and in the
        # same context.
        choice = torch._fused_sdp_choice(q, k, v, None, 0.0, causal)  # pyright: ignore
        return SDPBackend(choice).name.lower()
    return name


def allow_shared_graphs() -> None:
    """Compiled functions whose graph may be gone through twice, as timing the backward
    pass alone does.
    """
    import torch._dynamo.config
    import torch._functorch.config

    # Otherwise a compiled backward pass writes over what the forward pass saved.
    torch._functorch.config.donated_buffer = False
    # Lengths beyond 32-bit indices, dtypes and head dimensions are compiled apart: more
    # than the default allows.
    torch._dynamo.config.recompile_limit = 64


@cache
def compiled_plain(causal: bool) -> Attention:
    """Plain attention under torch.compile; one compilation of a dtype and a head
    dimension serves every length.
    """
    from systems.benchmarking.compiling import compiled

    allow_shared_graphs()
    whole = compiled(plain)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        for x in (q, k, v):
            torch._dynamo.maybe_mark_dynamic(x, 2)
        return whole(q, k, v, causal)

    return run


def flex(causal: bool, n: int, device: str) -> Attention:
    """FlexAttention, compiled for this shape alone; a causal mask skips the blocks that
    it hides.
    """
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    from systems.benchmarking.compiling import compiled

    allow_shared_graphs()
    mask = (
        create_block_mask(lambda b, h, i, j: i >= j, None, None, n, n, device=device)
        if causal
        else None
    )
    whole = compiled(flex_attention)
    return lambda q, k, v: whole(q, k, v, block_mask=mask)

"""The attention implementations that experiments compare, by name: OURS (this project),
"plain", "compiled", "flex", "sdpa", BACKENDS (PyTorch), FLASH_4 (FlashAttention-4).

Each maps q, k, v (b, h, n, d) to o. Inside `use_peer(name)`, unsupported inputs
raise `Unsupported`. Names with "_ordered" request deterministic gradients.
"""

import math
import os
import re
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from systems.attention.dispatch import FlashAttentionTriton, choose_backend
from systems.benchmarking.compiling import compile_work
from systems.records.outcome import NotInstalled, Unsupported, out_of_memory_reason

Attention = Callable[[Tensor, Tensor, Tensor], Tensor]  # All are (b, h, n, d).
BACKENDS = {
    "sdpa_flash": SDPBackend.FLASH_ATTENTION,
    "sdpa_flash_ordered": SDPBackend.FLASH_ATTENTION,
    "sdpa_fa4": SDPBackend.FLASH_ATTENTION,
    "sdpa_fa4_ordered": SDPBackend.FLASH_ATTENTION,
    "sdpa_cudnn": SDPBackend.CUDNN_ATTENTION,
    "sdpa_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "sdpa_math": SDPBackend.MATH,
}
# Backend of this project's kernels by name; "ours_triton" avoids the Hopper kernels.
OURS = {
    "ours": "auto",
    "ours_high": "auto",
    "ours_triton": "triton",
    "triton": "triton",
    "hopper": "hopper",
}
# Whether FlashAttention-4 sums dq deterministically, by implementation name.
FLASH_4 = {"fa4": False, "fa4_ordered": True}
# SDPA with FlashAttention-4 in place of FlashAttention-2.
SDPA_FLASH_4 = ("sdpa_fa4", "sdpa_fa4_ordered")
# PyTorch's error for inputs that FlashAttention-4 doesn't support.
FLASH_4_ERROR = re.compile("FA4 .* unsupported: ")
# Modules that raise FlashAttention-4's errors: the package, its compiler, and PyTorch's
# adapter, which expects two results where version 4.0.0b36 returns more.
FA4_MODULES = ("flash_attn", "cutlass", "torch.nn.attention._fa4")
# PyTorch's errors, on GPU and CPU, if the selected SDPA backend can't run.
NO_BACKEND = ("No available kernel", "No viable backend")


# --8<-- [start:plain]
def plain_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """Return softmax(q kᵀ / sqrt(d)) v, storing all scores."""
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        rows, keys = (torch.arange(x.shape[-2], device=x.device) for x in (q, k))
        s = s.masked_fill(rows[:, None] < keys, float("-inf"))
    return torch.softmax(s, -1) @ v
    # --8<-- [end:plain]


def load_peer(
    name: str, causal: bool, n: int, device: str, grouped: bool = False
) -> Attention:
    """Return the attention function of this name for n queries and keys; `grouped` if
    query heads share KV heads. Raise ValueError for an unknown name, or `NotInstalled`.
    """
    if name in OURS:
        options = (causal, None, OURS[name])
        return lambda q, k, v: FlashAttentionTriton.apply(q, k, v, *options)
    if name == "plain":
        return lambda q, k, v: plain_attention(q, k, v, causal)
    if name == "compiled":
        return compile_plain(causal)
    if name == "flex":
        return compile_flex(causal, n, device, grouped)
    if name in FLASH_4:
        return load_flash_4(causal, FLASH_4[name])
    if name == "sdpa" or name in BACKENDS:
        return partial(
            scaled_dot_product_attention, is_causal=causal, enable_gqa=grouped
        )
    raise ValueError(f"no attention is named {name!r}")


@contextmanager
def use_peer(name: str) -> Iterator[None]:
    """Select this implementation's SDPA backend and float32 precision in the context,
    and raise `Unsupported` there if the implementation rejects inputs.
    """
    with ExitStack() as stack:
        stack.callback(torch.set_float32_matmul_precision, "highest")
        high = name == "ours_high"
        torch.set_float32_matmul_precision("high" if high else "highest")
        if name in BACKENDS:
            stack.enter_context(sdpa_kernel(BACKENDS[name]))
        if name in SDPA_FLASH_4:
            stack.enter_context(activate_flash_4())
        if name.startswith("sdpa") and name.endswith("_ordered"):
            stack.enter_context(deterministic_algorithms())
        try:
            yield
        except Exception as error:
            if not (reason := unsupported_reason(name, error)):
                raise
            raise Unsupported(reason) from error


def unsupported_reason(name: str, error: Exception) -> str:
    """Return why implementation `name` rejected its inputs, or "" for other errors."""
    if name in SDPA_FLASH_4 and FLASH_4_ERROR.match(str(error)):
        return str(error)
    if name == "hopper" and str(error).startswith("hopper: "):
        return str(error)
    if name in BACKENDS and any(words in str(error) for words in NO_BACKEND):
        return f"SDPA has no {name.removeprefix('sdpa_')} kernel for this input"
    if name not in (*FLASH_4, *SDPA_FLASH_4) or not is_raised_by(error, FA4_MODULES):
        return ""
    if out_of_memory_reason(error) or "CUDA error" in str(error):
        return ""
    # FlashAttention-4 rejects inputs by assertions and by errors of its compiler.
    message = " ".join(str(error).split())[:200]
    return f"FlashAttention-4 does not run this: {type(error).__name__}: {message}"


def is_raised_by(error: Exception, packages: tuple[str, ...]) -> bool:
    """Return whether the traceback of `error` has code of one of these packages."""
    modules = (
        f"{frame.f_globals.get('__name__')}."
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )
    return any(x.startswith(f"{name}.") for x in modules for name in packages)


@contextmanager
def activate_flash_4() -> Iterator[None]:
    """Make FlashAttention-4 (`pip install '.[peers]'`) the flash backend of SDPA. Raise
    `NotInstalled` if the package is missing or torch is too old.
    """
    backends: Any = torch.nn.attention
    if not hasattr(backends, "restore_flash_attention_impl"):
        raise NotInstalled(f"torch {torch.__version__} has no FlashAttention-4 in SDPA")
    with require_flash_4():
        backends.activate_flash_attention_impl("FA4")
    try:
        yield
    finally:
        backends.restore_flash_attention_impl()


@contextmanager
def require_flash_4() -> Iterator[None]:
    """Context for importing FlashAttention-4; raise `NotInstalled` if it is missing."""
    os.environ.setdefault("FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED", "1")
    try:
        yield
    except ModuleNotFoundError as error:
        raise NotInstalled(f"{error.name}: pip install '.[peers]'") from error


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Use deterministic algorithms in this context; leave `torch.empty` unfilled."""
    settings: Any = torch.utils.deterministic
    enabled = torch.are_deterministic_algorithms_enabled()
    fill = settings.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    settings.fill_uninitialized_memory = False
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled)
        settings.fill_uninitialized_memory = fill


def find_backend(name: str, q: Tensor, k: Tensor, v: Tensor, causal: bool) -> str:
    """Inside `use_peer(name)`, return the backend, such as "hopper", or else `name`."""
    if name in OURS:
        return choose_backend(OURS[name], q, k, v)
    if name == "sdpa" or name in BACKENDS and name not in SDPA_FLASH_4:
        # Ask the function with which PyTorch itself selects the backend.
        choice = torch._fused_sdp_choice(  # pyright: ignore
            q, k, v, None, 0.0, causal, enable_gqa=q.shape[-3] != k.shape[-3]
        )
        return SDPBackend(choice).name.lower()
    return name


# --8<-- [start:repeats]
def compute_results(
    attend: Callable[..., Any], q: Tensor, k: Tensor, v: Tensor, do: Tensor
) -> dict[str, Tensor]:
    """Return o, dq, dk and dv by name, and lse if `attend` returns (o, lse)."""
    result = attend(q, k, v)
    o, lse = result if isinstance(result, tuple) else (result, None)
    dq, dk, dv = torch.autograd.grad(o, (q, k, v), do)
    results = {"o": o.detach(), "dq": dq, "dk": dk, "dv": dv}
    return results if lse is None else results | {"lse": lse.detach()}


def compare_calls(
    attend: Callable[..., Any],
    inputs: tuple[Tensor, ...],
    first: dict[str, Tensor],
    calls: int,
) -> list[list[str]]:
    """Call `attend` `calls` times on `inputs` (q, k, v, do). Return for each call the
    names of results that differ bitwise from `first`, the results of an earlier call.
    """
    varying = []
    for _ in range(calls):
        repeat = compute_results(attend, *inputs)
        varying.append([x for x in first if not torch.equal(first[x], repeat[x])])
    return varying
    # --8<-- [end:repeats]


def allow_repeated_backward() -> None:
    """Let a compiled backward pass run again on one graph; allow 64 recompilations."""
    import torch._dynamo.config
    import torch._functorch.config

    # If this were True, a compiled backward pass would overwrite saved tensors.
    torch._functorch.config.donated_buffer = False
    # Allow many compilations: one for each dtype, head dimension and index width.
    torch._dynamo.config.recompile_limit = 64


@cache
def compile_plain(causal: bool) -> Attention:
    """Return plain attention compiled for any length; cached by `causal`."""
    allow_repeated_backward()
    attend = compile_work(plain_attention)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        for x in (q, k, v):
            torch._dynamo.maybe_mark_dynamic(x, 2)
        return attend(q, k, v, causal)

    return run


def load_flash_4(causal: bool, ordered: bool) -> Attention:
    """Return FlashAttention-4, deterministic if `ordered`, or raise `NotInstalled`."""
    with require_flash_4():
        from flash_attn.cute import flash_attn_func  # pyright: ignore

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        inputs = (x.transpose(1, 2) for x in (q, k, v))
        o, _ = flash_attn_func(*inputs, causal=causal, deterministic=ordered)
        return o.transpose(1, 2)

    return run


def compile_flex(causal: bool, n: int, device: str, grouped: bool) -> Attention:
    """Return FlexAttention compiled for n tokens, with shared KV heads if `grouped`."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    allow_repeated_backward()
    mask = None
    if causal:
        mask = create_block_mask(
            lambda b, h, i, j: i >= j, None, None, n, n, device=device
        )
    return partial(compile_work(flex_attention), block_mask=mask, enable_gqa=grouped)

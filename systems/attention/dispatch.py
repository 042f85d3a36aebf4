"""Run flash attention with the Triton or the Hopper kernels. Both save o and lse (the
log-sum-exp of each query's scores), so forward and backward may use different kernels.
"""

import torch
from torch import Tensor

from systems import find_missing

if reason := find_missing("triton"):
    raise ModuleNotFoundError(reason, name="triton")

from systems.attention.hopper import launches as hopper_launches
from systems.attention.hopper import limits
from systems.attention.inputs import (
    autocast_like_sdpa,
    check_inputs,
    default_scale,
    is_batched,
    is_differentiated,
    is_traced,
    refuse_forward_mode,
    refuse_second_derivative,
    refuse_transforms,
    register_vmap_loop,
)
from systems.attention.prepared import DTYPES, MAX_HEAD, prepare_call
from systems.attention.triton import launches as triton_launches
from systems.attention.triton.available import check_device, log_hopper_refusal
from systems.attention.triton.primitives import INTERPRETED

# --8<-- [start:chosen]
LAUNCHERS = {"hopper": hopper_launches, "triton": triton_launches}


def choose_backend(backend: str, q: Tensor, k: Tensor, v: Tensor) -> str:
    """Return "triton" or "hopper": for "auto" the faster one that supports q, k and v.
    Raise ValueError for an unknown backend, or for "hopper" if it can't run the inputs.
    """
    if backend == "auto":
        if not limits.is_faster(q, k):
            return "triton"
        if not (reason := limits.unsupported_reason(q, k, v)):
            return "hopper"
        log_hopper_refusal(q, reason)
        return "triton"
    if backend not in LAUNCHERS:
        names = ", ".join(("auto", *LAUNCHERS))
        raise ValueError(f"backend must be one of {names}, got {backend!r}")
    if backend == "hopper" and (reason := limits.unsupported_reason(q, k, v)):
        raise ValueError(f"hopper: {reason}")
    return backend
    # --8<-- [end:chosen]


def run_forward(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float, backend: str = "auto"
) -> tuple[Tensor, Tensor]:
    """Return (o, lse), computed by the backend that `choose_backend` returns."""
    check_device(q.device)
    launcher = LAUNCHERS[choose_backend(backend, q, k, v)]
    return launcher.launch_forward(q, k, v, causal, scale)


def run_backward(
    do: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: Tensor,
    causal: bool,
    scale: float,
    backend: str = "auto",
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (dq, dk, dv), computed by the backend that `choose_backend` returns. Any
    strides are accepted, because hooks on saved tensors can change strides.
    """
    inputs = q, k, v
    if backend == "hopper":
        q, k, v = map(limits.make_tma_readable, inputs)
    launcher = LAUNCHERS[choose_backend(backend, q, k, v)]
    grads = launcher.launch_backward(do, q, k, v, o, lse.contiguous(), causal, scale)
    if backend != "hopper":
        return grads
    # torch.compile expects the layout of `empty_like`, as `register_fake` declares.
    dq, dk, dv = (
        dx if x is copy else torch.empty_like(x).copy_(dx)
        for x, copy, dx in zip(inputs, (q, k, v), grads, strict=True)
    )
    return dq, dk, dv


# Custom operators for torch.compile and torch.export. A direct call of `flash_forward`
# ignores forward-mode tangents.
flash_forward = torch.library.custom_op(
    "systems::flash_forward", run_forward, mutates_args=()
)
flash_backward = torch.library.custom_op(
    "systems::flash_backward", run_backward, mutates_args=()
)


@flash_forward.register_fake
def _(q: Tensor, *_: object) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q), q.new_empty(q.shape[:-1], dtype=torch.float32)


@flash_backward.register_fake
def _(do: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: object) -> tuple[Tensor, ...]:
    return torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)


register_vmap_loop(flash_backward)


def save_inputs(ctx, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
    q, k, v, *ctx.options = inputs
    o, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(q, k, v, o, lse)


def differentiate_operator(ctx, do: Tensor, dlse: Tensor | None):
    refuse_second_derivative()
    gradients = flash_backward(do, *ctx.saved_tensors, *ctx.options)
    return *gradients, *(None for _ in ctx.options)


flash_forward.register_autograd(differentiate_operator, setup_context=save_inputs)


class FlashAttentionTriton(torch.autograd.Function):
    """Autograd Function: `o = apply(q, k, v, is_causal, scale, backend)`, where q is
    (batch, n, d) or (batch, heads, n, d), d up to 256, in float32, float16 or bfloat16.
    It runs the Hopper kernels, despite its name, if `choose_backend` returns "hopper".

    Raises ValueError or TypeError for unsupported arguments; has no second derivative.
    """

    @staticmethod
    def forward(
        ctx,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        is_causal: bool = False,
        scale: float | None = None,
        backend: str = "auto",
    ) -> Tensor:
        ctx.prepared = prepare_call(q, k, v, is_causal, scale, backend)
        if ctx.prepared is not None:
            check_device(q.device)
            ctx.options = *ctx.prepared.options, backend
            o, lse = ctx.prepared.forward(q, k, v)
            ctx.save_for_backward(q, k, v, o, lse)
            return o
        if is_traced(q):
            # PyTorch rejects these by itself, except under a compiler.
            refuse_transforms()
            refuse_forward_mode(q, k, v)
        check_arguments(q, k, v, is_causal, scale)
        if q.ndim not in (3, 4):
            raise ValueError(
                "q must be (batch, N, d) or (batch, heads, N, d), "
                f"got shape {tuple(q.shape)}"
            )
        ctx.options = is_causal, default_scale(scale, q.shape[-1]), backend
        run = flash_forward if is_traced(q) else run_forward
        o, lse = run(q, k, v, *ctx.options)
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    def backward(ctx, do: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        refuse_second_derivative()
        saved, prepared = ctx.saved_tensors, ctx.prepared
        if is_traced(do) or is_batched(do):
            gradients = flash_backward(do, *saved, *ctx.options)
        elif prepared is not None and prepared.fits(*saved):
            gradients = prepared.backward(do, *saved)
        else:
            gradients = run_backward(do, *saved, *ctx.options)
        # Autograd expects a gradient or None for each argument that `apply` received.
        return *gradients, *(None for _ in ctx.needs_input_grad[3:])


# PyTorch's `apply` without the check for torch.func transforms, which is slow Python
# code: `attention` rejects transforms itself.
apply = super(torch.autograd.Function, FlashAttentionTriton).apply  # pyright: ignore


def check_arguments(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None
) -> None:
    """Raise TypeError or ValueError unless the kernels support these arguments."""
    check_inputs(q, k, v, causal, scale, DTYPES)
    if q.shape[-1] > MAX_HEAD:
        raise ValueError(
            f"q must have a head dimension from 1 to {MAX_HEAD}, got {q.shape[-1]}"
        )
    if not q.is_cuda and not (q.is_cpu and INTERPRETED.value):
        raise ValueError(
            f"q must be on a CUDA device, got {q.device}; the CPU is taken where "
            "TRITON_INTERPRET=1 is set before triton is first imported"
        )


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool = False,
    scale: float | None = None,
    backend: str = "auto",
) -> Tensor:
    """Compute `flash_attention` with `backend` "auto", "triton" or "hopper"."""
    refuse_transforms()
    q, k, v = autocast_like_sdpa(q, k, v)
    tensors = isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)
    if tensors and q.ndim in (3, 4) and not is_traced(q):
        if is_differentiated(q, k, v):
            return apply(q, k, v, causal, scale, backend)
        # Without gradients, skip `apply`, which would only add CPU overhead.
        if prepared := prepare_call(q, k, v, causal, scale, backend):
            check_device(q.device)
            return prepared.forward(q, k, v)[0]
        check_arguments(q, k, v, causal, scale)
        scale = default_scale(scale, q.shape[-1])
        return run_forward(q, k, v, causal, scale, backend)[0]
    check_arguments(q, k, v, causal, scale)
    shape = q.shape
    if q.ndim == 2:
        q, k, v = q[None], k[None], v[None]
    elif q.ndim > 4:
        q, k, v = (x.flatten(0, -4) for x in (q, k, v))
    if is_traced(q):
        refuse_forward_mode(q, k, v)
        scale = default_scale(scale, shape[-1])
        return flash_forward(q, k, v, causal, scale, backend)[0].view(shape)
    return FlashAttentionTriton.apply(q, k, v, causal, scale, backend).view(shape)


def causal_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return causal attention of q, k and v; all have shape (batch, heads, n, d)."""
    return attention(q, k, v, causal=True)

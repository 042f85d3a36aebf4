"""Check the arguments of flash attention, and handle autocast and torch.func."""

import math
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._C._functorch import TransformType, is_batchedtensor, is_legacy_batchedtensor
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch.autograd import forward_ad

# The properties of a tensor that decide whether it is supported.
TensorProperties = tuple[torch.Size, torch.dtype, torch.device, torch.layout]
SMALLEST_SCALE, LARGEST_SCALE = 2.0**-126, 2.0**127


def check_inputs(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    causal: bool,
    scale: float | None,
    dtypes: tuple[torch.dtype, ...],
) -> None:
    """Raise TypeError or ValueError for invalid arguments or dtypes not in `dtypes`."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}")
    # Under a compiler, shapes are symbolic and can't be cache keys.
    check = check_properties if is_traced(q) else check_properties_cached
    try:
        of_q, of_k, of_v = ((x.shape, x.dtype, x.device, x.layout) for x in (q, k, v))
    except RuntimeError as error:
        # Reading the shape of a nested tensor raises RuntimeError.
        raise TypeError("q, k and v must not be nested tensors") from error
    check(of_q, of_k, of_v, dtypes)
    if not isinstance(causal, bool):
        # Don't print a tensor, which would copy it from the GPU.
        received = type_name(causal) if hasattr(causal, "shape") else repr(causal)
        raise TypeError(
            f"causal must be True or False, got {received}; it is the fourth argument, "
            "where SDPA takes attn_mask and flash-attn dropout_p: neither exists here"
        )
    if scale is not None:
        if not isinstance(scale, int | float) or isinstance(scale, bool):
            raise TypeError(
                f"scale must be an int, a float or None, got {type_name(scale)}"
            )
        # Kernels multiply scores by scale · log2(e) in float32. If that were 0 or
        # infinite, a masked score of -inf could give NaN.
        if not SMALLEST_SCALE <= scale < LARGEST_SCALE:
            raise ValueError(
                "scale must be positive and finite, a normal number of float32 that is "
                f"one times log2(e), too (1.2e-38 to 1.7e+38), got {scale!r:.30}"
            )


def type_name(x: object) -> str:
    """Return the full name of the type of x, such as "torch.Tensor"."""
    return f"{type(x).__module__}.{type(x).__qualname__}"


def check_properties(
    q: TensorProperties,
    k: TensorProperties,
    v: TensorProperties,
    dtypes: tuple[torch.dtype, ...],
) -> None:
    """Raise TypeError or ValueError for wrong shapes, dtypes, devices or layouts."""
    q_shape, q_dtype, q_device, _ = q
    for name, (shape, dtype, device, layout) in (("q", q), ("k", k), ("v", v)):
        rank = len(shape)
        if layout != torch.strided:
            raise TypeError(f"{name} must be a strided tensor, got layout {layout}")
        if dtype not in dtypes:
            got, *valid = (str(x).removeprefix("torch.") for x in (dtype, *dtypes))
            raise TypeError(f"{name} must be one of {', '.join(valid)}, got {got}")
        if dtype != q_dtype:
            raise TypeError(f"{name} must have the dtype of q, {q_dtype}, got {dtype}")
        if device != q_device:
            raise ValueError(
                f"{name} must be on the device of q, {q_device}, got {device}"
            )
        if rank < 2:
            raise ValueError(
                f"{name} must have two or more dimensions (..., N, d), "
                f"got shape {tuple(shape)}"
            )
        if rank != len(q_shape):
            raise ValueError(
                f"{name} must have as many dimensions as q, {len(q_shape)}, "
                f"got shape {tuple(shape)}"
            )
        if 0 in shape:
            raise ValueError(f"{name} must not be empty, got shape {tuple(shape)}")
        if shape[-1] != q_shape[-1]:
            raise ValueError(
                f"{name} must have the head dimension of q, {q_shape[-1]}, "
                f"got shape {tuple(shape)}"
            )
    k_shape, v_shape = k[0], v[0]
    if v_shape != k_shape:
        raise ValueError(
            f"v must have the shape of k, {tuple(k_shape)}, got {tuple(v_shape)}"
        )
    if q_shape[:-3] != k_shape[:-3]:
        raise ValueError(
            f"k must have the leading dimensions of q, {tuple(q_shape[:-3])}, "
            f"got {tuple(k_shape[:-3])} in shape {tuple(k_shape)}"
        )
    if len(q_shape) > 2 and q_shape[-3] % k_shape[-3]:
        raise ValueError(
            f"k must have as many heads as q, {q_shape[-3]}, or a divisor of them, "
            f"got {k_shape[-3]}"
        )


# Only successful checks are cached, because lru_cache does not store exceptions.
check_properties_cached = lru_cache(maxsize=4096)(check_properties)


def is_traced(q: Tensor) -> bool:
    """Return whether a compiler is tracing, or q is not a plain Tensor or Parameter."""
    return torch.compiler.is_compiling() or type(q) not in (Tensor, torch.nn.Parameter)


def is_differentiated(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether autograd differentiates q, k or v, in reverse or forward mode."""
    if torch.is_grad_enabled() and (
        q.requires_grad or k.requires_grad or v.requires_grad
    ):
        return True
    return has_tangents(q, k, v)


def has_tangents(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return whether q, k or v has a forward-mode tangent."""
    return any(forward_ad.unpack_dual(x).tangent is not None for x in (q, k, v))


def refuse_forward_mode(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Raise NotImplementedError if q, k or v has a tangent, which would be ignored."""
    if has_tangents(q, k, v):
        raise NotImplementedError(
            "flash attention has no jvp: it can't be differentiated in forward mode"
        )


def refuse_transforms() -> None:
    """Raise NotImplementedError inside torch.func transforms (such as grad), except
    for vmap in compiled code, where the custom operators loop over the batch.
    """
    # This condition is the one that PyTorch's autograd Functions check.
    if torch._C._are_functorch_transforms_active() and not (
        torch.compiler.is_compiling()
        and retrieve_current_functorch_interpreter().key() == TransformType.Vmap
    ):
        raise NotImplementedError(
            "flash attention can't be transformed by torch.func (grad, vjp, jvp, vmap "
            "and what they make up): use autograd, and batches as leading dimensions"
        )


def is_batched(do: Tensor) -> bool:
    """Return whether do is a batch of gradients, for example from `is_grads_batched` or
    vmap around `autograd.grad`. In compiled code, return False.
    """
    return not torch.compiler.is_compiling() and (
        is_legacy_batchedtensor(do) or is_batchedtensor(do)
    )


def register_vmap_loop(operator: Any) -> None:
    """Make vmap loop over the batch for a custom `operator` that has three results."""

    @operator.register_vmap
    def _(info, in_dims: tuple[int | None, ...], *arguments):
        calls = (
            operator(
                *(
                    x if dim is None else x.select(dim, i)
                    for x, dim in zip(arguments, in_dims, strict=True)
                )
            )
            for i in range(info.batch_size)
        )
        return tuple(map(torch.stack, zip(*calls, strict=True))), (0, 0, 0)


def refuse_batched_gradients(do: Tensor, operation: str) -> None:
    """Raise NotImplementedError (naming `operation`) if do is a batch of gradients."""
    if is_batched(do):
        raise NotImplementedError(
            f"the gradient of {operation} can't be computed for a batch of gradients "
            "(is_grads_batched, vectorize or vmap): call backward once for each"
        )


def refuse_second_derivative(operation: str = "flash attention") -> None:
    """Raise ValueError in a backward pass with `create_graph=True`, if not compiled."""
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        raise ValueError(
            f"the gradient of {operation} can't be differentiated again: "
            "backward got create_graph=True, takes False"
        )


def autocast_like_sdpa(
    q: Tensor, k: Tensor, v: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return q, k and v. If autocast is on for q's device (CUDA or CPU), cast tensors
    on this device to autocast's dtype, as SDPA does, except float64.
    """
    # On other devices, querying autocast would cause graph breaks in torch.compile.
    if not isinstance(q, Tensor) or not (q.is_cuda or q.is_cpu):
        return q, k, v
    # This is faster than reading `q.device.type`.
    device = "cuda" if q.is_cuda else "cpu"
    if not torch.is_autocast_enabled(device):
        return q, k, v
    dtype = torch.get_autocast_dtype(device)

    def cast(x: Tensor) -> Tensor:
        eligible = (
            isinstance(x, Tensor) and x.is_floating_point() and x.dtype != torch.float64
        )
        return x.to(dtype) if eligible and x.device.type == device else x

    return cast(q), cast(k), cast(v)


def default_scale(scale: float | None, d: int) -> float:
    """Return `scale` as a float, or 1 / sqrt(d) if it is None."""
    return 1 / math.sqrt(d) if scale is None else float(scale)

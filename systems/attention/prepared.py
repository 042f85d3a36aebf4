"""Cache kernel launches of both passes, keyed by shapes, strides, dtypes and options,
because checking arguments and choosing kernels makes short calls CPU-bound.
"""

from functools import lru_cache

import torch
from torch import Tensor

from systems.attention.hopper import limits
from systems.attention.inputs import (
    LARGEST_SCALE,
    SMALLEST_SCALE,
    check_properties,
    default_scale,
    is_traced,
)
from systems.attention.relaunch import ShapeAndStrides, shape_and_strides
from systems.attention.triton.launches import (
    backward_launches,
    choose_arithmetic,
    forward_launches,
    run_backward,
    run_forward,
)
from systems.attention.triton.primitives import INTERPRETED

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
MAX_HEAD = 256
# Shape, strides, dtype and device of a tensor.
TensorMetadata = tuple[torch.Size, tuple[int, ...], torch.dtype, torch.device]


class PreparedCall:
    """Triton launches for calls with equal shapes, strides, dtype, device, options."""

    def __init__(
        self,
        q: TensorMetadata,
        k: TensorMetadata,
        v: TensorMetadata,
        causal: bool,
        scale: float,
        arithmetic: str,
    ):
        self.dtype, self.device = q[2:]
        self.options = causal, scale
        self.inputs: list[ShapeAndStrides] = [x[:2] for x in (q, k, v)]
        # Layouts of dq (and o), dk and dv, as `torch.empty_like` makes them.
        self.outputs = [
            shape_and_strides(torch.empty_like(torch.empty_strided(*x, device="meta")))
            for x in self.inputs
        ]
        self.statistics = q[0][:-1]
        self.forward_launches = forward_launches(
            arithmetic, self.dtype, self.device, causal, scale, *self.inputs,
            self.outputs[0],
        )  # fmt: skip
        # The cache keys are the strides of do, and the precision of float32 matmuls.
        self.backward_launches = lru_cache(maxsize=64)(self.make_backward_launches)

    def make_backward_launches(self, do_strides: tuple[int, ...], arithmetic: str):
        do = self.outputs[0][0], do_strides
        return backward_launches(
            arithmetic, self.dtype, self.device, *self.options, *self.inputs,
            self.outputs[0], do, *self.outputs,
        )  # fmt: skip

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Run the forward pass, and return (o, lse)."""
        o = torch.empty_like(q)
        lse = torch.empty(self.statistics, dtype=torch.float32, device=self.device)
        run_forward(self.forward_launches, q, k, v, o, lse)
        return o, lse

    def fits(self, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor) -> bool:
        """Return whether q, k, v and o kept their strides, and lse is contiguous."""
        strides = [x.stride() for x in (q, k, v, o)]
        expected = [x[1] for x in (*self.inputs, self.outputs[0])]
        return strides == expected and lse.is_contiguous()

    def backward(
        self, do: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Run the backward pass, and return (dq, dk, dv)."""
        # Copy a gradient with strided rows, such as the expanded gradient of a sum.
        if do.stride(-1) != 1:
            do = do.contiguous()
        launches = self.backward_launches(do.stride(), choose_arithmetic(self.dtype))
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        run_backward(launches, do, q, k, v, o, lse, dq, dk, dv)
        return dq, dk, dv


def prepare_call(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, scale: float | None, backend: str
) -> PreparedCall | None:
    """Return the cached Triton launches for a call, or None if `dispatch` must take its
    slower path, for example under a compiler, for strided rows or the Hopper kernels.
    Raise TypeError or ValueError for unsupported shapes, dtypes, devices or layouts.
    """
    # Check types first, because True and 1 are equal as cache keys.
    if type(causal) is not bool or not (scale is None or type(scale) in (float, int)):
        return None
    if is_traced(q) or not (isinstance(k, Tensor) and isinstance(v, Tensor)):
        return None
    try:
        return prepare_call_cached(
            (q.shape, q.stride(), q.dtype, q.device),
            (k.shape, k.stride(), k.dtype, k.device),
            (v.shape, v.stride(), v.dtype, v.device),
            causal, scale, backend, choose_arithmetic(q.dtype),
        )  # fmt: skip
    except RuntimeError:
        # Sparse and nested tensors have no strides.
        return None


@lru_cache(maxsize=4096)
def prepare_call_cached(
    q: TensorMetadata,
    k: TensorMetadata,
    v: TensorMetadata,
    causal: bool,
    scale: float | None,
    backend: str,
    arithmetic: str,
) -> PreparedCall | None:
    """Compute `prepare_call`'s result; `arithmetic` is from `choose_arithmetic`."""
    shape, _, _, device = q
    if backend not in ("auto", "triton") or len(shape) not in (3, 4):
        return None
    if any(len(x[0]) != len(shape) or x[1][-1] != 1 for x in (q, k, v)):
        return None
    if shape[-1] > MAX_HEAD:
        return None
    if device.type != "cuda" and not (device.type == "cpu" and INTERPRETED.value):
        return None
    if scale is not None and not SMALLEST_SCALE <= scale < LARGEST_SCALE:
        return None
    properties = [(x[0], x[2], x[3], torch.strided) for x in (q, k, v)]
    check_properties(properties[0], properties[1], properties[2], DTYPES)
    if backend == "auto" and limits.is_faster(
        torch.empty(q[0], device="meta"), torch.empty(k[0], device="meta")
    ):
        return None
    return PreparedCall(q, k, v, causal, default_scale(scale, shape[-1]), arithmetic)

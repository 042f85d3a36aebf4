"""TMA descriptors of tensors: made once for each layout, then filled with addresses."""

import threading
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from systems.attention.relaunch import NO_DEVICE_CHANGE, Layout, use_device

# Thread-local state: `context` is set once the thread has a CUDA context.
PER_THREAD = threading.local()


def prepare_for_tma(x: Tensor) -> AbstractContextManager[Any]:
    """Give this thread a CUDA context, as TMA needs, and return `use_device(x)`."""
    device = use_device(x)
    if device is NO_DEVICE_CHANGE and x.is_cuda and not hasattr(PER_THREAD, "context"):
        # This call creates a context; `set_device` doesn't if the device is current.
        torch.cuda.mem_get_info()
        PER_THREAD.context = True
    return device


class Descriptor:
    """Callable that makes TMA descriptors of tensors of one layout, for blocks of shape
    `block` swizzled by `swizzle` bytes. Outside the tensor TMA reads 0, writes nothing.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        strides: tuple[int, ...],
        block: list[int],
        dtype: torch.dtype,
        swizzle: int,
    ):
        from triton.experimental.gluon import language as gl
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

        d, bits = shape[-1], 8 * dtype.itemsize
        # A dimension of size 1 may have any stride.
        unit = 16 // dtype.itemsize
        regular = [
            stride if size > 1 else -(-d // unit) * unit
            for size, stride in zip(shape, strides, strict=True)
        ]
        regular[-1] = 1
        layout = gl.NVMMASharedLayout(
            swizzle_byte_width=swizzle, element_bitwidth=bits, rank=len(shape)
        )
        anything = torch.zeros(1, dtype=dtype)
        self.type = TensorDescriptor
        self.fields = dict(
            vars(TensorDescriptor(anything, list(shape), regular, block, layout))
        )

    def __call__(self, x: Tensor):
        descriptor = object.__new__(self.type)
        descriptor.__dict__.update(self.fields, base=x)
        return descriptor


def describe(descriptors: list[Descriptor], *tensors: Tensor) -> list[Any]:
    """Return the TMA descriptors of tensors, each made by its own `Descriptor`."""
    return [make(x) for make, x in zip(descriptors, tensors, strict=True)]


def rows_descriptor(
    x: Layout, rows: int, columns: int, dtype: torch.dtype
) -> Descriptor:
    """Return a Descriptor for x (b, h, n, d), in tiles of `rows` x `columns`."""
    return Descriptor(x.shape, x.strides, [1, 1, rows, columns], dtype, swizzle=128)


def statistics_descriptor(heads: int, n: int, stride: int, rows: int) -> Descriptor:
    """Return a Descriptor for tiles of `rows` numbers of float32 (heads, n), in which
    heads are `stride` numbers apart.
    """
    return Descriptor((heads, n), (stride, 1), [1, rows], torch.float32, swizzle=0)

"""Launch a Triton kernel repeatedly for tensors of one layout, without most of the CPU
overhead of `kernel[grid](...)`.

At each call Triton inspects every argument, which can take longer than a short kernel.
The result depends only on dtypes, shapes, strides and alignment, so it is cached.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from triton import knobs
from triton.runtime import driver

# Triton compiles special code for addresses that are multiples of this (in bytes).
ALIGNMENT = 16
# CUDA's limit on the first axis of a grid; the other axes are limited to 65,535.
MAX_PROGRAMS = 2**31 - 1


class Layout(NamedTuple):
    """Shape and strides of a tensor (batch, heads, n, d), in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]


# (shape, strides) of a tensor, used as cache key because making a `Layout` is slow.
ShapeAndStrides = tuple[tuple[int, ...], tuple[int, ...]]


def shape_and_strides(x: Tensor) -> ShapeAndStrides:
    return x.shape, x.stride()


def make_layout(shape: tuple[int, ...], strides: tuple[int, ...]) -> Layout:
    """Return the layout of a tensor (b, h, n, d), or of (h, n, d) with a batch of 1."""
    return (
        Layout(shape, strides)
        if len(shape) == 4
        else Layout((1, *shape), (0, *strides))
    )


NO_DEVICE_CHANGE = nullcontext()


def use_device(x: Tensor) -> AbstractContextManager[Any]:
    """Return a context in which the GPU of x is current. On a CPU it does nothing."""
    if not x.is_cuda or x.get_device() == torch.cuda.current_device():
        return NO_DEVICE_CHANGE
    return torch.cuda.device(x.device)


class Launch:
    """A Triton kernel with its grid and all arguments except tensors; call it on these.
    `constants` are constexpr arguments, and `options` are num_warps, num_stages etc.
    """

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        scalars: tuple[float, ...],
        constants: dict[str, Any],
        **options: int,
    ):
        self.kernel, self.grid = kernel, (*grid, 1, 1)[:3]
        self.scalars, self.constants = scalars, constants
        # True is Triton's default, but Triton 3.9 warns if the option is not set.
        self.options = {"enable_fp_fusion": True, **options}
        self.again: Callable[..., None] | None = None

    # --8<-- [start:launch]
    def __call__(self, *tensors: Any) -> None:
        """Launch on the current stream, and compile in the first call. Raise ValueError
        if the grid has more than MAX_PROGRAMS programs.
        """
        arguments, aligned = [], True
        for x in tensors:
            if isinstance(x, Tensor):
                address = x.data_ptr()
                aligned = aligned and address % ALIGNMENT == 0
                arguments.append(address)
            else:
                # TMA descriptors always have aligned memory.
                arguments.append(x)
        if aligned and self.again is not None:
            self.again(*arguments)
            return
        if self.grid[0] > MAX_PROGRAMS:
            raise ValueError(
                f"q, k and v must need at most {MAX_PROGRAMS} programs of a kernel, "
                f"got {self.grid[0]}: compute some of the heads at a time"
            )
        compiled = self.kernel[self.grid](
            *tensors, *self.scalars, **self.constants, **self.options
        )
        # The interpreter compiles nothing. Unaligned launches are not cached.
        if aligned and compiled is not None:
            names = self.kernel.arg_names[len(tensors) + len(self.scalars) :]
            # A Gluon kernel may take the option num_warps as an argument.
            keywords = {**self.constants, **self.options}
            rest = (*self.scalars, *(keywords[name] for name in names))
            self.again = make_launcher(compiled, self.grid, rest)
        # --8<-- [end:launch]


# --8<-- [start:launcher]
def make_launcher(
    compiled: Any, grid: tuple[int, ...], rest: tuple[Any, ...]
) -> Callable[..., None]:
    """Return a function that launches a compiled kernel on the current stream, with the
    given arguments followed by `rest`. Unlike `compiled[grid]`, this function does not
    look up the device in each call, and passes None for the hooks and their data.
    """
    run = compiled.run
    fixed = (compiled.function, compiled.packed_metadata, None, None, None)
    active: Any = driver.active
    device, stream_of = active.get_current_device(), active.get_current_stream
    hooks, with_hooks = knobs.runtime, compiled[grid]

    def launch(*arguments: Any) -> None:
        enter, leave = hooks.launch_enter_hook, hooks.launch_exit_hook
        # If hooks are set (a function, or a chain with `calls`), let Triton launch.
        if getattr(enter, "calls", enter) or getattr(leave, "calls", leave):
            return with_hooks(*arguments, *rest)
        return run(*grid, stream_of(device), *fixed, *arguments, *rest)

    return launch
    # --8<-- [end:launcher]


def empty_row_statistics(x: Tensor) -> Tensor:
    """Return an uninitialized float32 tensor of shape (..., n) for x (..., n, d)."""
    shape = x.shape[:-1]
    heads, n = shape[-2:]
    strides = (n, 1) if len(shape) == 2 else (heads * n, n, 1)
    # This is faster than torch.empty, which would compute the strides.
    return torch.empty_strided(shape, strides, dtype=torch.float32, device=x.device)

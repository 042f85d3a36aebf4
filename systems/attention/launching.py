"""A Triton kernel launched again and again for tensors of one layout, at a fraction of what `kernel[grid](...)` costs.

Each such call asks of every argument what compiled code may take for granted (a stride of one, an address that is a
multiple of 16). With twenty strides that takes the host longer than a short kernel takes the GPU, and the answer is
always the same: it follows from dtypes, shapes and strides, and from where the tensors begin.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from torch import Tensor

# What Triton asks of an address, in bytes.
ALIGNMENT = 16


class Layout(NamedTuple):
    """How a tensor (batch, heads, n, d) lies in memory, counted in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]


def layout(x: Tensor) -> Layout:
    """That of x (batch, heads, n, d), or (heads, n, d) with a batch of one."""
    shape, strides = x.shape, x.stride()
    return Layout(shape, strides) if len(shape) == 4 else Layout((1, *shape), (0, *strides))


class Launch:
    """`kernel` over a grid of programs, with all that it takes but its tensors, which stand first among its arguments.

    Valid for tensors of the dtypes, shapes, strides and device for which it was made. What the copy engine reads or
    writes is described by a `Descriptor`, which stands in the tensor's place.
    """

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, ...],
        numbers: tuple[float, ...],
        constants: dict[str, Any],
        **options: int,
    ):
        self.kernel, self.grid = kernel, (*grid, 1, 1)[:3]
        self.numbers, self.constants, self.options = numbers, constants, options
        self.again: Callable[..., None] | None = None
        self.rest: tuple[Any, ...] = ()

    def __call__(self, *tensors: Any) -> None:
        """Launch on the current stream. The first call compiles."""
        # A descriptor is of aligned memory only.
        aligned = all(x.data_ptr() % ALIGNMENT == 0 for x in tensors if isinstance(x, Tensor))
        if aligned and self.again is not None:
            return self.again(*tensors, *self.rest)
        compiled = self.kernel[self.grid](*tensors, *self.numbers, **self.constants, **self.options)
        # The interpreter compiles nothing. Code for tensors that begin anywhere is looked up anew each time.
        if aligned and compiled is not None:
            names = self.kernel.arg_names[len(tensors) + len(self.numbers) :]
            # A kernel in Gluon has the number of its warps among its arguments.
            given = {**self.constants, **self.options}
            self.rest = (*self.numbers, *(given[name] for name in names))
            self.again = compiled[self.grid]
        return None

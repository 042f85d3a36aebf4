"""Decide which inputs the Hopper kernels support (16-bit dtypes, head dimensions from
40 to 128 in steps of 8, TMA-readable tensors), and where they beat Triton's.
"""

from functools import cache

import torch
import triton
from torch import Tensor
from triton import knobs

# --8<-- [start:limits]
# Tested Triton versions. Others are rejected, because each version changes Gluon. All
# passed the tests on an H200; 3.8 and 3.9 also passed a memory checker on an H100.
VERSIONS = ("3.6.", "3.7.", "3.8.", "3.9.")
CAPABILITY = (9, 0)
# Padded head dimension by head dimension. TMA pads tiles with zeros, and requires rows
# that are aligned to 16 bytes.
TILE_DIMS = {d: 64 if d <= 64 else 128 for d in range(40, 129, 8)}
DTYPES = (torch.float16, torch.bfloat16)
# With fewer scores the Triton kernels are faster: Hopper kernels need TMA descriptors,
# and making them takes the CPU longer than the kernels take the GPU.
MIN_SCORES = 2**27
# With fewer query rows (over all heads) the Triton kernels are faster, because they
# split their loops where tiles don't fill the SMs.
MIN_ROWS = 2**15
# --8<-- [end:limits]


def missing_requirement(capability: tuple[int, int], version: str) -> str:
    """Return "needs ..." if a GPU or Triton version can't run Hopper kernels, or ""."""
    if capability != CAPABILITY:
        version_text = ".".join(map(str, capability))
        return f"needs a GPU of compute capability 9.0, found {version_text}"
    if not version.startswith(VERSIONS):
        tested = ", ".join(x.rstrip(".") for x in VERSIONS)
        return f"needs Triton {tested}, with which it was tested, found {version}"
    return ""


@cache
def missing_on_device(device: torch.device) -> str:
    """Return "needs ..." if a GPU and this Triton can't run Hopper kernels, or ""."""
    if knobs.runtime.interpret:
        return "needs a compiler, found the interpreter of TRITON_INTERPRET=1"
    return missing_requirement(
        torch.cuda.get_device_capability(device), triton.__version__
    )


# --8<-- [start:takes]
def is_tma_readable(x: Tensor) -> bool:
    """Return whether TMA can read x: contiguous rows, 16-byte-aligned, no stride 0."""
    *outer, last = x.stride()
    if last != 1 or x.data_ptr() % 16:
        return False
    unit = 16 // x.element_size()
    # A loop is faster than `all`, and this code runs for each tensor of each call.
    for size, stride in zip(x.shape, outer, strict=False):
        if size > 1 and (stride <= 0 or stride % unit):
            return False
    return True


def make_tma_readable(x: Tensor) -> Tensor:
    """Return x, or a copy if TMA can't read x, for example because of alignment."""
    return x if is_tma_readable(x) else x.clone(memory_format=torch.contiguous_format)


def statistics_stride(n: int) -> int:
    """Return n rounded up to a multiple of 4, to align float32 rows to 16 bytes."""
    return -(-n // 4) * 4


def unsupported_reason(q: Tensor, k: Tensor, v: Tensor) -> str:
    """Return why the kernels don't support q, k and v (..., n, d), or "" if they do."""
    if q.device.type != "cuda":
        return f"needs a CUDA GPU, found {q.device.type}"
    if missing_on_device(q.device):
        return missing_on_device(q.device)
    if q.dtype not in DTYPES:
        return f"needs float16 or bfloat16, found {q.dtype}"
    if q.shape[-1] not in TILE_DIMS:
        head_dim = q.shape[-1]
        return f"needs a head dimension from 40 to 128 that 8 divides, found {head_dim}"
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not is_tma_readable(x):
            return (
                "needs rows without gaps that begin at multiples of 16 bytes, "
                f"found {name} with strides {x.stride()} at address {x.data_ptr()}"
            )
    return ""


def is_faster(q: Tensor, k: Tensor) -> bool:
    """Return whether q and k are large enough for the Hopper kernels to be faster."""
    rows = q.numel() // q.shape[-1]
    return rows >= MIN_ROWS and rows * k.shape[-2] >= MIN_SCORES
    # --8<-- [end:takes]

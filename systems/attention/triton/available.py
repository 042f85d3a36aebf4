"""Describe which attention kernels run on a GPU, and log why faster ones don't."""

import logging
from functools import cache

import torch
import triton
from torch import Tensor

from systems.attention.hopper import limits
from systems.attention.triton.chooser import load_tuned, table_name
from systems.attention.triton.primitives import INTERPRETED

LOG = logging.getLogger(__name__)
# The GPUs for which each table of `tables.CONFIGS` was made.
TABLES = {
    "sm_90": "Hopper",
    "sm_80": "the A100",
    "sm_86": "GPUs with 99 KiB of shared memory",
    "sm_100": "the B200",
    "sm_120": "the GeForce RTX 50",
}
# Name of the table whose configurations were timed (on an H200).
TIMED_TABLE = "sm_90"
# Minimum compute capability. Older GPUs have no bfloat16 tensor cores.
MIN_CAPABILITY = (8, 0)
# Kinds of reasons already logged in this process.
LOGGED_KINDS: set[str] = set()


def log_slow_kernels(reason: str) -> None:
    """Warn that kernels may be slow; once per `reason`, compared up to ", found "."""
    kind = reason.partition(", found ")[0]
    if kind not in LOGGED_KINDS:
        LOGGED_KINDS.add(kind)
        LOG.warning("flash_attention may be slower than this GPU allows: %s", reason)


def log_hopper_refusal(q: Tensor, reason: str) -> None:
    """Log the `reason` why the Hopper kernels reject q, if another Triton version or a
    copy of the inputs would help.
    """
    supported = q.dtype in limits.DTYPES and q.shape[-1] in limits.TILE_DIMS
    if supported and reason.startswith(("needs Triton", "needs rows")):
        log_slow_kernels(f"hopper {reason}")


@cache
def check_device(device: torch.device) -> None:
    """Raise ValueError for a GPU below compute capability 8.0. Once per device, log if
    kernels run in Triton's interpreter, or with configurations not timed on such a GPU.
    """
    if device.type != "cuda":
        return
    capability = torch.cuda.get_device_capability(device)
    status = describe_kernels(device)["triton"]
    if INTERPRETED.value:
        log_slow_kernels(f"triton {status}")
    elif capability < MIN_CAPABILITY:
        raise ValueError(f"triton: {status}")
    elif table_name(capability) != TIMED_TABLE and not load_tuned(device):
        log_slow_kernels(f"triton {status}")


def describe_kernels(device: torch.device) -> dict[str, str]:
    """Return {"hopper": text, "triton": text}; a text is "runs, ..." or "needs ..."."""
    if device.type != "cuda":
        status = (
            "runs, in Triton's interpreter"
            if INTERPRETED.value
            else f"needs a CUDA GPU, found {device.type}; TRITON_INTERPRET=1 in the "
            "environment has the CPU interpret them"
        )
        return {"hopper": f"needs a CUDA GPU, found {device.type}", "triton": status}
    capability = torch.cuda.get_device_capability(device)
    tuned_count = 0 if INTERPRETED.value else len(load_tuned(device))
    return describe_by_capability(
        capability, triton.__version__, tuned_count, INTERPRETED.value
    )


def describe_by_capability(
    capability: tuple[int, int], version: str, timed: int = 0, interpreted: bool = False
) -> dict[str, str]:
    """Return `describe_kernels`' dict for a GPU of this compute capability and a Triton
    version. `timed` configurations were tuned on the GPU; if `interpreted`, Triton's
    interpreter runs the kernels.
    """
    if interpreted:
        version_text = "the interpreter of TRITON_INTERPRET=1"
        return {
            "hopper": f"needs a compiler, found {version_text}",
            "triton": f"runs, in {version_text}: unset that, for the GPU's own speed",
        }
    table, version_text = table_name(capability), ".".join(map(str, capability))
    status = f"runs, with launch configurations of {TABLES[table]}"
    if timed:
        status += f", {timed} of them timed here"
    elif table != TIMED_TABLE:
        status += ", compiled and not timed: python tools/tune_flash.py times them here"
    if capability < MIN_CAPABILITY:
        status = f"needs a GPU of compute capability 8.0 or later, found {version_text}"
    return {
        "hopper": limits.missing_requirement(capability, version)
        or "runs, for large inputs of 16 bits with a head dimension from 40 to 128",
        "triton": status,
    }

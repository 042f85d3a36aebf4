"""Compute how many thread blocks of a kernel fit on one SM of each kind of GPU."""

from typing import NamedTuple

from systems.formulas.gpus import KIB


class Target(NamedTuple):
    """A kind of GPU with limits from CUDA's programming guide: bytes of shared memory
    per thread block and per SM, warps and thread blocks per SM, and number of SMs.
    """

    capability: tuple[int, int]
    block_bytes: int
    sm_bytes: int
    sm_warps: int
    sm_blocks: int
    sms: int


TARGETS = {
    "a100": Target((8, 0), 163 * KIB, 164 * KIB, 64, 32, 108),
    "rtx3090": Target((8, 6), 99 * KIB, 100 * KIB, 48, 16, 82),
    "rtx4090": Target((8, 9), 99 * KIB, 100 * KIB, 48, 24, 128),
    "h100": Target((9, 0), 227 * KIB, 228 * KIB, 64, 32, 132),
    "b200": Target((10, 0), 227 * KIB, 228 * KIB, 64, 32, 148),
    "rtx5090": Target((12, 0), 99 * KIB, 100 * KIB, 48, 24, 170),
}
BY_CAPABILITY = {"{}.{}".format(*gpu.capability): gpu for gpu in TARGETS.values()}


def blocks_per_sm(gpu: Target, registers: int, shared_bytes: int, warps: int) -> int:
    """Return how many thread blocks fit on one SM; `registers` are per thread. A warp
    gets registers in units of 256, out of 16,384 in each of an SM's four partitions.
    CUDA reserves 1 KiB of shared memory per block.
    """
    registers_per_warp = -(-registers * 32 // 256) * 256
    return min(
        4 * (16384 // registers_per_warp) // warps,
        gpu.sm_bytes // (shared_bytes + KIB),
        gpu.sm_warps // warps,
        gpu.sm_blocks,
    )

"""What a GPU is made of, by its maker's documents: the parts that a kernel's author has
to share out. Their rates per second stand in `PEAKS` of `costs`.

Those that kernels are compiled for, be they here or not, stand at the end.
"""

from dataclasses import dataclass
from typing import NamedTuple

from systems.formulas.costs import EXPONENTIALS_PER_CLOCK, key_of

KIB = 1024


@dataclass(frozen=True)
class Chip:
    """Counts, bytes and FLOPs a clock; everything but `sms`, `l2_bytes` and the clock
    is of one streaming multiprocessor (SM).
    """

    sms: int
    # The highest clock of the plain fp32 units, in Hz.
    clock: float
    l2_bytes: int
    shared_bytes: int
    register_bytes: int
    warps: int
    tensor_cores: int
    bf16_flops_per_clock: int
    fp32_flops_per_clock: int
    exponentials_per_clock: int
    source: str


HOPPER = {
    "l2_bytes": 50 * 2**20,
    "shared_bytes": 228 * KIB,
    "register_bytes": 256 * KIB,
    "warps": 64,
    "tensor_cores": 4,
    "bf16_flops_per_clock": 4096,
    "fp32_flops_per_clock": 256,
    "exponentials_per_clock": EXPONENTIALS_PER_CLOCK,
    "source": "NVIDIA H100 architecture white paper and Hopper tuning guide",
}
AMPERE = {
    "l2_bytes": 40 * 2**20,
    "shared_bytes": 164 * KIB,
    "register_bytes": 256 * KIB,
    "warps": 64,
    "tensor_cores": 4,
    "bf16_flops_per_clock": 2048,
    "fp32_flops_per_clock": 128,
    "exponentials_per_clock": EXPONENTIALS_PER_CLOCK,
    "source": "NVIDIA A100 architecture white paper and Ampere tuning guide",
}
# Keys as in `PEAKS`: the longest that begins a device's slug counts.
CHIPS = {
    "nvidia-h200": Chip(sms=132, clock=1.98e9, **HOPPER),
    "nvidia-h100": Chip(sms=132, clock=1.98e9, **HOPPER),
    "nvidia-h100-pcie": Chip(sms=114, clock=1.755e9, **HOPPER),
    "nvidia-a100": Chip(sms=108, clock=1.41e9, **AMPERE),
}


def chip_of(slug: str) -> Chip | None:
    """The chip of the device with this slug, or None where none is listed above."""
    return CHIPS.get(key_of(slug, CHIPS))


# What kernels are compiled for --------------------------------------------------------


class Target(NamedTuple):
    """A kind of GPU: the names of those that it stands for, its number of SMs, and what
    kernels may have of it by CUDA's programming guide. These are bytes of shared memory
    in a block and in an SM, warps and blocks in an SM.
    """

    name: str
    capability: tuple[int, int]
    block_bytes: int
    sm_bytes: int
    sm_warps: int
    sm_blocks: int
    sms: int

    @property
    def capability_text(self) -> str:
        """As a record has it: "8.0"."""
        return "{}.{}".format(*self.capability)


TARGETS = {
    "a100": Target("A100", (8, 0), 163 * KIB, 164 * KIB, 64, 32, 108),
    "rtx3090": Target("RTX 3090, A10", (8, 6), 99 * KIB, 100 * KIB, 48, 16, 82),
    "rtx4090": Target("RTX 4090, L4, L40S", (8, 9), 99 * KIB, 100 * KIB, 48, 24, 128),
    "h100": Target("H100, H200", (9, 0), 227 * KIB, 228 * KIB, 64, 32, 132),
    "b200": Target("B200", (10, 0), 227 * KIB, 228 * KIB, 64, 32, 148),
    "rtx5090": Target("RTX 5090", (12, 0), 99 * KIB, 100 * KIB, 48, 24, 170),
}

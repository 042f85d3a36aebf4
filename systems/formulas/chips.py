"""Hardware limits of GPUs from their vendors' documents: SMs, shared memory, registers,
tensor cores. Rates per second are in `PEAKS` of `costs`.
"""

from dataclasses import dataclass

from systems.formulas.costs import EXPONENTIALS_PER_CLOCK, longest_prefix

KIB = 1024


@dataclass(frozen=True)
class Chip:
    """Limits of one GPU: counts, bytes, and FLOPs per cycle. All but `sms`, `l2_bytes`
    and the clock are per streaming multiprocessor (SM).
    """

    sms: int
    # Boost clock of the plain fp32 units, in Hz.
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
# Keys as in `PEAKS`: the longest one that is a prefix of a device's slug applies.
CHIPS = {
    "nvidia-h200": Chip(sms=132, clock=1.98e9, **HOPPER),
    "nvidia-h100": Chip(sms=132, clock=1.98e9, **HOPPER),
    "nvidia-h100-pcie": Chip(sms=114, clock=1.755e9, **HOPPER),
    "nvidia-a100": Chip(sms=108, clock=1.41e9, **AMPERE),
}


def chip_of(slug: str) -> Chip | None:
    """Return the chip of the device with this slug, or None if none is listed."""
    return CHIPS.get(longest_prefix(slug, CHIPS))

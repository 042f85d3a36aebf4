"""Number of SMs, clock, and rates per SM of GPUs, from NVIDIA's architecture white
papers (H100, A100). Rates per second are in `costs.PEAKS`.
"""

from dataclasses import dataclass

from systems.formulas.costs import longest_prefix

KIB = 1024


@dataclass(frozen=True)
class Chip:
    """A GPU: its number of streaming multiprocessors (SMs), boost clock in Hz, and
    operations per SM and clock cycle.
    """

    sms: int
    clock: float
    bf16_flops_per_clock: int
    fp32_flops_per_clock: int
    exponentials_per_clock: int = 16


# For a device, the longest key that is a prefix of its slug applies.
CHIPS = {
    "nvidia-h200": Chip(132, 1.98e9, 4096, 256),
    "nvidia-h100": Chip(132, 1.98e9, 4096, 256),
    "nvidia-h100-pcie": Chip(114, 1.755e9, 4096, 256),
    "nvidia-a100": Chip(108, 1.41e9, 2048, 128),
}


def find_chip(slug: str) -> Chip | None:
    """Return the chip of a device by its slug, or None if it is not listed."""
    return CHIPS.get(longest_prefix(slug, CHIPS))

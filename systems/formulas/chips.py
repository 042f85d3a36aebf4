"""Numbers of SMs, clocks, and rates per SM of GPUs, from NVIDIA's architecture white
papers (H100, A100). Rates per second are in `PEAKS` of `costs`.
"""

from dataclasses import dataclass

from systems.formulas.costs import longest_prefix

KIB = 1024


@dataclass(frozen=True)
class Chip:
    """A GPU: its streaming multiprocessors (SMs), the boost clock of its plain fp32
    units in Hz, and what one SM computes per clock.
    """

    sms: int
    clock: float
    bf16_flops_per_clock: int
    fp32_flops_per_clock: int
    exponentials_per_clock: int = 16


# Keys as in `PEAKS`: the longest one that is a prefix of a device's slug applies.
CHIPS = {
    "nvidia-h200": Chip(132, 1.98e9, 4096, 256),
    "nvidia-h100": Chip(132, 1.98e9, 4096, 256),
    "nvidia-h100-pcie": Chip(114, 1.755e9, 4096, 256),
    "nvidia-a100": Chip(108, 1.41e9, 2048, 128),
}


def find_chip(slug: str) -> Chip | None:
    """Return the chip of the device with this slug, or None if none is listed."""
    return CHIPS.get(longest_prefix(slug, CHIPS))

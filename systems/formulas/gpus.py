"""GPUs by the short names that users type, and chips with their number of SMs."""

from dataclasses import dataclass

from systems.formulas.costs import PEAKS, Peak
from systems.formulas.memory_costs import HOPPER_WORKSPACE, WORKSPACE

KIB = 1024
# Memory of the CUDA context and loaded libraries: 0.5 to 0.7 GiB, depending on driver.
CONTEXT_BYTES = 640 * 2**20


@dataclass(frozen=True)
class Gpu:
    """A type of GPU. `slug` selects its peak rates in `costs.PEAKS`."""

    name: str
    slug: str
    # Total memory as `nvidia-smi` reports it.
    memory_mib: int
    workspace_bytes: int = WORKSPACE

    @property
    def free_bytes(self) -> int:
        """The bytes available to tensors: total memory minus CUDA context."""
        return self.memory_mib * 2**20 - CONTEXT_BYTES

    @property
    def peak(self) -> Peak:
        return PEAKS[self.slug]


# --8<-- [start:gpus]
GPUS = {
    "a100-40": Gpu("A100 40 GB", "nvidia-a100-sxm4-40gb", 40_960),
    "a100-80": Gpu("A100 80 GB", "nvidia-a100-sxm4-80gb", 81_920),
    "h100": Gpu("H100 80 GB", "nvidia-h100-80gb-hbm3", 81_559, HOPPER_WORKSPACE),
    "h200": Gpu("H200", "nvidia-h200", 143_771, HOPPER_WORKSPACE),
    "b200": Gpu("B200", "nvidia-b200", 183_359, HOPPER_WORKSPACE),
    "l40s": Gpu("L40S", "nvidia-l40s", 46_068),
    "rtx3090": Gpu("RTX 3090", "nvidia-geforce-rtx-3090", 24_576),
    "rtx4090": Gpu("RTX 4090", "nvidia-geforce-rtx-4090", 24_564),
    "rtx5090": Gpu("RTX 5090", "nvidia-geforce-rtx-5090", 32_607),
}
# --8<-- [end:gpus]


@dataclass(frozen=True)
class Chip:
    """Number of streaming multiprocessors (SMs), boost clock in Hz, and operations per
    SM and clock cycle, from NVIDIA's architecture white papers (H100, A100).
    """

    sms: int
    clock: float
    bf16_flops_per_clock: int
    fp32_flops_per_clock: int
    exponentials_per_clock: int = 16


A100 = Chip(108, 1.41e9, 2048, 128)
# Chips by slug.
CHIPS = {
    "nvidia-h200": Chip(132, 1.98e9, 4096, 256),
    "nvidia-h100-80gb-hbm3": Chip(132, 1.98e9, 4096, 256),
    "nvidia-h100-pcie": Chip(114, 1.755e9, 4096, 256),
    "nvidia-a100-sxm4-40gb": A100,
    "nvidia-a100-sxm4-80gb": A100,
    "nvidia-a100-pcie-40gb": A100,
    "nvidia-a100-80gb-pcie": A100,
}

"""Which GPU this process will use, asked of the driver (NVML), so that nobody needs
torch to know.
"""

import os
import re
from dataclasses import dataclass, field


@dataclass
class Device:
    """A device as a record names it. Fields that only a GPU has are None elsewhere."""

    name: str
    slug: str
    capability: str | None = None
    memory_bytes: int | None = None
    driver: str | None = None
    power_limit_w: float | None = None
    sm_clocks_mhz: list[int] = field(default_factory=list)


# Parameters can be counted without any memory behind them, on PyTorch's "meta" device.
META = Device("meta device (no hardware needed)", "meta")
CPU = Device("CPU", "cpu")


def slug_of(name: str) -> str:
    """A name as a folder: "NVIDIA A100-SXM4-40GB" -> "nvidia-a100-sxm4-40gb"."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def find_gpu() -> Device | None:
    """The first GPU that CUDA_VISIBLE_DEVICES leaves visible, or None: no GPU, no
    driver, or no NVML.
    """
    handle = _nvml_handle()
    if handle is None:
        return None
    import pynvml

    name = pynvml.nvmlDeviceGetName(handle)
    try:
        power_limit_w = pynvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000
    except pynvml.NVMLError:
        power_limit_w = None
    return Device(
        name=name,
        slug=slug_of(name),
        capability="{}.{}".format(*pynvml.nvmlDeviceGetCudaComputeCapability(handle)),
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
        driver=pynvml.nvmlSystemGetDriverVersion(),
        power_limit_w=power_limit_w,
    )


def sm_clock_mhz() -> int | None:
    """The clock of the GPU's multiprocessors now, where the driver tells."""
    handle = _nvml_handle()
    if handle is None:
        return None
    import pynvml

    try:
        return pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
    except pynvml.NVMLError:
        return None


def _nvml_handle():
    try:
        import pynvml
    except ImportError:
        return None
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    try:
        pynvml.nvmlInit()
        if visible.isdigit():
            return pynvml.nvmlDeviceGetHandleByIndex(int(visible))
        return (
            pynvml.nvmlDeviceGetHandleByUUID(visible)
            if visible.startswith("GPU-")
            else None
        )
    except pynvml.NVMLError:
        return None

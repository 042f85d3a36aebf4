"""Query NVML, the driver's library, for this process's GPU, without importing torch."""

import os
import re
from typing import Annotated, Any

from msgspec import Meta, Struct

from systems.records.files import gpu_slug

# Characters of markup, macros, links and control sequences. Texts in a record must not
# contain them, because pages and terminals print these texts unescaped.
LIVE = r"<>\[\]{}\x00-\x1f\x7f-\x9f"
PlainText = Annotated[str, Meta(max_length=2000, pattern=rf"^[^{LIVE}]*\Z")]
Name = Annotated[PlainText, Meta(min_length=1)]
Megahertz = Annotated[int, Meta(ge=0, le=100_000)]


class Device(Struct, forbid_unknown_fields=True):
    """A record's device; unknown values are None. `sm_clocks_mhz`: [] or [min, max]."""

    name: Name
    slug: Annotated[str, Meta(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
    capability: Annotated[str, Meta(pattern=r"^\d+\.\d+$")] | None = None
    memory_bytes: Annotated[int, Meta(ge=0, le=2**60)] | None = None
    driver: Name | None = None
    power_limit_w: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    sm_clocks_mhz: list[Megahertz] = []

    @property
    def name_and_driver(self) -> str:
        return f"{self.name}, driver {self.driver}" if self.driver else self.name

    @property
    def is_gpu(self) -> bool:
        return self.slug not in (CPU.slug, META.slug)


# PyTorch's "meta" device, on which tensors have shapes but no data.
META = Device("meta device (no hardware needed)", "meta")
CPU = Device("CPU", "cpu")


def clean_name(name: str) -> str:
    """Return a GPU's name, with spaces for characters that records don't allow."""
    return re.sub(rf"[{LIVE}\ud800-\udfff]", " ", name)[:2000] or "a GPU without a name"


def visible_gpus() -> list[str]:
    """Return the GPUs in CUDA_VISIBLE_DEVICES, or if unset the indices of all GPUs."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(i) for i in range(query_nvml("nvmlDeviceGetCount") or 0)]
    return [name for part in visible.split(",") if (name := part.strip())]


def find_gpu(visible: str | None = None) -> Device | None:
    """Return the first GPU or MIG slice in `visible`, written as CUDA_VISIBLE_DEVICES,
    which is the default. Return None if there is no GPU, driver or NVML.
    """
    handle = first_gpu_handle(visible)
    name = query_nvml("nvmlDeviceGetName", handle)
    if name is None:
        return None
    name, driver = clean_name(name), query_nvml("nvmlSystemGetDriverVersion")
    capability = query_nvml("nvmlDeviceGetCudaComputeCapability", handle)
    memory = query_nvml("nvmlDeviceGetMemoryInfo", handle)
    power = query_nvml("nvmlDeviceGetEnforcedPowerLimit", handle)
    return Device(
        name=name,
        slug=gpu_slug(name),
        capability="{}.{}".format(*capability) if capability else None,
        memory_bytes=int(memory.total) if memory else None,
        driver=clean_name(driver) if driver else None,
        power_limit_w=power / 1000 if power is not None else None,
    )


def gpu_uuid(visible: str) -> str | None:
    """Return the UUID of the first GPU in `visible` (as in `find_gpu`), or None."""
    return query_nvml("nvmlDeviceGetUUID", first_gpu_handle(visible))


def newest_cuda() -> tuple[int, int] | None:
    """Return the newest CUDA version that the driver supports, as (12, 4), or None."""
    number = query_nvml("nvmlSystemGetCudaDriverVersion")
    return divmod(number // 10, 100) if number else None


def sm_clock_mhz() -> int | None:
    """Return the current SM clock in MHz, or None if unknown."""
    return query_nvml("nvmlDeviceGetClockInfo", first_gpu_handle(), SM_CLOCK)


def is_gpu_shared() -> bool:
    """Return whether other processes use the GPU. Call it before this process does."""
    handle = first_gpu_handle()
    memory = query_nvml("nvmlDeviceGetMemoryInfo", handle)
    # A container hides other processes, but not their memory.
    in_use = memory is not None and memory.used > 0.1 * memory.total
    return in_use or bool(query_nvml("nvmlDeviceGetComputeRunningProcesses", handle))


def others_memory_share(own_bytes: int) -> float:
    """Return the share of GPU memory in use besides `own_bytes`, or 0 without NVML."""
    memory = query_nvml("nvmlDeviceGetMemoryInfo", first_gpu_handle())
    return 0.0 if memory is None else (memory.used - own_bytes) / memory.total


# Device files that show that a driver is installed, on Linux and in WSL.
DRIVERS = ("/dev/nvidiactl", "/dev/dxg")


def why_no_gpu() -> str:
    """Return "needs a GPU and none was found", plus NVML's error if a driver exists."""
    message, (_, fault) = "needs a GPU and none was found", start_nvml()
    if fault and any(map(os.path.exists, DRIVERS)):
        return f"{message}: NVML does not start ({fault})"
    return message


def start_nvml() -> tuple[Any, str]:
    """Return (the module pynvml, ""), or (None, reason) if NVML does not start."""
    try:
        import pynvml
    except ImportError:
        return None, "nvidia-ml-py is not installed"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return None, str(error)
    return pynvml, ""


# Placeholder for the NVML handle of a missing GPU.
NO_HANDLE = object()
# NVML's constant for the clock of the SMs (NVML_CLOCK_SM).
SM_CLOCK = 1


def query_nvml(question: str, *arguments: Any) -> Any:
    """Return the result of the NVML function named `question`, or None if it fails."""
    library, _ = start_nvml()
    if library is None or NO_HANDLE in arguments:
        return None
    try:
        return getattr(library, question)(*arguments)
    except library.NVMLError:
        return None


def first_gpu_handle(visible: str | None = None) -> Any:
    """Return NVML's handle of the GPU that `find_gpu(visible)` finds, or NO_HANDLE."""
    if visible is None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    visible, handle = visible.split(",")[0].strip(), None
    if visible.isdecimal():
        handle = query_nvml("nvmlDeviceGetHandleByIndex", int(visible))
    elif visible.startswith(("GPU-", "MIG-")):
        handle = query_nvml("nvmlDeviceGetHandleByUUID", visible)
    return NO_HANDLE if handle is None else handle

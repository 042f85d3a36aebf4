"""Ask the driver (NVML) which GPU this process will use, without importing torch."""

import os
import re
from typing import Annotated, Any

from msgspec import Meta, Struct

from systems.records.files import slug_of

# Text of a record stands in pages and terminals, as it is: no markup, macros, links or
# control characters. A name that a driver gives has none of these afterwards.
LIVE = r"<>\[\]{}\x00-\x1f\x7f-\x9f"
Plain = Annotated[str, Meta(max_length=2000, pattern=rf"^[^{LIVE}]*\Z")]
Name = Annotated[Plain, Meta(min_length=1)]
Megahertz = Annotated[int, Meta(ge=0, le=100_000)]


class Device(Struct, forbid_unknown_fields=True):
    """A device as a record names it. Fields that only a GPU has are None elsewhere, and
    where its driver does not tell them.
    """

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


# Parameters can be counted without any memory behind them, on PyTorch's "meta" device.
META = Device("meta device (no hardware needed)", "meta")
CPU = Device("CPU", "cpu")


def plain(name: str) -> str:
    """The name of a GPU as a record can hold it, whatever its driver says."""
    return re.sub(rf"[{LIVE}\ud800-\udfff]", " ", name)[:2000] or "a GPU without a name"


def visible_gpus() -> list[str]:
    """Return the names of the GPUs that CUDA_VISIBLE_DEVICES leaves visible: numbers of
    all of them where it is not set.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(i) for i in range(asked("nvmlDeviceGetCount") or 0)]
    return [name for part in visible.split(",") if (name := part.strip())]


def find_gpu(visible: str | None = None) -> Device | None:
    """Return the first GPU (or part of one, by MIG) that CUDA_VISIBLE_DEVICES leaves
    visible, or would if it were `visible`. None: no GPU, no driver, or no NVML.
    """
    handle = handle_of(visible)
    name = asked("nvmlDeviceGetName", handle)
    if name is None:
        return None
    name, driver = plain(name), asked("nvmlSystemGetDriverVersion")
    capability = asked("nvmlDeviceGetCudaComputeCapability", handle)
    memory = asked("nvmlDeviceGetMemoryInfo", handle)
    power = asked("nvmlDeviceGetEnforcedPowerLimit", handle)
    return Device(
        name=name,
        slug=slug_of(name),
        capability="{}.{}".format(*capability) if capability else None,
        memory_bytes=int(memory.total) if memory else None,
        driver=plain(driver) if driver else None,
        power_limit_w=power / 1000 if power is not None else None,
    )


def uuid_of(visible: str) -> str | None:
    """Return the UUID of the GPU that CUDA_VISIBLE_DEVICES would name so."""
    return asked("nvmlDeviceGetUUID", handle_of(visible))


def newest_cuda() -> tuple[int, int] | None:
    """Return the newest CUDA that the driver supports, such as (12, 4); None if it
    does not say.
    """
    number = asked("nvmlSystemGetCudaDriverVersion")
    return divmod(number // 10, 100) if number else None


def sm_clock_mhz() -> int | None:
    """Return the clock of the GPU's multiprocessors now, where the driver tells."""
    return asked("nvmlDeviceGetClockInfo", handle_of(), SM_CLOCK)


# Where Linux, and Windows' own, have a driver of GPUs.
DRIVERS = ("/dev/nvidiactl", "/dev/dxg")


def no_gpu() -> str:
    """Say that no GPU was found; and that NVML does not start, where there is a driver:
    in some containers CUDA finds the GPU all the same.
    """
    found = "needs a GPU and none was found"
    if not any(map(os.path.exists, DRIVERS)):
        return found
    try:
        import pynvml
    except ImportError:
        return f"{found}: NVML does not start (nvidia-ml-py is not installed)"
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return f"{found}: NVML does not start ({error})"
    return found


def nvml() -> Any:
    """Return the NVML library, started; None where there is no driver or no library."""
    try:
        import pynvml
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml


# Stands for a GPU that is not there.
NO_HANDLE = object()
# As NVML numbers its clocks.
SM_CLOCK = 1


def asked(question: str, *arguments: Any) -> Any:
    """Return NVML's answer; None where there is none: boards with unified memory tell
    no memory, virtual GPUs no power limit, MIG devices no clock.
    """
    library = nvml()
    if library is None or NO_HANDLE in arguments:
        return None
    try:
        return getattr(library, question)(*arguments)
    except library.NVMLError:
        return None


def handle_of(visible: str | None = None) -> Any:
    """Return NVML's handle of the first GPU that is visible, or NO_HANDLE."""
    if visible is None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    visible, handle = visible.split(",")[0].strip(), None
    if visible.isdecimal():
        handle = asked("nvmlDeviceGetHandleByIndex", int(visible))
    elif visible.startswith(("GPU-", "MIG-")):
        handle = asked("nvmlDeviceGetHandleByUUID", visible)
    return NO_HANDLE if handle is None else handle

"""Which GPU this process will use, asked of the driver (NVML), so that nobody needs
torch to know.
"""

import os
import re
from collections.abc import Callable
from typing import Annotated, Any

from msgspec import Meta, Struct

from systems.records.files import slug_of

# Text of a record stands in pages: no markup, no lines.
Plain = Annotated[str, Meta(max_length=2000, pattern=r"^[^<>\n\r]*$")]
Name = Annotated[Plain, Meta(min_length=1)]
Megahertz = Annotated[int, Meta(ge=0, le=100_000)]


# In the name of a GPU whose memory was limited, to see what a smaller one would do.
SIMULATED = " limited to "


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
    def is_gpu(self) -> bool:
        return self.slug not in (CPU.slug, META.slug)

    @property
    def is_simulated(self) -> bool:
        return SIMULATED in self.name


# Parameters can be counted without any memory behind them, on PyTorch's "meta" device.
META = Device("meta device (no hardware needed)", "meta")
CPU = Device("CPU", "cpu")


def plain(name: str) -> str:
    """The name of a GPU as a record can hold it, whatever its driver says."""
    return re.sub(r"[<>\n\r\ud800-\udfff]", " ", name)[:2000] or "a GPU without a name"


def visible_gpus() -> list[str]:
    """Those that CUDA_VISIBLE_DEVICES leaves visible, as it names each: all, by number,
    where it is not set.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        if _nvml_handle() is None:
            return []
        import pynvml

        return [str(i) for i in range(told(pynvml.nvmlDeviceGetCount) or 0)]
    return [name for part in visible.split(",") if (name := part.strip())]


def find_gpu(visible: str | None = None) -> Device | None:
    """The first GPU (or part of one, by MIG) that CUDA_VISIBLE_DEVICES leaves visible,
    or would if it were `visible`. None: no GPU, no driver, or no NVML.
    """
    handle = _nvml_handle(visible)
    if handle is None:
        return None
    import pynvml

    name = told(pynvml.nvmlDeviceGetName, handle)
    if name is None:
        return None
    name, driver = plain(name), told(pynvml.nvmlSystemGetDriverVersion)
    capability = told(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    memory = told(pynvml.nvmlDeviceGetMemoryInfo, handle)
    power = told(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    return Device(
        name=name,
        slug=slug_of(name),
        capability="{}.{}".format(*capability) if capability else None,
        memory_bytes=int(memory.total) if memory else None,
        driver=plain(driver) if driver else None,
        power_limit_w=power / 1000 if power is not None else None,
    )


def uuid_of(visible: str) -> str | None:
    """What no other GPU has, of the one that CUDA_VISIBLE_DEVICES would name so."""
    handle = _nvml_handle(visible)
    if handle is None:
        return None
    import pynvml

    return told(pynvml.nvmlDeviceGetUUID, handle)


def used_by_others() -> tuple[int, int]:
    """How many processes compute on the GPU, and how many bytes of it are in use: all
    of others, before this process does. None that the driver does not tell.
    """
    handle = _nvml_handle()
    if handle is None:
        return 0, 0
    import pynvml

    # Without what the driver keeps for itself.
    version = getattr(pynvml, "nvmlMemory_v2", None)
    memory = told(pynvml.nvmlDeviceGetMemoryInfo, handle, version) if version else None
    processes = told(pynvml.nvmlDeviceGetComputeRunningProcesses, handle)
    return len(processes or ()), int(memory.used) if memory else 0


def newest_cuda() -> tuple[int, int] | None:
    """The newest CUDA that the driver runs, where it tells: (12, 4)."""
    if _nvml_handle() is None:
        return None
    import pynvml

    number = told(pynvml.nvmlSystemGetCudaDriverVersion)
    return divmod(number // 10, 100) if number else None


# Where Linux, and Windows' own, have a driver of GPUs.
DRIVERS = ("/dev/nvidiactl", "/dev/dxg")


def no_gpu() -> str:
    """That none was found; and that NVML does not start, where there is a driver: in
    some containers CUDA finds the GPU all the same.
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


def sm_clock_mhz() -> int | None:
    """The clock of the GPU's multiprocessors now, where the driver tells."""
    handle = _nvml_handle()
    if handle is None:
        return None
    import pynvml

    return told(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM)


def told(ask: Callable[..., Any], *arguments: Any) -> Any:
    """What the driver answers; None where it does not: boards with unified memory tell
    no memory, virtual GPUs no power limit, MIG devices no clock.
    """
    import pynvml

    try:
        return ask(*arguments)
    except pynvml.NVMLError:
        return None


def _nvml_handle(visible: str | None = None) -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    if visible is None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0")
    visible = visible.split(",")[0].strip()
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    if visible.isdecimal():
        return told(pynvml.nvmlDeviceGetHandleByIndex, int(visible))
    if visible.startswith(("GPU-", "MIG-")):
        whole = told(pynvml.nvmlDeviceGetHandleByUUID, visible)
        return whole if whole is not None else _beginning_with(visible)
    return None


def _beginning_with(uuid: str) -> Any:
    """The one GPU whose UUID begins so: CUDA takes a shortened one, NVML does not."""
    import pynvml

    count = told(pynvml.nvmlDeviceGetCount) or 0
    handles = [told(pynvml.nvmlDeviceGetHandleByIndex, i) for i in range(count)]
    found = [
        handle
        for handle in handles
        if handle is not None
        and (told(pynvml.nvmlDeviceGetUUID, handle) or "").startswith(uuid)
    ]
    return found[0] if len(found) == 1 else None

"""A GPU with less memory, simulated on one with more: what an owner of a smaller one
would see where memory runs out.

    SIMULATED_MEMORY_GIB=40 python tools/regen_tables.py --results /tmp/rehearsal

Only memory is simulated, no clock: times are those of the larger GPU. Such a record
says so in its GPU's name, and is never one of the guide's.
"""

import os
from pathlib import Path

from msgspec import structs

from systems import ROOT
from systems.records.device import SIMULATED, Device, slug_of

VARIABLE = "SIMULATED_MEMORY_GIB"


def simulated_gib() -> int | None:
    """How much memory is to be simulated. ValueError where that is no number."""
    text = os.environ.get(VARIABLE)
    if text is None:
        return None
    if not text.isdecimal() or int(text) == 0:
        raise ValueError(f"{VARIABLE} must be a number of GiB, got {text!r}")
    return int(text)


def as_simulated(gpu: Device) -> Device:
    """This GPU, or the smaller one that is simulated on it."""
    gib = simulated_gib()
    if gib is None:
        return gpu
    name = f"{gpu.name}{SIMULATED}{gib} GiB"
    return structs.replace(gpu, name=name, slug=slug_of(name), memory_bytes=gib * 2**30)


def limit_memory() -> None:
    """Let torch's allocator refuse what a smaller GPU has not, if one is simulated."""
    gib = simulated_gib()
    if gib is None:
        return
    import torch

    if torch.cuda.is_available():
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, gib * 2**30 / total))


def would_publish(device: Device, path: Path) -> bool:
    """Whether a record of a simulated GPU is, or would be, among the guide's own."""
    published = (ROOT / "docs" / "results").resolve()
    return device.is_simulated and path.resolve().parent.parent == published

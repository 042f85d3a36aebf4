"""Choose the GPUs that measure in parallel for `regen_tables.py --at-once N`, and the
order of the experiments.

The GPUs share the host's cores and memory, so launch-bound rows may take longer in
wall-clock time than on a machine of their own. GPU times are not affected.
"""

from collections.abc import Iterable
from contextlib import suppress

from systems import ROOT
from systems.records.device import find_gpu, gpu_uuid, visible_gpus, why_no_gpu
from systems.records.store import RecordError, read
from tools.render.load import list_record_files
from tools.rendering import fail


def first_gpus(count: int) -> list[str]:
    """Return the ids of the first `count` visible GPUs. Exit if there are fewer, or if
    they are unknown, named twice or of different models.
    """
    flag, gpus = f"--at-once {count}", visible_gpus()
    if not gpus:
        fail(f"{flag} {why_no_gpu()}: leave it out")
    if len(gpus) < count:
        fewer = f"give --at-once {len(gpus)}" if len(gpus) > 1 else "leave it out"
        fail(
            f"{flag}: visible GPUs: {len(gpus)}; {fewer}, or name more in "
            "CUDA_VISIBLE_DEVICES"
        )
    models = {gpu: find_gpu(gpu) for gpu in gpus[:count]}
    if unknown := [gpu for gpu, found in models.items() if found is None]:
        fail(f"{flag}: no GPU is {unknown[0]}, see `nvidia-smi -L`")
    if len(names := {found.name for found in models.values() if found}) > 1:
        fail(
            f"{flag}: the GPUs are of several kinds, {' and '.join(sorted(names))}: "
            "name some of one kind in CUDA_VISIBLE_DEVICES"
        )
    if len({gpu_uuid(gpu) for gpu in gpus[:count]}) < count:
        fail(f"{flag}: CUDA_VISIBLE_DEVICES names a GPU twice")
    return gpus[:count]


def sort_longest_first(stems: Iterable[str]) -> list[str]:
    """Sort experiments by the measuring time in the guide's records, longest first, so
    that all GPUs finish at about the same time. Those that lack a record are first.
    """
    seconds: dict[str, float] = {}
    for path in list_record_files(ROOT / "docs" / "results"):
        # Skip invalid records: rendering reports them.
        with suppress(RecordError):
            record = read(path)
            total = sum(row.seconds or 0 for row in record.rows)
            seconds[record.stem] = max(total, seconds.get(record.stem, 0.0))
    return sorted(stems, key=lambda stem: -seconds.get(stem, float("inf")))

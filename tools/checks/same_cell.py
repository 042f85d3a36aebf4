"""Compare the GPU times that different experiments measured for the same phase.

`regen_tables.py --check` fails if any phase differs by over 5 %, or more than one phase
in twenty by over 3 %. Small differences are normal: bf16 matmuls of the largest model,
for example, become slower in a long run. Only fresh records that were measured with the
same GPU and software are compared.
"""

from collections.abc import Iterator, Mapping

from systems.records.record import Record
from tools.render.clocks import CLOCK, PROFILE, gpu_times, group_by_software
from tools.render.load import is_fresh

STEMS = (CLOCK, "compile", "model_attention", "method", PROFILE, "nsys")
CLOSE, MOST = 1.03, 1.05
MOST_BEYOND = 1 / 20


def check_gpu_times(found: Mapping[str, list[Record]]) -> Iterator[str]:
    """Yield a finding for each phase whose GPU times differ by over 3 % (CLOSE), unless
    all differ by at most 5 % (MOST) and only few (MOST_BEYOND of all) by over 3 %.
    """
    fresh = (r for stem in STEMS for r in found.get(stem, []) if is_fresh(r))
    for records in group_by_software(fresh):
        pairs = {
            cell: (min(times), max(times))
            for cell, times in gpu_times(records).items()
            if len(times) > 1
        }
        beyond = {
            cell: pair
            for cell, pair in pairs.items()
            if pair[1][0] > CLOSE * pair[0][0]
        }
        far = any(high > MOST * low for (low, _), (high, _) in beyond.values())
        if len(beyond) <= MOST_BEYOND * len(pairs) and not far:
            continue
        for (cell, phase), ((low, shorter), (high, longer)) in beyond.items():
            yield (
                f"{records[0].device.slug}: GPU time of {phase} of "
                f"{' '.join(map(str, cell))} differs: {low:.3f} ms in {shorter}, "
                f"{high:.3f} ms in {longer}; measure {longer} again by "
                f"`regen_tables.py --only {longer} --force`"
            )

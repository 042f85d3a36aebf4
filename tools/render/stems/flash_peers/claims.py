"""Claims of `flash_peers`, and the targets relative to FlashAttention-4 that were set
before the Hopper kernels were compared with it.
"""

from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.rows import counted, known, say, span
from tools.render.stems.flash_peers.rows import shapes

SET = "set before the kernels were compared."
KEYS = ("batch", "heads", "n", "d", "causal")
# By shape: the most that forward + backward may take relative to FlashAttention-4,
# deterministic and by default. At 512 tokens cuDNN replaces the deterministic one.
TARGETS = {
    (1, 16, 16384, 64, True): (0.96, 1.00),
    (1, 16, 16384, 128, True): (0.95, 1.00),
    (4, 16, 4096, 128, True): (0.97, 1.02),
    (4, 16, 4096, 128, False): (0.97, 1.00),
    (4, 32, 4096, 64, True): (0.98, 1.00),
    (4, 32, 4096, 64, False): (0.97, 1.00),
    (16, 32, 1024, 64, True): (0.95, 0.97),
    (1, 1, 65536, 64, True): (0.98, 1.05),
    (2, 32, 8192, 128, True): (0.97, 1.02),
    (2, 16, 8192, 96, True): (1.00, 1.10),
    (8, 16, 2048, 128, False): (0.97, 1.02),
    (8, 16, 512, 64, True): (1.00, 1.00),
}
MET_DETERMINISTIC, MET_DEFAULT = 10, 8


def targets_met(record: Record, name: str, place: int, wanted: int) -> Judgement:
    """Whether so many shapes are within their targets, if all were measured."""
    found = shapes(record)
    met = []
    for shape, targets in TARGETS.items():
        x = found.one(**dict(zip(KEYS, shape, strict=True)), group=1)
        over = "sdpa_cudnn" if x.get("n") == 512 and place == 0 else name
        if not known([value := x[f"both / {over}"]]):
            return None
        met.append((value / targets[place], x["shape"], value, targets[place]))
    worst, shape, value, target = max(met)
    far = f" Furthest off: {shape} ({value:.3f}, target {target:.2f})."
    kept = [each[0] <= 1 for each in met]
    return sum(kept) >= wanted, f"Within: {counted(kept)}.{far if worst > 1 else ''}"


@claim(
    "flash_benchmarking",
    "Forward + backward, the time of the Hopper kernel relative to deterministic "
    f"FlashAttention-4 is within the target of the shape at {MET_DETERMINISTIC} or "
    f"more of {len(TARGETS)} shapes. (At 512 tokens it is relative to cuDNN.)",
    because=SET,
)
def ahead_where_results_repeat(record: Record) -> Judgement:
    return targets_met(record, "fa4_ordered", 0, MET_DETERMINISTIC)


@claim(
    "flash_benchmarking",
    "Relative to FlashAttention-4's default, which is not deterministic, it is within "
    f"the target at {MET_DEFAULT} or more of {len(TARGETS)} shapes.",
    because=SET,
)
def near_the_unordered(record: Record) -> Judgement:
    return targets_met(record, "fa4", 1, MET_DEFAULT)


@claim(
    "flash_benchmarking",
    "Forward + backward, the Hopper kernel is faster than cuDNN at every shape in bf16 "
    "that is not launch-bound.",
)
def cudnn_is_beaten(record: Record) -> Judgement:
    found = known(shapes(record).column("both / sdpa_cudnn"))
    told = f"Relative time: {span(found)}, {say(len(found))} shapes."
    return found and (max(found) < 1, told)

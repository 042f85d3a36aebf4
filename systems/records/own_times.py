"""How much of each time of a row is shown to be the GPU's own: what no faster host
could have made shorter. A time is the GPU's own where all but a tenth of it is.

A clock on the host sees the longer of two: the GPU's kernels, and launching them. Three
things show which of them it was. The kernels themselves, where a profiler or a CUDA
graph timed them. The longest that launching can take, where the pass took clearly
longer. And, for CUDA events, which see the host only where the GPU has run out of work,
whether the samples agree.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from statistics import median
from typing import Any

from systems.records.summary import Summary, summarize

CLOSE = 1.1
# Steps of a model last long enough for a host to change between them. Probes alone
# missed more than half of the rows that a slow host made longer by over a tenth, as the
# record of end_to_end in commit 64caaae shows beside the one before it.
APART = 1.05
# Clearly longer than launching: twice, as probes see the host at two moments only.
# Where samples agree within a fiftieth, the host did not change meanwhile.
LONGER, STEADY = 2.0, 1.02
# Of events. What timers and clocks of the GPU leave is no spread, nor are two µs.
TICKS_MS = 2e-3
EVENTS = "triton.testing.do_bench"
# The parts of a training step, in order.
PHASES = ("forward", "loss", "backward", "optimizer")
# "torch_profiled_forward": who was looking, and the phase.
PHASE = re.compile(rf"(?P<who>.*?)(?P<phase>{'|'.join(PHASES)})(?P<span>_gpu_span)?")
# Times of kernels, or of what a full queue or one launch runs; and a bound that is only
# said to be one.
OF_THE_GPU = re.compile(r"graph_.*|.*_gpu_busy|.*_kernels|matmul_ops|thousand_marks")
# Of attention: forward and backward in a row.
BOTH, PARTS_OF_BOTH = "both", ("forward", "backward")
# Medians of samples that are looked at themselves.
OF_SAMPLES = re.compile(r".*_rounds")
# What only a host does: to compile, to start, to call.
COMPILING = re.compile(r"(warmup|again)_.*")
OF_THE_HOST = re.compile(rf"{COMPILING.pattern}|setup|call")

# Of each phase, or of each time by its name without "_ms", in ms.
Times = Mapping[str, float]


def times_of(metrics: Mapping[str, Any]) -> dict[str, list[float]]:
    """The samples of each time that a host can have lengthened, by its name."""
    return {
        name.removesuffix("_ms"): samples
        for name, samples in metrics.items()
        if name.endswith("_ms")
        and isinstance(samples, list)
        and not OF_THE_GPU.fullmatch(name.removesuffix("_ms"))
        and not OF_SAMPLES.fullmatch(name.removesuffix("_ms"))
    }


def settled(config: Mapping[str, Any]) -> bool:
    """Whether a configuration's times are of a model's passes that had a warm-up: the
    first two passes differ on any host.
    """
    return "size" in config and config.get("warmup", 2) >= 2


def by_events(protocol: Mapping[str, str]) -> bool:
    """Whether kernels were timed by events, with more work in the queue."""
    return protocol.get("clock", "").startswith(EVENTS)


def launched_in_a_loop(config: Mapping[str, Any]) -> bool:
    """Whether Python launches the kernels of each tile by itself."""
    return config.get("implementation") == "tiles"


# --8<-- [start:rule]
def own_times(
    metrics: Mapping[str, Any],
    events: bool,
    kernels: Times,
    launching: Times,
    looped: bool = False,
) -> dict[str, float]:
    """How much of the median of each time, in ms, is shown to be the GPU's own. Known
    by phase: what the kernels take, if the row itself doesn't say it; and where nobody
    does, the longest that launching them can take on this host. `looped`: a loop on the
    host launches the kernels, for longer than any head start.
    """
    own = {}
    for name, samples in times_of(metrics).items():
        took, found = summarize(samples), PHASE.fullmatch(name)
        if OF_THE_HOST.fullmatch(name):
            own[name] = 0.0
        elif events:
            own[name] = 0.0 if looped or jitters(took) else took.median
        elif not found:
            own[name] = 0.0
        else:
            phase, who = found["phase"], found["who"]
            busy = metrics.get(f"{who.removesuffix('profiled_')}{phase}_gpu_busy_ms")
            shown = median(busy) if busy else kernels.get(phase)
            if shown is None:
                # A profiler makes launching longer.
                watched = who.endswith("profiled_") or found["span"]
                most = None if watched else launching.get(phase)
                shown = took.median if most and outlasts(took, most) else 0.0
            own[name] = min(shown, took.median)
    if events and waits_between(metrics):
        own[BOTH] = 0.0
    return own


def waits_between(metrics: Mapping[str, Any]) -> bool:
    """Whether both passes in a row took clearly longer than one and then the other: the
    GPU had run out of work, even if that took it equally long each time.
    """
    took = {name: metrics.get(f"{name}_ms") for name in (BOTH, *PARTS_OF_BOTH)}
    if not all(took.values()):
        return False
    both, *alone = (median(samples) for samples in took.values() if samples)
    return both > CLOSE * sum(alone)


def outlasts(took: Summary, launching: float) -> bool:
    """Whether a phase took clearly longer than launching can."""
    steady = took.p80 <= STEADY * took.p20
    return took.median > (CLOSE if steady else LONGER) * launching


def jitters(took: Summary) -> bool:
    """Whether the GPU ran out of work. To empty the L2 cache before each call gives the
    host a head start. What issuing takes beyond that shows: it is seldom alike twice.
    """
    return took.p80 > CLOSE * took.p20 and took.p80 - took.p20 > TICKS_MS


def touched(metrics: Mapping[str, Any], own: Times, names: Collection[str]) -> bool:
    """Whether more than a tenth of these times together is not shown to be the GPU's
    own, so that a slow host may have added it.
    """
    medians = {name: median(metrics[f"{name}_ms"]) for name in names if name in own}
    return sum(medians.values()) > CLOSE * sum(own[name] for name in medians)


def outdone(
    metrics: Mapping[str, Any], shortest: Times, names: Collection[str]
) -> bool:
    """Whether these times together are over a tenth longer than they were where the
    same took least: what a host adds it never takes away.
    """
    if not shortest.keys() & set(names):
        return False
    medians = {name: median(metrics[f"{name}_ms"]) for name in names}
    least = sum(min(ms, shortest.get(name, ms)) for name, ms in medians.items())
    return sum(medians.values()) > CLOSE * least


def apart(metrics: Mapping[str, Any], names: Collection[str]) -> bool:
    """Whether these times of a model's phases, added up step by step, are far from one
    another, as where the host was now fast and now slow.
    """
    phases = [metrics[f"{name}_ms"] for name in names if name in PHASES]
    if not phases or len({len(samples) for samples in phases}) > 1:
        return False
    took = summarize([sum(step) for step in zip(*phases, strict=True)])
    return took.p80 > APART * took.p20


def unsteady(
    metrics: Mapping[str, Any], own: Times, events: bool, slow: bool, settled: bool
) -> bool:
    """Whether times of a row may be longer for its host, which probes called slow, or
    settled steps of the model, if these are some.
    """
    return any(
        touched(metrics, own, names) and (slow or settled and apart(metrics, names))
        for names in sums_of(own, events)
    )


# --8<-- [end:rule]


def sums_of(own: Times, events: bool) -> Iterator[list[str]]:
    """Names of times that are looked at together: the phases of a step; of events each
    time by itself. What compiling took is no time of the row's passes.
    """
    together = defaultdict(list)
    for name in own:
        found = None if events else PHASE.fullmatch(name)
        key = (found["who"], found["span"]) if found else name
        if not COMPILING.fullmatch(name):
            together[key].append(name)
    yield from together.values()

"""How slow the host of each row was, and which of the row's times that may have made
longer: those that are not shown to be the GPU's own. Such a row is unsteady, and so is
a number that is made from such times.

What shows it stands in `systems.records.own_times`. Here other records say more: the
kernels of the same cell, and the longest that launching them can take.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from statistics import median
from typing import Any, NamedTuple

from systems.formulas.recomputation import forward_passes
from systems.model.sizes import SIZES, VOCAB_SIZE
from systems.records.host import SLOW, quietest, slowdown, usual
from systems.records.own_times import (
    PHASES,
    Times,
    by_events,
    launched_in_a_loop,
    outdone,
    own_times,
    settled,
    times_of,
    touched,
    unsteady,
)
from systems.records.record import Record, Row

# The records that time a pass of the model, and what their configurations leave unsaid.
CELLS: dict[str, dict[str, Any]] = {
    "end_to_end": {},
    "warmup": {"mode": "step", "precision": "fp32", "attention": "eager"},
    "kernel_profile": {"attention": "eager"},
    "compile": {"mode": "step", "attention": "eager"},
    "model_attention": {"mode": "step", "precision": "bf16"},
    "nsys": {"mode": "step", "attention": "eager"},
    "gradient_checkpointing": {"mode": "forward_backward"},
    "peak_memory": {},
}
AXES = ("size", "context", "batch", "precision", "mode", "attention")
UNSAID = {"batch": 4, "vocab": VOCAB_SIZE, "execution": "eager", "strategy": "none"}
# To issue one kernel takes a quiet host 11 µs where `small` waits for nothing else, and
# torch.compile's 15 µs.
ISSUED_MS = 0.02
# To call what it compiled, whatever that launches: passes of attention at 256 and 1,024
# tokens, of 3 to 8 kernels, take a quiet host 0.3 to 0.6 ms.
COMPILED_MS = 0.5
# Those that watch a pass by a profiler, and the one that times it.
PROFILED, CLOCK = ("kernel_profile", "nsys"), "end_to_end"
# Records that time steps of the model in the same way, and the phases that say
# something: a loss takes less than a launch does.
ALIKE = (CLOCK, "warmup", "kernel_profile", "compile", "model_attention")
TIMED = ("forward", "backward", "optimizer")
# A compiled model is another one, and so is a process that warmed up less.
USUAL = {"execution": "eager", "warmup": 5}
# What times the same only where it is the same.
SAME_SOFTWARE = ("torch", "cuda", "cudnn")


def judge_hosts(
    records: list[Record], is_fresh: Callable[[Record], bool] = lambda record: True
) -> None:
    """Note at each row how slow its host was, and which of its times may be longer for
    that. What code took that is not `is_fresh` says nothing of other records.
    """
    compare_hosts(records)
    for alike in grouped(records, SAME_SOFTWARE):
        known, fresh = Known(alike), [*filter(is_fresh, alike)]
        of_fresh = shortest_of(fresh)
        for record in alike:
            events, shortest = by_events(record.protocol), of_fresh
            if not is_fresh(record):
                own = shortest_of([record])
                shortest = {k: min(ms, of_fresh.get(k, ms)) for k, ms in own.items()}
            for row in record.rows:
                looped = launched_in_a_loop(row.config)
                row.own = own_times(row.metrics, events, *known.of(record, row), looped)
                row.shortest = {
                    phase: shortest[cell, phase]
                    for cell, phase in passes_of(record, row)
                    if outdone(row.metrics, {phase: shortest[cell, phase]}, [phase])
                    and touched(row.metrics, row.own, [phase])
                }
                # One of the optimizer alone, which is short, is marked by itself.
                passes = row.shortest.keys() & {"forward", "backward"}
                row.unsteady = bool(passes) or unsteady(
                    row.metrics, row.own, events, row.slow, settled(row.config)
                )


def unsteady_rows(record: Record) -> str:
    """ "2 of 21 rows, on a host that took up to 1.9 times as long", or nothing."""
    slow = [row.slowdown for row in record.rows if row.in_doubt]
    if not slow:
        return ""
    # Probes may have seen nothing of a host that was now fast and now slow.
    worst = max(slow)
    slower = f"took up to {worst:.1f} times as long as usual"
    host = slower if worst > SLOW else "changed its speed"
    return f"{len(slow)} of {len(record.rows)} rows, on a host that {host}"


def grouped(records: Iterable[Record], software: tuple[str, ...]) -> list[list[Record]]:
    """Those measured on the same GPU, with the same driver and these packages."""
    alike: dict[Any, list[Record]] = defaultdict(list)
    for record in records:
        if record.kind == "measured":
            versions = (record.software.get(name) for name in software)
            alike[record.device.slug, record.device.driver, *versions].append(record)
    return list(alike.values())


def compare_hosts(records: list[Record]) -> None:
    """Note at each row how slow its host was. Quiet is the host of that record of the
    same kind of GPU and the same software whose probes usually took least.
    """
    # What runs the probes: Python the loop, torch and the driver the launches.
    for alike in grouped(records, ("python", "torch")):
        usuals = (usual(p for row in r.rows for p in row.host) for r in alike)
        quiet = quietest(usuals)
        for row in (row for record in alike for row in record.rows):
            row.slowdown = slowdown(row.host, quiet)


# What other records show --------------------------------------------------------------


class Cell(NamedTuple):
    """What decides which kernels a pass launches; and what only makes them longer."""

    size: str
    precision: str
    # Without gradients nothing is kept, and other kernels run.
    graph: bool
    context: int
    batch: int
    vocab: int


# --8<-- [start:known]
class Known:
    """Kernels and launches of the cells that these records measured."""

    def __init__(self, records: list[Record]):
        # By cell and phase, in ms.
        self.kernels: dict[Any, float] = {}
        self.launching: dict[Any, float] = {}
        for record in records:
            for row in record.rows:
                self.take(record, row)

    def take(self, record: Record, row: Row) -> None:
        config, times = full(record, row), times_of(row.metrics)
        cell, plain = cell_of(config), is_plain(config)
        # A graph of all kernels is launched at once.
        ways = ("{}_gpu_busy_ms", "graph_{}_ms", "torch_{}_gpu_busy_ms")
        ways += ("{}_ms",) if config["execution"] == "graph" else ()
        for phase, way in product(PHASES, ways):
            shown = row.metrics.get(way.format(phase))
            if cell and plain and isinstance(shown, list):
                key = kernels_key(cell, phase)
                self.kernels[key] = max(median(shown), self.kernels.get(key, 0.0))
        for name, samples in times.items():
            # How slow the host was then is known: on a quiet one it takes less.
            quiet = median(samples) / max(1.0, row.slowdown)
            keys = [at_any_length(record, row, name)]
            if cell and record.stem == CLOCK and plain:
                keys.append((cell.size, cell.precision, cell.graph, name))
            for key in keys:
                self.launching[key] = min(quiet, self.launching.get(key, quiet))

    def of(self, record: Record, row: Row) -> tuple[Times, Times]:
        """What a row's kernels take by phase, and the longest that launching them can
        on its host.
        """
        config = full(record, row)
        cell, plain = cell_of(config), is_plain(config)
        kernels: dict[str, float] = {}
        launching: dict[str, float] = {}
        # Where nobody looked, it may have been as slow as one that is not called slow.
        times_slower = max(1.0, row.slowdown) if row.host else SLOW
        for phase in PHASES:
            found = [self.launching.get(at_any_length(record, row, phase))]
            if (count := row.metrics.get(f"{phase}_kernels")) is not None:
                call = COMPILED_MS if config["execution"] == "compiled" else 0
                found.append(count * ISSUED_MS + call)
            if cell:
                key = kernels_key(cell, phase)
                # AdamW's are the same whatever the model does.
                same = plain or phase == "optimizer" and not compiles_adamw(config)
                if key in self.kernels and same:
                    kernels[phase] = self.kernels[key]
                found.append(self.eager(cell, phase, config))
            if known := [ms for ms in found if ms is not None]:
                launching[phase] = min(known) * times_slower
        return kernels, launching

    def eager(self, cell: Cell, phase: str, config: Mapping[str, Any]) -> float | None:
        """The shortest time of this phase in `end_to_end`: launches grow neither with
        the context nor with the batch, and no other way to run has more. Forward passes
        that are computed again belong to the backward pass.
        """
        at = (cell.size, cell.precision, cell.graph)
        most = self.launching.get((*at, phase))
        forward = self.launching.get((*at, "forward"))
        if most is None or forward is None or phase != "backward":
            return most
        layers = SIZES[cell.size].num_layers
        again = 1 if config.get("checkpoint") else 0
        again = again or forward_passes(config["strategy"], layers) - 1
        return most + again * forward


# --8<-- [end:known]


def full(record: Record, row: Row) -> dict[str, Any]:
    return UNSAID | CELLS.get(record.stem, {}) | row.config


def cell_of(config: Mapping[str, Any]) -> Cell | None:
    """The cell of a pass of the model, if it is one."""
    named = {"context", "precision", "mode"} <= config.keys()
    if not named or config.get("size") not in SIZES:
        return None
    graph = config["mode"] != "forward"
    shape = (config[name] for name in ("context", "batch", "vocab"))
    return Cell(config["size"], config["precision"], graph, *shape)


def is_plain(config: Mapping[str, Any]) -> bool:
    """Whether all of a pass runs kernel by kernel, as written, with eager attention."""
    return (
        config.get("attention") == "eager"
        and config["execution"] in ("eager", "graph")
        and config["strategy"] == "none"
        and not config.get("checkpoint")
    )


def compiles_adamw(config: Mapping[str, Any]) -> bool:
    return bool(config.get("optimizer")) or config["execution"].endswith("optimizer")


def kernels_key(cell: Cell, phase: str) -> Any:
    """AdamW's kernels know weights alone."""
    of_all = cell._replace(context=0, batch=0, graph=True)
    return (of_all if phase == "optimizer" else cell, phase)


def at_any_length(record: Record, row: Row, name: str) -> Any:
    """A row and those that differ from it in their length alone: as many launches."""
    rest = {k: v for k, v in row.config.items() if k not in ("context", "n")}
    return record.stem, tuple(sorted(rest.items())), name


# What the same passes took elsewhere --------------------------------------------------


# --8<-- [start:same]
def shortest_of(records: list[Record]) -> dict[Any, float]:
    """By cell and phase the shortest median of these records, in ms: several time the
    same passes, and `end_to_end` does in two rows, with the optimizer and without.
    """
    shortest: dict[Any, float] = {}
    for record in records:
        for row in record.rows:
            for key in passes_of(record, row):
                ms = median(row.metrics[f"{key[1]}_ms"])
                shortest[key] = min(ms, shortest.get(key, ms))
    return shortest


def is_usual(config: Mapping[str, Any]) -> bool:
    return all(config.get(key, value) == value for key, value in USUAL.items())


def passes_of(record: Record, row: Row) -> list[tuple[Cell, str]]:
    """Cell and phase of what this row may have timed as another did: eager passes after
    five of warm-up.
    """
    if record.stem not in ALIKE:
        return []
    config = full(record, row)
    cell = cell_of(config) if is_usual(config) and is_plain(config) else None
    phases = [phase for phase in TIMED if f"{phase}_ms" in row.metrics]
    return [(cell, phase) for phase in phases] if cell else []


# --8<-- [end:same]


# Clocks and profiles ------------------------------------------------------------------


def note_clocks(found: Mapping[str, list[Record]]) -> None:
    """Note at each profiled row the row of `end_to_end` that timed the same cell, on
    the same GPU with the same driver and software. A profile has its own host, which
    may launch slowly while it is made.
    """
    records = [r for stem in (*PROFILED, CLOCK) for r in found.get(stem, [])]
    for alike in grouped(records, SAME_SOFTWARE):
        clock = next((r for r in alike if r.stem == CLOCK), None)
        for profile in (r for r in alike if r.stem in PROFILED):
            profile.clock = clock
            for row in profile.rows:
                config = full(profile, row)
                of = {axis: config.get(axis) for axis in AXES}
                row.clock = clock.find(**of) if clock else None

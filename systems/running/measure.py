"""Measure one stem on this machine, row by row, into its record.
`tools/regen_tables.py` runs this in a child process.

The work in progress is `<stem>.partial.json`, whole after every row; a complete one
takes the record's name. Progress goes to standard output, one JSON object a line. Exit
codes: 0 complete or out of time, 1 rows failed, 2 can't start.
"""

import errno
import fcntl
import gc
import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import typer

from systems import ROOT
from systems.experiments import STEMS, Stem
from systems.records import store
from systems.records.device import (
    CPU,
    META,
    SIMULATED,
    Device,
    find_gpu,
    sm_clock_mhz,
)
from systems.records.files import open_plain
from systems.records.host import SLOW, Probe, probe, slowdown, usual
from systems.records.neighbours import NOTE, measuring
from systems.records.outcome import turns_of
from systems.records.record import Git, Record, Row
from systems.records.source_hash import source_hash
from systems.records.store import PARTIAL_SUFFIX, SUFFIX, RecordError
from systems.records.summary import summarize
from systems.running.command import is_table, options_of
from systems.running.limited import as_simulated, limit_memory, would_publish
from systems.running.precompile import rehearse
from systems.running.software import COMMIT, TUNED, named_commit, tuned_software

# How often rows are measured again whose host was slow; and what that may take, in
# seconds or as a share of what all rows took: some hosts are never quiet.
TIMES_AGAIN, SECONDS_AGAIN, SHARE_AGAIN = 2, 60, 0.5


class CannotStart(Exception):
    """Why this stem can't be measured now, and what to do about it."""


def device_for(allowed: tuple[str, ...]) -> Device | None:
    """The best of the allowed kinds of device that this machine has, or None."""
    if "meta" in allowed:
        return META
    gpu = find_gpu()
    if gpu is not None and "cuda" in allowed:
        return as_simulated(gpu)
    return CPU if "cpu" in allowed else None


def record_path(results: Path, device: Device, stem: str, grid: str) -> Path:
    """Where this stem's record for this device lives; reduced runs are kept apart."""
    return (
        (results / "quick" if grid == "quick" else results)
        / device.slug
        / f"{stem}{SUFFIX}"
    )


def partial_path(path: Path) -> Path:
    """The work in progress beside a record."""
    return path.with_name(path.name.removesuffix(SUFFIX) + PARTIAL_SUFFIX)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the one right to write this record. The kernel releases it however the
    process ends.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.with_name(f".{path.name}.lock")
    with open_plain(lock, os.O_RDWR | os.O_CREAT) as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CannotStart(
                f"{path} is being measured by another run: wait for it, or stop it"
            ) from None
        yield


def versions() -> dict[str, str]:
    """Versions of what the measured time depends on."""
    found = {"python": platform.python_version()}
    for name in ("torch", "triton", "flash-attn-4"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            pass
    if "torch" in sys.modules:
        import torch

        found["torch"] = str(torch.__version__)
        if torch.version.cuda:
            found |= {
                "cuda": torch.version.cuda,
                "cudnn": str(torch.backends.cudnn.version()),
            }
    return found


def git_state() -> Git | None:
    """The commit that GIT_COMMIT names; else that of the tree, and whether what
    measures differed from it; None outside a repository.
    """
    try:
        # Whoever names it knows more than a repository that the tree was copied into.
        if commit := named_commit():
            return Git(commit, dirty=False)
    except ValueError as error:
        raise CannotStart(str(error)) from None

    def git(*arguments: str) -> str:
        return subprocess.run(
            ("git", "-C", ROOT, *arguments), capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return Git(
            git("rev-parse", "HEAD"),
            dirty=bool(git("status", "--porcelain", "--", "systems")),
        )
    except (OSError, subprocess.CalledProcessError) as error:
        lines = (getattr(error, "stderr", None) or str(error)).strip().splitlines()
        print(f"no commit is noted ({lines[0]}); set {COMMIT}", file=sys.stderr)
        return None


def hash_of(stem: Stem, configs: list[Any]) -> str:
    """The hash of the source that these configurations run."""
    return source_hash(stem.module, attention_of(configs))


def attention_of(configs: list[Any]) -> list[str]:
    """The implementations of attention that they name."""
    return sorted({c.attention for c in configs if hasattr(c, "attention")})


def new_record(
    stem_name: str,
    device: Device,
    grid: str,
    configs: list[Any],
    protocol: dict[str, Any],
) -> Record:
    """An empty record of what is about to be measured."""
    software, stem = versions(), STEMS[stem_name]
    software |= tuned_software(
        stem.module, attention_of(configs), device.slug, software.get("triton", "")
    )
    return Record(
        stem=stem_name,
        kind="measured",
        device=device,
        rows=[],
        expected_rows=len(configs),
        grid=grid,  # pyright: ignore[reportArgumentType]
        protocol=protocol,
        software=software,
        started_utc=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        command=f"python tools/regen_tables.py --only {stem_name}"
        + (" --quick" if grid == "quick" else ""),
        git=git_state(),
        source_hash=hash_of(stem, configs),
    )


def may_continue(old: Record, new: Record, configs: list[Any]) -> str | None:
    """Why rows of `old` may not stand beside new ones; None if they may: same code,
    versions, device and grid.
    """
    same = ("stem", "kind", "grid", "software", "source_hash", "expected_rows")
    if old.device.name != new.device.name or any(
        getattr(old, name) != getattr(new, name) for name in same
    ):
        return "was measured with other code, versions or device"
    grid = [asdict(config) for config in configs]
    if odd := [row.config for row in old.rows if row.config not in grid]:
        return f"has a row that is not in the grid, {odd[0]}"
    return "was edited by hand" if old.edited else None


def resume(partial: Path, fresh: Record, configs: list[Any]) -> Record:
    """The work in progress if it may go on (failed rows are tried again), otherwise
    `fresh`.
    """
    try:
        old = store.read(partial)
    except FileNotFoundError:
        return fresh
    except RecordError as error:
        print(f"starting over: {error}", file=sys.stderr)
        return fresh
    if reason := may_continue(old, fresh, configs):
        print(f"starting over: {partial} {reason}", file=sys.stderr)
        return fresh
    old.rows = [row for row in old.rows if row.status != "failed"]
    return old


def groups_of(module: Any, configs: list[Any]) -> list[list[Any]]:
    """Configurations that are measured together: those that differ in the field
    IN_TURNS of their experiment alone; in others each by itself.
    """
    varied, groups = getattr(module, "IN_TURNS", None), {}
    for config in configs:
        same = {k: v for k, v in asdict(config).items() if k != varied}
        key = config if varied is None else tuple(same.items())
        groups.setdefault(key, []).append(config)
    return list(groups.values())


def measure_group(module: Any, configs: list[Any]) -> list[Row]:
    """Their rows, measured in turns. What goes wrong is a failed row that names the
    cause, tried again by the next run; it takes nothing from the others.
    """
    fresh = getattr(module, "FRESH_PROCESS", False)
    start = (
        partial(in_a_process, module) if fresh else partial(turns_of, run=module.run)
    )
    going = {config: start(config) for config in configs}
    rows: dict[Any, Row] = {}
    while going:
        for config, turns in list(going.items()):
            if (row := next_turn(config, turns)) is not None:
                rows[config] = row
                del going[config]
    return [rows[config] for config in configs]


def next_turn(config: Any, turns: Iterator[Row | None]) -> Row | None:
    """The row, where this was its last turn."""
    try:
        return next(turns)
    except Exception as error:
        traceback.print_exc()
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        return Row(asdict(config), "failed", reason=reason)


def in_a_process(module: Any, config: Any) -> Iterator[Row]:
    """The row of a process of its own."""
    command = [sys.executable, "-m", module.__name__, *options_of(config), "--json"]
    child = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if child.returncode:
        last = (child.stderr.strip().splitlines() or ["no message"])[-1]
        reason = f"exit code {child.returncode}: {last}"
        yield Row(asdict(config), "failed", reason=reason)
    else:
        yield msgspec.json.decode(child.stdout.splitlines()[-1], type=Row)


def gpu_is_broken(row: Row) -> bool:
    """Whether a failure leaves CUDA unusable in this process, so that later rows could
    not be trusted.
    """
    return row.status == "failed" and "CUDA error" in (row.reason or "")


def report(**event: Any) -> None:
    """Tell the parent. Without one (it was killed) stop: every row measured so far is
    on disk.
    """
    try:
        print(json.dumps(event), flush=True)
    except BrokenPipeError:
        os._exit(1)


def look_at_host(device: Device, module: Any) -> list[Probe]:
    """The host now, as rows keep it; where nothing is timed, nothing."""
    if device == META:
        return []
    # Where rows have processes of their own, this one holds nothing on the GPU.
    in_process = not getattr(module, "FRESH_PROCESS", False)
    return [probe(launches=device.is_gpu and in_process)]


def slow_groups(record: Record, groups: list[list[Any]]) -> Iterator[list[Any]]:
    """Those measured while the host was slower than it usually was, a few times, while
    there is time for it. Of each group the rows of the quietest host stay.
    """

    def seconds() -> float:
        return sum(row.seconds or 0 for row in record.rows)

    most = seconds() + max(SECONDS_AGAIN, SHARE_AGAIN * seconds())
    for _ in range(TIMES_AGAIN if record.device.is_gpu else 0):
        quiet = usual(probe for row in record.rows for probe in row.host)
        for group in groups:
            rows = [record.row(asdict(config)) for config in group]
            slow = any(row and slowdown(row.host, quiet) > SLOW for row in rows)
            if slow and seconds() < most:
                report(event="again")
                yield group


def put(record: Record, rows: list[Row]) -> None:
    """Add the rows of a group; or put them in the place of those there, where they
    ended as those did and the host was quieter. What both took counts.
    """
    there = [old for row in rows if (old := record.row(row.config))]
    if not there:
        record.rows += rows
        return
    quiet = usual(probe for row in record.rows for probe in row.host)
    worst, before = (
        max(slowdown(row.host, quiet) for row in each) for each in (rows, there)
    )
    ended_alike = all(
        row.status == old.status for row, old in zip(rows, there, strict=True)
    )
    kept, others = (rows, there) if ended_alike and worst < before else (there, rows)
    for row, other in zip(kept, others, strict=True):
        row.seconds = round((row.seconds or 0) + (other.seconds or 0), 3)
    record.rows = [row for row in record.rows if row not in there] + kept


def free_memory() -> None:
    """Give back what the last configuration left, so that each starts alike."""
    gc.collect()
    if "torch" in sys.modules:
        import torch

        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()


def measure_stem(name: str, results: Path, grid: str, deadline: float) -> int:
    """Measure the configurations that the work in progress lacks. Returns the exit
    code.
    """
    ended, stem = time.monotonic(), STEMS[name]
    device = device_for(stem.quick if grid == "quick" else stem.full)
    if device is None:
        raise CannotStart(
            f"{name} needs a GPU and none was found; --quick runs what a CPU can"
        )
    path = record_path(results, device, name, grid)
    if would_publish(device, path):
        raise CannotStart(
            f"a record of a simulated GPU ({device.name}) is never published: give "
            "another --results"
        )
    with exclusive(path), measuring() as others_measure:
        module = import_module(stem.module)
        check_torch(device)
        if device.is_gpu:
            limit_memory()
        if device.is_gpu:
            # Else imported by the first row that compiles, or steps an optimizer.
            import_module("torch._inductor.compile_fx")
        # What was imported stays: it need not be looked through for garbage before each
        # row.
        gc.freeze()
        configs = module.configs(quick=grid == "quick")
        record = new_record(name, device, grid, configs, module.PROTOCOL)
        progress = partial_path(path)
        record = resume(progress, record, configs)
        # Where one row of a group is missing, all were not measured in turns.
        groups = groups_of(module, configs)
        missing = [
            group
            for group in groups
            if any(record.row(asdict(config)) is None for config in group)
        ]
        pending = [config for group in missing for config in group]
        again = [asdict(config) for config in pending]
        record.rows = [row for row in record.rows if row.config not in again]
        report(event="start", total=len(configs), done=len(configs) - len(pending))
        if device.is_gpu:
            report(event="compiling")
            rehearse(name, grid, pending, deadline)
        measured = partial(measured_now, record, module, others_measure)
        before = look_at_host(device, module)
        for group in missing:
            if time.time() >= deadline:
                report(event="out_of_time")
                return 0
            # All since the group before ended, or since the start, counts with its
            # first row.
            rows = measured(group, before, since=ended)
            ended, before = time.monotonic(), rows[-1].host[-1:]
            put(record, rows)
            store.write(record, progress)
            for row in rows:
                report(
                    event="row", config=row.config, status=row.status, reason=row.reason
                )
            if any(map(gpu_is_broken, rows)):
                break
        if not record.complete:
            failed = sum(row.status == "failed" for row in record.rows)
            report(
                event="failed",
                failed=failed,
                missing=record.expected_rows - len(record.rows),
            )
            return 1
        order = {json.dumps(asdict(config)): i for i, config in enumerate(configs)}

        def publish() -> None:
            record.rows.sort(key=lambda row: order[json.dumps(row.config)])
            store.write(record, progress)
            # In one step: work that is complete never lies beside its record, where it
            # would be taken for a new one once the record is deleted.
            os.replace(progress, path)

        publish()
        for group in slow_groups(record, groups):
            if time.time() >= deadline:
                break
            # A new look: the last one may be what made the host seem slow.
            before = look_at_host(device, module)
            rows = measured(group, before, since=time.monotonic())
            if any(map(gpu_is_broken, rows)):
                break
            put(record, rows)
            publish()
    report(event="complete")
    return 0


def measured_now(
    record: Record,
    module: Any,
    others_measure: Callable[[], bool],
    group: list[Any],
    before: list[Probe],
    since: float,
) -> list[Row]:
    """The rows of a group, with the host `before` and after them; all since `since`, a
    time.monotonic(), counts with the first: together rows say how long measuring takes.
    The record notes clocks and neighbours.
    """
    device = record.device
    free_memory()
    rows = measure_group(module, group)
    after = look_at_host(device, module)
    for row in rows:
        row.seconds, since = round(time.monotonic() - since, 3), time.monotonic()
        row.host = [*before, *after]
    if device.is_gpu and (clock := sm_clock_mhz()):
        seen = [*device.sm_clocks_mhz, clock]
        device.sm_clocks_mhz = [min(seen), max(seen)]
    if device.is_gpu and others_measure() and NOTE not in record.notes:
        record.notes.append(NOTE)
    return rows


def check_torch(device: Device) -> None:
    """A GPU that torch can't use would silently become a CPU measurement."""
    if not device.is_gpu or "torch" not in sys.modules:
        return
    import torch

    if not torch.cuda.is_available():
        fault = f"torch {torch.__version__} can't use the {device.name}"
        raise CannotStart(f"{fault}: install a CUDA build of torch")
    # A smaller GPU that is simulated is the larger one.
    expected = device.name.partition(SIMULATED)[0]
    if (name := torch.cuda.get_device_name(0)) != expected:
        fault = f"torch would use {name}, not {device.name}"
        raise CannotStart(f"{fault}: set CUDA_VISIBLE_DEVICES")


# --8<-- [start:verify]
def agrees(name: str, old: Any, new: Any) -> bool:
    """Whether a metric measured again says the same: times within noise, everything
    else exactly. In a list of objects the times of one kernel are left to the times of
    its phase.

    Noise is three times the wider spread (p80 - p20) of the two, or 5 % of the old
    median where that is more. What the allocator reserves depends on what the process
    did before, so a tenth more or less is no difference either.
    """
    if is_table(old) and is_table(new):
        return sorted(map(without_times, old)) == sorted(map(without_times, new))
    if name == "peak_reserved_bytes" and new is not None:
        return abs(old - new) <= 0.1 * old
    if not (
        name.endswith("_ms")
        and old
        and isinstance(old, list)
        and new
        and isinstance(new, list)
    ):
        return old == new
    a, b = summarize(old), summarize(new)
    return abs(a.median - b.median) <= max(
        3 * max(a.p80 - a.p20, b.p80 - b.p20), 0.05 * a.median
    )


def told(value: Any) -> str:
    """A metric in a message: samples by their median, tables by their length."""
    if is_table(value):
        return f"{len(value)} entries"
    samples = (
        isinstance(value, list)
        and value
        and all(isinstance(item, int | float) for item in value)
    )
    return f"median {summarize(value).median:g}" if samples else str(value)


def without_times(item: dict[str, Any]) -> str:
    """All of an object but its times in ms, as text that can be sorted."""
    return json.dumps(
        {key: value for key, value in item.items() if not key.endswith("_ms")},
        sort_keys=True,
    )


def verify_stem(name: str, results: Path) -> int:
    """Measure three rows of a stale record again; where all agree, note the present
    source's hash in the record.
    """
    stem = STEMS[name]
    device = device_for(stem.full)
    if device is None:
        raise CannotStart(f"{name} needs a GPU and none was found")
    path = record_path(results, device, name, "full")
    with exclusive(path), measuring():
        module = import_module(stem.module)
        check_torch(device)
        try:
            record = store.read(path)
        except FileNotFoundError:
            raise CannotStart(
                f"{path} does not exist: there is nothing to verify, measure it first"
            ) from None
        if record.edited:
            raise CannotStart(f"{path} was edited by hand: measure it again")
        attention = attention_of(module.configs())
        triton = record.software.get("triton", "")
        tuned = tuned_software(stem.module, attention, device.slug, triton)
        if tuned.get(TUNED) != record.software.get(TUNED):
            raise CannotStart(
                f"launch configurations were timed since {path} was measured: "
                f"measure it again by --only {name} --force"
            )
        configs = [
            c
            for c in module.configs()
            if (row := record.row(asdict(c))) and row.status == "ok"
        ]
        if not configs:
            raise CannotStart(
                f"{path} has no row to measure again: measure it with --force"
            )
        chosen = [configs[i] for i in sorted({0, len(configs) // 2, len(configs) - 1})]
        report(event="start", total=len(chosen), done=0)
        for config in chosen:
            free_memory()
            old, (new,) = record.row(asdict(config)), measure_group(module, [config])
            assert old is not None
            report(event="row", config=new.config, status=new.status, reason=new.reason)
            differing = [
                key
                for key in old.metrics
                if not agrees(key, old.metrics[key], new.metrics.get(key))
            ]
            if new.status != "ok" or differing:
                changes = ", ".join(
                    f"{key} ({told(old.metrics[key])}, "
                    f"now {told(new.metrics.get(key))})"
                    for key in differing
                )
                where = f"{name} differs at {new.config} in {changes or new.reason}"
                raise CannotStart(f"{where}: measure it again")
        present = hash_of(stem, configs)
        if present not in (record.source_hash, *record.verified_hashes):
            record.verified_hashes.append(present)
            store.write(record, path)
    report(event="complete")
    return 0


# --8<-- [end:verify]


def main(
    stem: str,
    results: Path,
    grid: str = "full",
    deadline: float = 1e18,
    verify: bool = False,
):
    """Measure STEM into RESULTS."""
    try:
        for value, known in ((stem, STEMS), (grid, ("full", "quick"))):
            if value not in known:
                raise CannotStart(f"{value!r} is none of {', '.join(known)}")
        code = (
            verify_stem(stem, results)
            if verify
            else measure_stem(stem, results, grid, deadline)
        )
    except (CannotStart, RecordError) as error:
        stop(str(error))
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        remedy = "free space or give" if full else "remove it, or give"
        where = error.filename or results
        stop(f"can't write {where}: {error.strerror}; {remedy} another --results")
    raise typer.Exit(code)


def stop(message: str) -> NoReturn:
    report(event="error", message=message)
    raise typer.Exit(2)


if __name__ == "__main__":
    typer.run(main)

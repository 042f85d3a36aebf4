"""Several experiments at once: each in a lane of its own, the longest first, and none
left behind where the command is stopped.
"""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from msgspec.structs import replace

from systems import ROOT
from systems.records import store
from tests.factories import make_gpu, make_record, make_row
from tests.tools.test_measuring import child_that
from tools import at_once, measuring
from tools.at_once import measure_at_once, shared_out
from tools.measuring import Outcome, run_child

ARGUMENTS = (False, False, 1e18)


@pytest.fixture
def node(monkeypatch):
    """Four GPUs and nine cores."""
    monkeypatch.setattr(at_once, "visible_gpus", lambda: ["0", "1", "GPU-a", "3"])
    monkeypatch.setattr(at_once, "find_gpu", lambda gpu: make_gpu())
    monkeypatch.setattr(at_once, "available_cores", lambda: list(range(9)))


def test_each_has_a_gpu_and_cores_of_its_own_and_the_longest_is_first(
    node, monkeypatch, tmp_path
):
    for seconds, stem in ((9, "warmup"), (90, "compile"), (900, "attention")):
        record = make_record(
            stem, replace(make_row({}, step_ms=[1.0]), seconds=seconds)
        )
        store.write(record, tmp_path / f"a-gpu/{stem}.json")
    began, lanes, both = [], set(), threading.Barrier(2, timeout=30)

    def measured(stem, results, quick, force, deadline, lane):
        began.append(stem)
        lanes.add((lane.gpu, *lane.cores))
        # None goes on before another is measured beside it.
        both.wait()
        return Outcome(stem, f"on {lane.gpu}")

    monkeypatch.setattr(at_once, "measure_if_stale", measured)
    stems = ["warmup", "compile", "nsys", "attention"]
    outcomes = measure_at_once(stems, 2, tmp_path, *ARGUMENTS)
    # In the order in which they were asked for.
    assert [outcome.stem for outcome in outcomes] == stems
    assert set(began[:2]) == {"nsys", "attention"}
    assert lanes == {("0", 0, 1, 2, 3), ("1", 4, 5, 6, 7)}


def test_cores_are_shared_out_in_neighbours_and_may_be_unknown():
    assert shared_out([2, 3, 5, 8, 9], 2) == [[2, 3], [5, 8]]
    assert shared_out([], 2) == [[], []]


def test_gpus_that_are_not_there_or_not_alike_are_one_line(node, monkeypatch, tmp_path):
    with pytest.raises(ValueError, match="--at-once 5: 4 GPUs are visible"):
        measure_at_once(["warmup"], 5, tmp_path, *ARGUMENTS)
    kinds = {"0": make_gpu("X"), "1": None}
    monkeypatch.setattr(at_once, "find_gpu", kinds.get)
    several = "X and one that the driver does not tell: name some of one kind"
    with pytest.raises(ValueError, match=several):
        measure_at_once(["warmup"], 2, tmp_path, *ARGUMENTS)


def test_a_child_is_given_its_lane(node, monkeypatch, tmp_path):
    given = []
    real = subprocess.Popen

    def start(command, **options):
        given.append((command[3], options["env"]["CUDA_VISIBLE_DEVICES"], command[-1]))
        return real([sys.executable, "-c", ""], **options)

    child_that(monkeypatch, "")
    monkeypatch.setattr(measuring.subprocess, "Popen", start)
    monkeypatch.setattr(
        at_once,
        "measure_if_stale",
        lambda stem, results, *more: run_child(stem, results, lane=more[-1]),
    )
    measure_at_once(["warmup", "compile"], 2, tmp_path, *ARGUMENTS)
    lanes = {(gpu, cores) for _, gpu, cores in given}
    assert {stem for stem, *_ in given} == {"warmup", "compile"}
    assert lanes <= {("0", "0,1,2,3"), ("1", "4,5,6,7")}


def test_what_measures_stays_on_its_cores():
    """All of its threads, and the processes that it starts."""
    core = min(os.sched_getaffinity(0))
    code = f"""
import os
from pathlib import Path
from systems.running import measure
measure.measure_stem = lambda *_: print(os.sched_getaffinity(0)) or 0
measure.main("warmup", Path("."), cores="{core}")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.stdout == f"{{{core}}}\n"


def test_stopped_it_leaves_no_child_in_any_lane(node, monkeypatch, tmp_path):
    """By Ctrl-C, which only the main thread sees. What waits is not begun."""
    child_that(
        monkeypatch,
        f"""
import os, pathlib, time
(pathlib.Path({str(tmp_path)!r}) / str(os.getpid())).touch()
time.sleep(60)
""",
    )
    monkeypatch.setattr(
        at_once,
        "measure_if_stale",
        lambda stem, results, *more: run_child(stem, results, lane=more[-1]),
    )

    def interrupt():
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        measure_at_once(["warmup", "compile", "nsys"], 2, tmp_path, *ARGUMENTS)
    begun = [int(path.name) for path in tmp_path.iterdir()]
    assert len(begun) == 2 and time.monotonic() - start < 30
    for pid in begun:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_one_that_starts_while_all_are_stopped_is_ended_too(monkeypatch, tmp_path):
    child_that(monkeypatch, "import time; time.sleep(60)")
    stopped = threading.Event()
    stopped.set()
    began = time.monotonic()
    with measuring.progress_bars() as bars:
        lane = measuring.Lane("0", [], bars, stopped)
        assert run_child("warmup", tmp_path, lane=lane).code == 1
    assert time.monotonic() - began < 30

"""Several experiments at once: each in a lane of its own, the longest first, and none
left behind where the command is stopped.
"""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import typer
from msgspec.structs import replace

from systems import ROOT
from systems.records import store
from systems.running import measure
from tests.factories import make_gpu, make_record, make_row
from tests.tools.test_measuring import child_that
from tools import at_once, measuring
from tools.at_once import (
    CannotShare,
    alike,
    longest_first,
    measure_at_once,
    shared_out,
)
from tools.measuring import Outcome, run_child


@pytest.fixture
def node(monkeypatch, tmp_path):
    """Four GPUs and nine cores, none of which is half of another."""
    monkeypatch.setattr(at_once, "visible_gpus", lambda: ["0", "1", "GPU-a", "3"])
    monkeypatch.setattr(at_once, "find_gpu", lambda gpu: make_gpu())
    monkeypatch.setattr(at_once, "uuid_of", lambda gpu: gpu)
    monkeypatch.setattr(at_once, "available_cores", lambda: list(range(9)))
    monkeypatch.setattr(at_once, "TOPOLOGY", tmp_path / "no-topology")


def run_each(results):
    """Whatever there is of a stem, its child is started."""
    return lambda stem, lane: run_child(stem, results, lane=lane)


def test_each_has_a_gpu_and_cores_of_its_own_and_the_longest_is_first(
    node, tmp_path, capsys
):
    began, lanes, both = [], set(), threading.Barrier(2, timeout=30)

    def measured(stem, lane):
        began.append(stem)
        lanes.add((lane.gpu, *lane.cores))
        # None goes on before another is measured beside it.
        both.wait()
        return Outcome(stem, f"on {lane.gpu}")

    stems = ["warmup", "compile", "accumulation", "attention"]
    outcomes = measure_at_once(stems, 2, tmp_path, measured)
    # In the order in which they were asked for.
    assert [outcome.stem for outcome in outcomes] == stems
    assert set(began[:2]) == {"compile", "attention"}
    assert lanes == {("0", 0, 1, 2, 3), ("1", 4, 5, 6, 7)}
    # What came of each is said when it has ended, to a file as well.
    told = capsys.readouterr().out.splitlines()
    assert {f"{o.stem}: {o.message}" for o in outcomes} <= set(told)


def test_what_nothing_is_known_of_is_first_and_work_in_progress_tells_nothing(tmp_path):
    for seconds, stem in ((9, "warmup"), (900, "model_sizes")):
        row = replace(make_row({}, step_ms=[1.0]), seconds=seconds)
        store.write(make_record(stem, row), tmp_path / f"a-gpu/{stem}.json")
    tiny = replace(make_row({}, step_ms=[1.0]), seconds=1)
    partial = tmp_path / "a-gpu/crash.partial.json"
    store.write(make_record("crash", tiny), partial)
    stems = ["warmup", "model_sizes", "crash"]
    # The guide's own record of warmup took longer than nine seconds.
    assert longest_first(stems, tmp_path) == ["crash", "model_sizes", "warmup"]


def test_no_lane_is_left_without_an_experiment(node, tmp_path):
    cores = []

    def measured(stem, lane):
        cores.append(lane.cores)
        return Outcome(stem, "measured")

    measure_at_once(["warmup"], 4, tmp_path, measured)
    assert cores == [list(range(9))]


def test_cores_are_shared_out_whole(monkeypatch, tmp_path):
    """Here 0 and 4 are halves of one, 1 and 5, and so on."""
    for core in range(8):
        folder = tmp_path / f"cpu{core}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{core % 4},{core % 4 + 4}\n")
    monkeypatch.setattr(at_once, "TOPOLOGY", tmp_path)
    assert shared_out(list(range(8)), 2) == [[0, 4, 1, 5], [2, 6, 3, 7]]
    # A cluster may have given some of them.
    assert shared_out([1, 2, 5], 2) == [[1, 5], [2]]
    assert shared_out([], 2) == [[], []]
    with pytest.raises(CannotShare, match="--at-once 3: this process may use 2 cores"):
        shared_out([1, 2, 5], 3)


def test_gpus_that_are_not_there_or_not_alike_are_one_line(node, monkeypatch):
    with pytest.raises(CannotShare, match="visible GPUs: 4; give --at-once 4"):
        alike(5)
    monkeypatch.setattr(at_once, "uuid_of", lambda gpu: "one and the same")
    with pytest.raises(CannotShare, match="names a GPU twice"):
        alike(2)
    kinds = {"0": make_gpu("X"), "1": make_gpu("Y")}
    monkeypatch.setattr(at_once, "find_gpu", kinds.get)
    with pytest.raises(CannotShare, match="several kinds, X and Y: name some of one"):
        alike(2)
    with pytest.raises(CannotShare, match="no GPU is GPU-a: `nvidia-smi -L` lists"):
        del kinds["1"]
        kinds["1"] = make_gpu("X")
        alike(3)
    monkeypatch.setattr(at_once, "visible_gpus", lambda: ["0"])
    with pytest.raises(CannotShare, match="visible GPUs: 1; leave it out, or name"):
        alike(2)


def test_a_child_is_given_its_lane(node, monkeypatch, tmp_path):
    given, both, real = set(), threading.Barrier(2, timeout=30), subprocess.Popen

    def start(command, **options):
        both.wait()
        given.add((command[3], options["env"]["CUDA_VISIBLE_DEVICES"], *command[-2:]))
        return real([sys.executable, "-c", ""], **options)

    child_that(monkeypatch, "")
    monkeypatch.setattr(measuring.subprocess, "Popen", start)
    measure_at_once(["attention", "compile"], 2, tmp_path, run_each(tmp_path))
    assert {stem for stem, *_ in given} == {"attention", "compile"}
    assert {tuple(lane) for _, *lane in given} == {
        ("0", "--cores", "0,1,2,3"),
        ("1", "--cores", "4,5,6,7"),
    }


@pytest.mark.skipif(
    len(at_once.available_cores()) < 2, reason="needs a choice between cores"
)
def test_what_measures_stays_on_its_cores():
    """Its threads, and the processes that it starts."""
    core = min(os.sched_getaffinity(0))
    code = f"""
import os, subprocess, sys, threading
from pathlib import Path
from systems.running import measure

def measured(*given):
    def look():
        print(os.sched_getaffinity(0), flush=True)
    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    look = "import os; print(os.sched_getaffinity(0))"
    subprocess.run([sys.executable, "-c", look])
    print(given[-1])
    return 0

measure.measure_stem = measured
measure.main("warmup", Path("."), cores="{core}")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True
    )
    told = f"on 1 of {os.cpu_count()} cores"
    assert done.stdout.splitlines() == [f"{{{core}}}"] * 2 + [told]


def test_cores_that_were_taken_away_are_one_line(capsys):
    with pytest.raises(typer.Exit) as ended:
        measure.main("warmup", ROOT, cores="100000")
    assert ended.value.exit_code == 2
    said = json.loads(capsys.readouterr().out)["message"]
    assert said.startswith("can't run on cores 100000: ")


def test_one_lane_that_fails_ends_the_others(node, tmp_path):
    def failing(stem, lane):
        if stem == "compile":
            raise PermissionError("its record")
        # The other lane would have gone on with this one.
        lane.stopped.wait(30)
        return Outcome(stem, "stopped" if lane.stopped.is_set() else "went on")

    start = time.monotonic()
    with pytest.raises(PermissionError, match="its record"):
        measure_at_once(["attention", "compile", "nsys"], 2, tmp_path, failing)
    assert time.monotonic() - start < 20


def test_stopped_it_leaves_no_child_in_any_lane(node, monkeypatch, tmp_path, capsys):
    """By Ctrl-C, which only the main thread sees. What waits is not begun, and none is
    said to have crashed.
    """
    child_that(
        monkeypatch,
        f"""
import os, pathlib, time
(pathlib.Path({str(tmp_path)!r}) / str(os.getpid())).touch()
time.sleep(60)
""",
    )

    def interrupt():
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        measure_at_once(["warmup", "compile", "nsys"], 2, tmp_path, run_each(tmp_path))
    begun = [int(path.name) for path in tmp_path.iterdir()]
    assert len(begun) == 2 and time.monotonic() - start < 30
    assert "crashed" not in capsys.readouterr().out
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


def test_told_twice_to_end_it_leaves_none_that_is_deaf(monkeypatch, tmp_path):
    """As where a library does not let them hear."""
    deaf = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    code = f"{deaf}; print(flush=True); time.sleep(60)"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            text=True,
            process_group=0,
        )
        for _ in range(2)
    ]
    for child in children:
        assert child.stdout and child.stdout.readline()
        child.stdout.close()
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        measuring.end(children)
    assert [child.returncode for child in children] == [-signal.SIGKILL] * 2

"""Test how experiments are measured in child processes."""

import json
import os
import signal
import subprocess
import threading
import time
from types import SimpleNamespace

import pytest

from tests.factories import make_gpu
from tools import at_once, measuring
from tools.at_once import first_gpus, sort_longest_first
from tools.measuring import Outcome, Task, measure_all, plan_task, run_tasks

MARKUP = "[/red] :smile: \x1b[31m"
FAILED = {"event": "row", "status": "failed", "config": {"i": "[b]"}, "reason": MARKUP}
ROW = json.dumps({"event": "row", "status": "ok", "config": {"i": 1}, "reason": None})
DONE, SHARED = json.dumps({"event": "complete"}), json.dumps({"event": "shared"})
KILL = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"


@pytest.fixture
def replace_child(monkeypatch):
    """Return a function that replaces the child's code, but not its arguments."""

    def replace(code: str) -> None:
        real = subprocess.Popen

        def start(command, **options):
            return real([command[0], "-c", code, *command[3:]], **options)

        fake = SimpleNamespace(**vars(subprocess) | {"Popen": start})
        monkeypatch.setattr(measuring, "subprocess", fake)

    for name in measuring.DROPPED:
        monkeypatch.setenv(name, "1")
    return replace


def run_single_task(stem: str = "fake") -> Outcome:
    (outcome,) = run_tasks(iter([Task(stem, [])]))
    return outcome


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        (f"print({ROW!r}, flush=True); {KILL}", -signal.SIGKILL),
        (f"print({ROW!r}); raise SystemExit(130)", 130),
        (f"print({ROW!r}); raise SystemExit(0)", 0),
        (f"print({ROW!r}); 1 / 0", 1),
        # This child is killed after its last report.
        (f"print({ROW!r}); print({DONE!r}, flush=True); {KILL}", -9),
    ],
)
def test_child_without_report_or_clean_exit_has_crashed(replace_child, code, shown):
    """A child must send its final report and then exit by itself."""
    replace_child(code)
    outcome = run_single_task()
    again = "run again to go on from the last row"
    assert (outcome.code, outcome.rows) == (1, {"ok": 1})
    assert outcome.message == f"crashed (exit code {shown}); {again}"


def test_child_with_final_report_has_measured(replace_child, capsys):
    """Reports may arrive in pieces; markup in a failed row is printed as text."""
    replace_child(
        "import sys, time\n"
        f"print({json.dumps(FAILED)!r}); print({SHARED!r})\n"
        f"for part in ({ROW[:9]!r}, {ROW[9:]!r}, '\\n', {DONE!r}, '\\n'):\n"
        "    print(part, end='', flush=True); time.sleep(0.05)\n"
    )
    outcome = run_single_task()
    rows = {"failed": 1, "ok": 1}
    assert (outcome.code, outcome.message, outcome.rows) == (0, "measured", rows)
    printed = capsys.readouterr().out
    assert "{'i': '[b]'}: failed: [/red] :smile: \\x1b[31m\n" in printed
    assert "fake: others use this GPU, see nvidia-smi\n" in printed


def test_no_child_starts_after_the_deadline(replace_child, tmp_path):
    replace_child("raise SystemExit(3)")
    (outcome,) = measure_all(["model_sizes"], tmp_path, deadline=time.time() - 1)
    assert (outcome.code, outcome.message) == (0, "out of time; run again to go on")


def test_cpu_children_use_the_interpreter(monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(measuring, "find_missing", lambda *_: "")
    stems = "flash_ablation", "model_sizes"
    tasks = [plan_task(stem, tmp_path, True, False, 1e18) for stem in stems]
    interpreted = [{"TRITON_INTERPRET": "1"}, {}]
    assert [isinstance(t, Task) and t.environment for t in tasks] == interpreted


def test_each_gpu_measures_one_experiment_at_a_time(replace_child, tmp_path, capsys):
    replace_child(f"""
import os, pathlib, sys, time
gpu = os.environ["CUDA_VISIBLE_DEVICES"]
mine, other = (pathlib.Path({str(tmp_path)!r}, x) for x in (gpu, str(1 - int(gpu))))
assert not mine.exists() and not {measuring.DROPPED!r} & {{*os.environ}}
mine.touch()
# None goes on before another runs beside it.
while sys.argv[1] in "ab" and not other.exists():
    time.sleep(0.05)
time.sleep(0.3)
mine.unlink()
print("a line of sitecustomize")
print({DONE!r})
""")
    tasks = (Task(stem, []) for stem in "abc")
    outcomes = run_tasks(tasks, ["0", "1"])
    assert {o.stem: o.message for o in outcomes} == dict.fromkeys("abc", "measured")
    # Outcomes are printed even if the output is no terminal.
    assert {f"{s}: measured" for s in "abc"} <= {*capsys.readouterr().out.splitlines()}


@pytest.mark.parametrize("deaf", [False, True])
def test_ctrl_c_ends_all_children(replace_child, tmp_path, monkeypatch, capsys, deaf):
    """One Ctrl-C is enough, or two if a child ignores SIGTERM."""
    ignore = "signal.signal(signal.SIGTERM, signal.SIG_IGN)" if deaf else ""
    replace_child(f"""
import os, pathlib, signal, time
{ignore}
(pathlib.Path({str(tmp_path)!r}) / str(os.getpid())).touch()
time.sleep(60)
""")

    def interrupt():
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.05)
        for _ in range(1 + deaf):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)

    threading.Thread(target=interrupt, daemon=True).start()
    start = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run_tasks((Task(stem, []) for stem in "abc"), ["0", "1"])
    begun = [int(path.name) for path in tmp_path.iterdir()]
    assert len(begun) == 2 and time.monotonic() - start < measuring.GRACE
    assert "crashed" not in capsys.readouterr().out
    for pid in begun:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_failing_start_ends_other_children(replace_child, monkeypatch):
    replace_child("import time; time.sleep(60)")
    real, started = measuring.subprocess.Popen, []

    def start(*command, **options):
        if started:
            raise PermissionError("no more processes")
        started.append(real(*command, **options))
        return started[0]

    monkeypatch.setattr(measuring.subprocess, "Popen", start)
    with pytest.raises(PermissionError, match="no more"):
        run_tasks((Task(stem, []) for stem in "ab"), ["0", "1"])
    assert started[0].returncode == -signal.SIGTERM


def test_first_gpus_rejects_missing_or_different_gpus(monkeypatch, capsys):
    kinds = {"0": make_gpu("X"), "1": make_gpu("X"), "2": make_gpu("Y")}
    monkeypatch.setattr(at_once, "find_gpu", kinds.get)
    monkeypatch.setattr(at_once, "gpu_uuid", {"0": "a", "1": "b"}.get)

    def refusal_text(count: int, *visible: str) -> str:
        monkeypatch.setattr(at_once, "visible_gpus", lambda: [*visible])
        with pytest.raises(SystemExit):
            first_gpus(count)
        return capsys.readouterr().err

    assert "visible GPUs: 3; give --at-once 3" in refusal_text(4, "0", "1", "2")
    assert first_gpus(2) == ["0", "1"]
    assert "visible GPUs: 1; leave it out, or name" in refusal_text(2, "0")
    assert "names a GPU twice" in refusal_text(2, "0", "0")
    assert "several kinds, X and Y: name some of one" in refusal_text(3, "0", "1", "2")
    assert "no GPU is GPU-a, see `nvidia-smi -L`" in refusal_text(2, "0", "GPU-a")


def test_unknown_and_long_experiments_are_sorted_first():
    stems = ["model_sizes", "flash_peers", "unknown"]
    assert sort_longest_first(stems) == ["unknown", "flash_peers", "model_sizes"]

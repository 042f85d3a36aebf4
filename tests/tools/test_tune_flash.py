"""Test the search for launch configurations, and how kernels use its results."""

import errno
import multiprocessing
import os
import re
import signal
import time
from contextlib import suppress
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from msgspec import structs
from triton import knobs

from systems.attention.triton import available, chooser, launches, tuned
from systems.attention.triton.available import describe_kernels
from systems.attention.triton.chooser import choose_config, select_by_mask
from systems.attention.triton.configs import Config
from systems.attention.triton.tables import CONFIGS, FEW_ROWS
from systems.attention.triton.tuned import ARITHMETICS, KERNELS
from systems.records.source_hash import reach_code
from tests.factories import make_gpu
from tools import tune_flash
from tools.tune_flash import Candidate, find_fault, list_candidates, resume_or_start

CUDA = torch.device("cuda")
KEY = ("half", "dq", 64, True)
OURS, FAST, TIE, WRONG = (Config(64, 64, 4, stages) for stages in (2, 3, 4, 5))
MS = {OURS: 1.0, FAST: 0.5, TIE: 0.995, WRONG: 0.1}


@pytest.mark.parametrize("gpu", CONFIGS)
def test_candidates_start_with_our_config_and_are_few(gpu):
    for arithmetic in ARITHMETICS:
        for kernel in KERNELS:
            found = list_candidates((arithmetic, kernel, 128, True), gpu)
            configs = [candidate.config for candidate in found]
            ours = select_by_mask(CONFIGS[gpu][arithmetic][kernel][128], True)
            assert configs[0] == ours and len(configs) == len(set(configs))
            assert ours._replace(stages=ours.stages + 1) in configs
            others = (table[arithmetic][kernel][128] for table in CONFIGS.values())
            assert {select_by_mask(other, True) for other in others} <= set(configs)
            # With more candidates, 90 searches would take over 20 minutes.
            assert 5 <= len(configs) <= 16


@pytest.mark.parametrize("kernel", KERNELS)
def test_find_fault_reports_wrong_results(kernel, monkeypatch):
    """The check must not split loops, because split loops run other kernels."""
    asked = []
    monkeypatch.setattr(tune_flash, "CHECKED_N", 80)
    monkeypatch.setattr(launches, "count_splits", lambda *_: asked.append(1) or 4)
    candidate = Candidate("half", kernel, 16, True, Config(32, 32, 4, 1))
    assert find_fault(candidate) == "" and not asked
    right = tune_flash.make_launch

    def launch_wrong(*arguments):
        *others, last = right(*arguments)()
        return lambda: (*others, 1.1 * last)

    monkeypatch.setattr(tune_flash, "make_launch", launch_wrong)
    assert find_fault(candidate).startswith("wrong: relative error 1.0e-01")

    def refuse(*_):
        raise RuntimeError(f"{reason}\nand much more")

    monkeypatch.setattr(tune_flash, "make_launch", refuse)
    reason = "out of shared memory"
    assert find_fault(candidate) == "RuntimeError: out of shared memory"
    for reason in ("Triton Error [CUDA]: out of memory", "CUDA error: illegal access"):
        with pytest.raises(RuntimeError, match=re.escape(reason)) as caught:
            find_fault(candidate)
        is_crash = isinstance(caught.value, tune_flash.CrashError)
        assert is_crash == ("memory" not in reason)


@pytest.fixture
def fake_a100(monkeypatch, tmp_path):
    """Simulate an A100, with a temporary folder for tuned configurations."""
    device = make_gpu("NVIDIA A100-SXM4-80GB", capability="8.0")
    monkeypatch.setattr(tuned, "FOLDER", tmp_path)
    monkeypatch.setattr(chooser, "TUNED_FOLDER", tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: device.name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))
    monkeypatch.setattr(chooser.triton, "__version__", "3.7.1")
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    monkeypatch.setattr(available, "INTERPRETED", SimpleNamespace(value=False))

    def reset():
        chooser.load_tuned.cache_clear()
        tuned.configs.cache_clear()

    reset()
    yield SimpleNamespace(device=device, path=tuned.file_path(device.slug), reset=reset)
    reset()


def choose_on_a100(kernel="dq", causal=True, rows=2**20, d=64) -> Config:
    return choose_config(kernel, d, "half", causal, rows, CUDA)


def published_config(kernel="dq", causal=True) -> Config:
    return select_by_mask(CONFIGS["sm_80"]["half"][kernel][64], causal)


def tune_candidates(fake_a100, *configs: Config, key=KEY):
    found = resume_or_start(fake_a100.path, fake_a100.device, False)
    these = [Candidate(*key, config) for config in configs]
    verdicts = {c: "wrong: 1e-1" if c.config == WRONG else "" for c in these}
    tune_flash.time_candidates(
        found, fake_a100.path, {key: these}, verdicts, lambda c: MS[c.config]
    )
    fake_a100.reset()
    return found["entries"]


def test_kernels_use_the_fastest_correct_config(fake_a100, capsys):
    before, text = choose_on_a100(), describe_kernels(CUDA)["triton"]
    assert "of the A100, compiled and not timed: python tools/tune_flash.py" in text
    (entry,) = tune_candidates(fake_a100, OURS, WRONG, FAST)
    assert (entry["pass_ms"], entry["pass_with_ours_ms"]) == (0.5, 1.0)
    text = capsys.readouterr().out
    assert text == "half d=64 dq causal: 0.5000 ms, with ours 1.0000 ms\n"
    assert choose_on_a100(d=50) == FAST != before
    # Another mask, another kernel and few rows keep the built-in configuration.
    for other in ({"causal": False}, {"kernel": "dkdv"}):
        assert choose_on_a100(**other) == published_config(**other)
    few = FEW_ROWS["sm_80"]["half"][0]
    assert choose_on_a100(rows=few.most_rows) == few.configs["dq"][64]
    text = describe_kernels(CUDA)["triton"]
    assert text == "runs, with launch configurations of the A100, 1 of them timed here"
    assert tuned.config_digest(fake_a100.device.slug, "3.7.1")


def test_ties_keep_our_config_and_searches_resume(fake_a100):
    (entry,) = tune_candidates(fake_a100, OURS, TIE)
    assert entry["config"][3] == OURS.stages
    entries = tune_candidates(fake_a100, OURS, key=("half", "dq", 128, True))
    assert [entry["d"] for entry in entries] == [64, 128]
    # With --force or changed kernels, the search starts over.
    assert resume_or_start(fake_a100.path, fake_a100.device, True)["entries"] == []
    changed = tuned.read(fake_a100.path) | {"source_hash": "other"}
    tune_flash.write_content(changed, fake_a100.path)
    assert resume_or_start(fake_a100.path, fake_a100.device, False)["entries"] == []
    (kept,) = fake_a100.path.parent.glob(f".{fake_a100.path.name}.*")
    assert tuned.read(kept) == changed


CHANGED = "with kernels that have changed since: our tables are used"
# Damage to the file as (pattern, replacement), and the resulting log message.
DAMAGES = {
    "cut": (r"(?s).{20}\Z", "", "can't be used"),
    "an older layout": (r"(?s)\A.*\Z", "[]", "can't be used"),
    "no configuration": (r"\[64, 64, 4, 3", "[64, 64, 5, 3", "can't be used"),
    "no number": (r"\[64, 64", '["64", 64', "can't be used"),
    "another Triton": (r'"3\.7\.1"', '"3.6.0"', "timed with Triton 3.6.0"),
    "other kernels": (tuned.kernels_hash(), "0123456789abcdef", CHANGED),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_tuning_file_is_ignored(damage, fake_a100, caplog):
    pattern, other, text = DAMAGES[damage]
    tune_candidates(fake_a100, OURS, FAST)
    fake_a100.path.write_text(re.sub(pattern, other, fake_a100.path.read_text()))
    assert choose_on_a100() == choose_on_a100() == published_config()
    (line,) = caplog.messages
    assert text in line and "python tools/tune_flash.py" in line
    assert "\n" not in line and str(fake_a100.path) in line
    assert tuned.config_digest(fake_a100.device.slug, "3.7.1") is None


def test_kernels_hash_excludes_config_tables():
    def reach(without):
        reached = reach_code(tuned.LAUNCHES, without)
        return {place for each in reached for place in each.references}

    reached, whole = reach(tuned.CHOOSER), reach(())
    names = {name for _, name in reached}
    assert {"dq_kernel", "add_matmul", "find_stride_divisor", "run_backward"} <= names
    tables = {place for place in whole if place[0].endswith(".tables")}
    assert ("systems.attention.triton.tables", "CONFIGS") in tables
    assert tables.isdisjoint(reached)


@pytest.fixture
def fake_tuning(fake_a100, monkeypatch):
    """Tune as on an A100, with a kernel's time equal to its number of stages."""
    monkeypatch.setattr(tune_flash, "find_gpu", lambda: fake_a100.device)
    monkeypatch.setattr(tune_flash, "is_gpu_shared", lambda: False)
    monkeypatch.setattr(tune_flash, "available_cores", lambda: 2)
    monkeypatch.setattr(tune_flash, "make_launch", lambda c, heads, n: c.config.stages)
    monkeypatch.setattr(tune_flash, "time_call_ms", float)
    before = signal.getsignal(signal.SIGTERM)
    yield fake_a100
    signal.signal(signal.SIGTERM, before)


def error_line(capture, *arguments) -> str:
    with pytest.raises(SystemExit) as ended:
        tune_flash.main(*arguments)
    assert ended.value.code == 2
    text = capture.readouterr().err
    assert text.count("\n") == 1, text
    return text.rstrip()


def test_tuning_that_cannot_start_gives_the_reason(fake_tuning, capsys, monkeypatch):
    line = error_line(capsys, ["fp8"])
    assert line == "error: --arithmetic fp8: is none of half, high, highest"
    fake_tuning.path.write_text("{")
    assert "--force" in error_line(capsys)
    fake_tuning.path.unlink()
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    with tune_flash.lock_record(fake_tuning.path):
        assert "is being measured by process" in error_line(capsys)
    monkeypatch.setattr(os, "replace", Mock(side_effect=full))
    assert "No space left" in error_line(capsys)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA L4")
    assert "would use NVIDIA L4, not NVIDIA A100" in error_line(capsys)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "torch sees none here" in error_line(capsys)


@pytest.mark.parametrize("gib, processes", [(1, 1), (8, 6), (80, 16), (None, 16)])
def test_compilers_fit_into_the_gpu(fake_tuning, monkeypatch, gib, processes):
    class Started(Exception):
        pass

    size = None if gib is None else gib * 2**30
    small = structs.replace(fake_tuning.device, memory_bytes=size)
    pool = Mock(side_effect=Started)
    monkeypatch.setattr(tune_flash, "find_gpu", lambda: small)
    monkeypatch.setattr(tune_flash, "available_cores", lambda: 64)
    monkeypatch.setattr(tune_flash, "ProcessPoolExecutor", pool)
    with pytest.raises(Started):
        tune_flash.main()
    assert pool.call_args.args[0] == processes


def crash(candidate: Candidate) -> str:
    if candidate.d == 128:
        os.kill(os.getpid(), signal.SIGKILL)
    return ""


def break_cuda(candidate: Candidate) -> str:
    if candidate.d == 128:
        raise tune_flash.CrashError(str(candidate), "CUDA error: misaligned address")
    return ""


def interrupt(candidate: Candidate) -> str:
    """Send Ctrl-C while compiling, as a terminal sends it to all its processes."""
    if candidate.d == 128:
        os.kill(os.getpid(), signal.SIGINT)
        # Only one compiler signals the parent: a second signal would end the tests.
        with suppress(FileExistsError):
            os.mkdir(os.environ["SENT"])
            os.kill(os.getppid(), signal.SIGINT)
        time.sleep(60)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "said"),
    [(crash, "BrokenProcessPool"), (interrupt, "KeyboardInt"), (break_cuda, "CrashE")],
)
def test_interrupted_tuning_keeps_results(fake_tuning, monkeypatch, capfd, work, said):
    monkeypatch.setattr(tune_flash, "find_fault", work)
    monkeypatch.setenv("SENT", f"{fake_tuning.path}.sent")
    started = time.monotonic()
    line = error_line(capfd, ["half", "half"], [64, 64, 128])
    assert said in line and line.endswith("the same command goes on")
    assert [e["d"] for e in tuned.read(fake_tuning.path)["entries"]] == [64] * 6
    assert time.monotonic() - started < 50
    assert not multiprocessing.active_children()
    first = str(list_candidates(("half", "forward", 128, True), "sm_80")[0])
    left_out = tuned.read(fake_tuning.path)["crashed"]
    assert left_out == ([first] if work is break_cuda else [])


def test_candidates_that_broke_cuda_are_left_out(fake_tuning, monkeypatch):
    keys = [("half", kernel, 128, mask) for kernel in KERNELS for mask in (True, False)]
    every = [str(c) for key in keys for c in list_candidates(key, "sm_80")]
    content = resume_or_start(fake_tuning.path, fake_tuning.device, False)
    tune_flash.write_content(content | {"crashed": every}, fake_tuning.path)
    monkeypatch.setattr(tune_flash, "find_fault", break_cuda)
    tune_flash.main(["half"], [128])


def test_cuda_error_while_timing_is_a_crash(fake_tuning, monkeypatch):
    candidate = Candidate(*KEY, OURS)
    for text, kind in (
        ("CUDA error: misaligned", tune_flash.CrashError),
        ("x", Exception),
    ):
        error = Mock(side_effect=RuntimeError(text))
        monkeypatch.setattr(tune_flash, "time_call_ms", error)
        with pytest.raises(kind) as caught:
            tune_flash.time_pass_ms(candidate)
        assert (str(candidate) in caught.value.args) == (kind is not Exception)

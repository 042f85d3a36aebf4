"""The search for launch configurations: what it tries, that a wrong result is never a
candidate, and that what it writes is what the kernels get.
"""

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import msgspec
import pytest
import torch
import triton
from rich.console import Console
from triton import knobs
from triton.runtime.errors import OutOfResources

from systems import ROOT
from systems.attention.triton import available, chooser, launches, tuned
from systems.attention.triton.available import kernels
from systems.attention.triton.chooser import choose, for_mask, owners
from systems.attention.triton.configs import Config
from systems.attention.triton.tables import CONFIGS, FEW_ROWS
from systems.attention.triton.tuned import HEAD_DIMS, KERNELS, Tuned
from systems.records.source_hash import Reach
from tests.factories import make_gpu
from tools import tune_flash, tuning
from tools.compile_ahead import DTYPES
from tools.tune_flash import begin, entry, fastest, report, tune
from tools.tuning import Candidate, Search, candidates, shortlist, verdict

CUDA = torch.device("cuda")
SEARCH = Search("half", "dq", 64, True)


@pytest.mark.parametrize("arithmetic", DTYPES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_candidates_are_tiles_that_fit(kernel, arithmetic):
    for d in (16, 32, 64, 128):
        found = candidates(kernel, arithmetic, d)
        assert len(found) == len(set(found)) > 10
        for candidate in found:
            config = candidate.config
            # The kernel's own accumulators, in 32-bit registers of a thread.
            owned = 2 * config.k * d if kernel == "dkdv" else config.q * d
            assert owned / (32 * config.warps) < 200 and config.warps in (4, 8)


def test_the_table_of_hopper_was_among_the_candidates():
    for kernel in KERNELS:
        for d in HEAD_DIMS:
            for arithmetic, by_kernel in CONFIGS["sm_90"].items():
                tried = {
                    candidate.config for candidate in candidates(kernel, arithmetic, d)
                }
                few = [tier.configs[kernel] for tier in FEW_ROWS["sm_90"][arithmetic]]
                entries = (
                    for_mask(by_kernel[kernel][d], causal) for causal in (True, False)
                )
                # 255 registers are all that there are.
                assert {
                    c._replace(registers=None) if c.registers == 255 else c
                    for c in entries
                } <= tried
                assert {configs[d] for configs in few if d in configs} <= tried


@pytest.mark.parametrize("gpu", CONFIGS)
def test_a_short_list_has_ours_first_those_of_others_and_what_is_next_to_ours(gpu):
    for arithmetic in DTYPES:
        for kernel in KERNELS:
            search = Search(arithmetic, kernel, 128, causal=True)
            found = shortlist(search, gpu)
            ours = for_mask(CONFIGS[gpu][arithmetic][kernel][128], True)
            assert found[0] == ours and len(found) == len(set(found))
            assert ours._replace(stages=ours.stages + 1) in found
            assert {
                for_mask(table[arithmetic][kernel][128], True)
                for table in CONFIGS.values()
            } <= set(found)
            # Of 90 searches; with more, 20 minutes are too few.
            assert 5 <= len(found) <= 16


def test_an_entry_is_printed_as_it_is_written():
    for config in (
        Config(64, 128, 4, 3),
        Config(64, 64, 4, 3, registers=128),
        Config(64, 64, 4, 3, ahead=True),
        Config(64, 64, 4, 3, anew="addresses"),
        Config(64, 64, 4, 3, 255, True, "tiles"),
    ):
        assert eval(entry(config), {"Config": Config}) == config


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_wrong_result_is_named(kernel, monkeypatch):
    monkeypatch.setattr(tuning, "SMALL", 80)
    candidate = Candidate(kernel, "half", 16, Config(32, 32, 4, 1))
    assert verdict(candidate) == ""
    right = tuning.prepare

    def wrong(*arguments):
        *others, last = right(*arguments)()
        return lambda: (*others, 1.1 * last)

    monkeypatch.setattr(tuning, "prepare", wrong)
    assert verdict(candidate).startswith("wrong: relative error 1.0e-01")


def test_a_tile_that_can_not_be_launched_says_why(monkeypatch):
    def refuse(*_):
        raise RuntimeError("out of shared memory\nand much more")

    monkeypatch.setattr(tuning, "prepare", refuse)
    assert (
        verdict(Candidate("dq", "half", 16, Config(32, 32, 4, 1)))
        == "RuntimeError: out of shared memory"
    )


# What is written ----------------------------------------------------------------------

OURS, FAST, TIE, WRONG = (Config(64, 64, 4, stages) for stages in (2, 3, 4, 5))
MS = {OURS: 1.0, FAST: 0.5, TIE: 0.995, WRONG: 0.1}


@pytest.fixture
def a100(monkeypatch, tmp_path):
    """An A100 that is not here, and a folder for its file."""
    device = make_gpu("NVIDIA A100-SXM4-80GB", capability="8.0")
    monkeypatch.setattr(tuned, "FOLDER", tmp_path)
    monkeypatch.setattr(chooser, "TUNED", tmp_path)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: device.name)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    monkeypatch.setattr(chooser.triton, "__version__", "3.7.1")
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    monkeypatch.setattr(available, "INTERPRETED", SimpleNamespace(value=False))

    def forget():
        owners.cache_clear()
        tuned.in_use.cache_clear()

    forget()
    yield SimpleNamespace(device=device, path=tuned.path_of(device.slug), forget=forget)
    forget()


def search(found: Tuned, path, searches, configs, deadline=float("inf")):
    """A search whose times are made up; each candidate that was timed."""
    timed = []

    def take(candidate: Candidate) -> float:
        timed.append(candidate.config)
        return MS[candidate.config]

    done = tune(
        found, path, searches, configs,
        check=lambda these: [
            "wrong: 1.0e-01" if c.config == WRONG else "" for c in these
        ],
        timed=take, deadline=deadline, console=Console(quiet=True),
    )  # fmt: skip
    return done, timed


def test_the_fastest_that_is_right_is_what_the_kernels_get(a100):
    before = choose("dq", 64, "half", True, 2**20, CUDA)
    found = begin(a100.path, a100.device, False, (16, 4096))
    done, timed = search(found, a100.path, [SEARCH], lambda s: [OURS, WRONG, FAST])
    assert done and timed == [OURS, FAST]
    a100.forget()
    assert choose("dq", 50, "half", True, 2**20, CUDA) == FAST != before
    # The other mask, another kernel and few rows keep ours.
    for other in (("dq", 64, "half", False), ("dkdv", 64, "half", True)):
        kernel, d, kind, causal = other
        ours = for_mask(CONFIGS["sm_80"][kind][kernel][d], causal)
        assert choose(*other, 2**20, CUDA) == ours
    few = FEW_ROWS["sm_80"]["half"][0]
    assert choose("dq", 64, "half", True, few.most_rows, CUDA) == few.configs["dq"][64]
    (written,) = tuned.read(a100.path).entries
    assert (written.pass_ms, written.pass_with_ours_ms, written.tried) == (0.5, 1.0, 2)


def test_a_time_is_said_to_be_of_the_pass_that_was_timed(a100):
    """dq's is launched with what follows it, and no time is dq's alone."""
    searches = [Search("highest", kernel, 16, True) for kernel in ("forward", "dq")]
    found = begin(None, a100.device, False, (16, 4096))
    search(found, None, searches, lambda s: [OURS, FAST])
    with (console := Console(width=150)).capture() as shown:
        report(console, found, searches)
    lines = [line.split("│") for line in shown.get().splitlines() if "0.5000" in line]
    passes = {cells[3].strip(): cells[5].strip() for cells in lines}
    assert passes == {"forward": "forward", "dq": "backward"}
    for kernel, results in (("forward", 1), ("dq", 3), ("dkdv", 3)):
        candidate = Candidate(kernel, "highest", 16, Config(16, 16, 4, 1))
        assert len(tuning.prepare(candidate, 1, 32)()) == results


def test_a_tie_is_ours(a100):
    found = begin(None, a100.device, False, (16, 4096))
    search(found, None, [SEARCH], lambda s: [OURS, TIE])
    assert Config(*found.entries[0].config) == OURS and not a100.path.exists()


def test_it_goes_on_where_it_was(a100):
    searches = [Search("half", "dq", d, True) for d in (64, 128)]
    found = begin(a100.path, a100.device, False, (16, 4096))
    done, timed = search(found, a100.path, searches[:1], lambda s: [OURS, FAST])
    assert done and len(timed) == 2
    found = begin(a100.path, a100.device, False, (16, 4096))
    late = time.monotonic() - 1
    assert search(found, a100.path, searches, lambda s: [OURS], late) == (False, [])
    assert search(found, a100.path, searches, lambda s: [OURS])[1] == [OURS]
    assert [e.d for e in tuned.read(a100.path).entries] == [64, 128]
    # Other code, or another Triton, begins anew; so does --force.
    assert begin(a100.path, a100.device, True, (16, 4096)).entries == []
    changed = tuned.read(a100.path)
    changed.source_hash = "other"
    tuned.write(changed, a100.path)
    assert begin(a100.path, a100.device, False, (16, 4096)).entries == []


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda text: text[:-20], "can't be used"),
        (lambda text: text.replace("[64, 64, 4, 3", "[64, 64, 5, 3"), "can't be used"),
        (lambda text: text.replace('"3.7.1"', '"3.6.0"'), "timed with Triton 3.6.0"),
        (
            lambda text: text.replace(tuned.kernels_hash(), "0123456789abcdef"),
            "with kernels that have changed since: our tables are used",
        ),
    ],
    ids=["cut", "no configuration", "another Triton", "other kernels"],
)
def test_a_file_that_can_not_be_used_is_one_line_and_ours_stay(
    damage, said, a100, caplog
):
    found = begin(a100.path, a100.device, False, (16, 4096))
    found.software["triton"] = "3.7.1"
    search(found, a100.path, [SEARCH], lambda s: [OURS, FAST])
    a100.path.write_text(damage(a100.path.read_text()))
    a100.forget()
    ours = for_mask(CONFIGS["sm_80"]["half"]["dq"][64], True)
    for _ in range(2):
        assert choose("dq", 64, "half", True, 2**20, CUDA) == ours
    (line,) = caplog.messages
    assert said in line and "python tools/tune_flash.py" in line
    assert "\n" not in line and str(a100.path) in line
    assert tuned.digest(a100.device.slug, "3.7.1") is None


def test_what_is_timed_is_of_the_kernels_and_their_launches_and_of_no_table():
    reached = Reach(ROOT, frozenset(tuned.CHOICE))
    for place in tuned.LAUNCHES:
        reached.follow(place)
    whole, names = Reach(ROOT), {place[1] for place in reached.places}
    for place in tuned.LAUNCHES:
        whole.follow(place)
    assert {"dq_kernel", "add_product", "unit_of", "run_backward"} <= names
    tables = {place for place in whole.places if place[0].endswith(".tables")}
    assert ("systems.attention.triton.tables", "CONFIGS") in tables
    assert tables.isdisjoint(reached.places) and "in_use" not in names


def test_a_record_knows_the_file_by_its_digest(a100):
    assert tuned.digest(a100.device.slug, "3.7.1") is None
    a100.forget()
    found = begin(a100.path, a100.device, False, (16, 4096))
    found.software["triton"] = "3.7.1"
    found.entries.append(fastest(SEARCH, OURS, {FAST: 0.5}))
    tuned.write(found, a100.path)
    one = tuned.digest(a100.device.slug, "3.7.1")
    a100.forget()
    found.entries[0].pass_ms = 0.6
    tuned.write(found, a100.path)
    assert one and tuned.digest(a100.device.slug, "3.7.1") == one
    a100.forget()
    found.entries[0] = fastest(SEARCH, OURS, {OURS: 0.6})
    tuned.write(found, a100.path)
    assert tuned.digest(a100.device.slug, "3.7.1") not in (None, one)
    assert msgspec.json.decode(a100.path.read_bytes(), type=Tuned) == found


def test_a_file_without_configurations_is_none_to_a_record(a100):
    tuned.write(begin(a100.path, a100.device, False, (16, 4096)), a100.path)
    assert tuned.digest(a100.device.slug, triton.__version__) is None


def test_on_a_full_disk_what_was_timed_stays_and_nothing_else(a100, monkeypatch):
    found = begin(a100.path, a100.device, False, (16, 4096))
    tuned.write(found, a100.path)
    before = a100.path.read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    found.entries.append(fastest(SEARCH, OURS, {FAST: 0.5}))
    with pytest.raises(OSError, match="No space left"):
        tuned.write(found, a100.path)
    assert os.listdir(a100.path.parent) == [a100.path.name]
    assert a100.path.read_bytes() == before


@pytest.mark.parametrize("kernel", ["forward", "dq", "dkdv"])
def test_what_is_checked_is_what_is_timed(kernel, monkeypatch):
    """Also where one head's loops would be split on a large GPU."""
    asked = []
    monkeypatch.setattr(launches, "splits_for", lambda *_: asked.append(1) or 4)
    assert verdict(Candidate(kernel, "highest", 16, Config(16, 16, 4, 1))) == ""
    assert not asked


def test_a_gpu_whose_configurations_nobody_timed_says_so(a100, monkeypatch):
    said = kernels(CUDA)["triton"]
    assert "of the A100, compiled and not timed: python tools/tune_flash.py" in said
    found = begin(a100.path, a100.device, False, (16, 4096))
    search(found, a100.path, [SEARCH], lambda s: [OURS, FAST])
    a100.forget()
    said = kernels(CUDA)["triton"]
    assert said == "runs, with launch configurations of the A100, 1 of them timed here"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    a100.path.unlink()
    a100.forget()
    assert "timed" not in kernels(CUDA)["triton"]


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "error: configurations are timed on a GPU"),
        (
            ("--arithmetic", "fp8"),
            "error: --arithmetic fp8: is none of half, high, highest",
        ),
    ],
)
def test_what_it_can_not_do_is_one_line(options, said):
    line = [sys.executable, "tools/tune_flash.py", *options]
    done = subprocess.run(
        line,
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "120"},
        capture_output=True,
        text=True,
    )
    assert (
        done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    )


@pytest.fixture
def tuning_here(a100, monkeypatch):
    """As if this were an A100, with two cores; what is timed takes as long as its
    number of stages says.
    """
    monkeypatch.setattr(tune_flash, "find_gpu", lambda: a100.device)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 0))
    monkeypatch.setattr(tune_flash, "cores", lambda: 2)
    monkeypatch.setattr(tune_flash, "prepare", lambda c, heads, n: c.config.stages)
    monkeypatch.setattr(tune_flash, "milliseconds", float)
    before = signal.getsignal(signal.SIGTERM)
    yield a100
    signal.signal(signal.SIGTERM, before)


def stopped(capsys, **options) -> str:
    """The one line of a search for 64 and 128 that ends early."""
    with pytest.raises(SystemExit) as ended:
        tune_flash.main(["half"], [64, 128], ["dq"], **options)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    return line


def test_where_nothing_can_be_written_nothing_is_timed(tuning_here, capsys):
    tuning_here.path.mkdir()
    line = stopped(capsys)
    assert line.startswith("error: ") and str(tuning_here.path) in line


@pytest.mark.parametrize("option", ["heads", "n", "minutes"])
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf")])
def test_what_is_no_size_or_time_is_refused(tuning_here, capsys, option, value):
    said = f"error: --{option} must be above 0, not {value}"
    assert stopped(capsys, **{option: value}) == said


def dies(candidate: Candidate) -> str:
    """A compiler that the kernel kills where memory runs out."""
    if candidate.d == 128:
        os.kill(os.getpid(), signal.SIGKILL)
    return ""


def interrupts(candidate: Candidate) -> str:
    """Ctrl-C while compiling, which all processes of a terminal get."""
    if candidate.d == 128:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getppid(), signal.SIGINT)
        time.sleep(60)
    return ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("work", "said"),
    [(dies, "error: a process that compiles was killed"), (interrupts, "stopped")],
)
def test_where_compiling_ends_early_what_was_found_is_kept(
    tuning_here, monkeypatch, capfd, work, said
):
    monkeypatch.setattr(tune_flash, "verdict", work)
    started = time.monotonic()
    line = stopped(capfd)
    assert said in line and "the same command goes on" in line
    assert [entry.d for entry in tuned.read(tuning_here.path).entries] == [64, 64]
    assert time.monotonic() - started < 50
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "error: No space left on"),
        (torch.OutOfMemoryError("CUDA out of memory"), "error: 16 heads of 4096 rows"),
        (RuntimeError("bad\nlaunch"), "error: a candidate can't be timed: bad; "),
        (
            OutOfResources(300, 200, "registers"),
            "error: a candidate can't be timed: out of resource",
        ),
    ],
)
def test_where_timing_ends_early_it_is_one_line(
    tuning_here, monkeypatch, capsys, error, said
):
    def fail(call):
        raise error

    monkeypatch.setattr(tune_flash, "verdicts", lambda pool, these: ["" for _ in these])
    monkeypatch.setattr(tune_flash, "milliseconds", fail)
    assert stopped(capsys).startswith(said)


def test_what_was_timed_before_is_kept_until_something_else_is(
    tuning_here, monkeypatch, capsys
):
    """Whether by other code or begun anew; a start that is stopped before it has timed
    anything leaves nothing worth keeping.
    """
    a100 = tuning_here
    found = begin(a100.path, a100.device, False, (16, 4096))
    search(found, a100.path, [SEARCH], lambda s: [OURS, FAST])
    kept = a100.path.with_name(f"{a100.path.name}.bak")
    monkeypatch.setattr(tune_flash, "tune", lambda *_, **options: False)
    for _ in range(2):
        tune_flash.main(force=True)
        assert len(tuned.read(kept).entries) == 1
        assert tuned.read(a100.path).entries == []
    assert capsys.readouterr().out.count("is kept: ") == 1

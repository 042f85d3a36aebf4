"""The search for launch configurations: what it tries, and that a wrong result is never
a candidate.
"""

import os
import subprocess
import sys

import pytest
import torch
from rich.console import Console

from systems import ROOT
from systems.attention.triton.configs import CONFIGS, FEW_ROWS, Config, for_mask
from tools import tune_flash
from tools.tune_flash import KERNELS, Candidate, candidates, entry, verdict


@pytest.mark.parametrize("arithmetic", tune_flash.DTYPES)
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
        for d in (16, 32, 64, 128, 256):
            for arithmetic, by_kernel in CONFIGS["sm_90"].items():
                tried = {
                    candidate.config for candidate in candidates(kernel, arithmetic, d)
                }
                few = [tier.configs[kernel] for tier in FEW_ROWS["sm_90"][arithmetic]]
                assert {
                    for_mask(by_kernel[kernel][d], causal) for causal in (True, False)
                } <= tried
                assert {configs[d] for configs in few if d in configs} <= tried


def test_an_entry_is_printed_as_it_is_written():
    for config in (
        Config(64, 128, 4, 3),
        Config(64, 64, 4, 3, registers=128),
        Config(64, 64, 4, 3, ahead=True),
    ):
        assert eval(entry(config), {"Config": Config}) == config


def test_the_fastest_are_printed_also_where_two_are_as_fast(capsys):
    """Configurations have no order: one has a limit of registers, the other none."""
    fast, tie = Config(64, 64, 4, 3), Config(64, 64, 4, 3, registers=128)
    slow = Config(128, 64, 8, 2)
    times = [(0.5, slow), (0.25, fast), (0.25, tie)]
    tune_flash.report(Console(width=100), "half", times, show=2)
    printed = capsys.readouterr().out
    assert entry(slow) not in printed
    assert 0 < printed.index(entry(fast)) < printed.index(entry(tie))


@pytest.mark.parametrize("kernel", KERNELS)
def test_a_wrong_result_is_named(kernel, monkeypatch):
    monkeypatch.setattr(tune_flash, "SMALL", 80)
    candidate = Candidate(kernel, "half", 16, Config(32, 32, 4, 1))
    assert verdict(candidate, causal=True) == ""
    right = tune_flash.prepare

    def wrong(*arguments):
        *others, last = right(*arguments)()
        return lambda: (*others, 1.1 * last)

    monkeypatch.setattr(tune_flash, "prepare", wrong)
    assert verdict(candidate, causal=True).startswith("wrong: relative error 1.0e-01")


def test_a_tile_that_can_not_be_launched_says_why(monkeypatch):
    def refuse(*_):
        raise RuntimeError("out of shared memory\nand much more")

    monkeypatch.setattr(tune_flash, "prepare", refuse)
    assert (
        verdict(Candidate("dq", "half", 16, Config(32, 32, 4, 1)), True)
        == "RuntimeError: out of shared memory"
    )


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "error: tiles are searched on a GPU"),
        (("--arithmetic", "fp8"), "fp8 is none of half, high, highest"),
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

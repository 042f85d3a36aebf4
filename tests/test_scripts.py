"""The student's scripts run alone, stay short, and differ by few lines."""

import difflib
import re
import runpy
import sys
from contextlib import nullcontext
from unittest.mock import Mock

import pytest
import torch

from systems import ROOT
from systems.model import sizes, transformer
from tests.factories import read_record
from tools.render.spanning import scripts

SCRIPTS = sorted((ROOT / "docs/scripts").glob("*.py"))
SOURCES = [path.read_text("utf-8") for path in SCRIPTS]
LINE = re.compile(r"small  (forward  |backward |optimizer) +\d+\.\d\d ± \d+\.\d\d ms")


def run_script(monkeypatch, capsys, path, *arguments):
    """Run a script in this process with a tiny model; return its lines of output."""
    monkeypatch.setitem(sizes.SIZES, "small", sizes.ModelSize(32, 64, 2, 2))
    monkeypatch.setattr(sys, "argv", [str(path), *arguments])
    runpy.run_path(str(path), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def test_scripts_are_short():
    lengths = [len(source.splitlines()) for source in SOURCES]
    assert len(lengths) == 7
    assert max(lengths) <= 80
    assert sum(lengths) <= 486


@pytest.mark.parametrize(("old", "new"), [(0, 1), (0, 2), (1, 3), (3, 4)])
def test_each_step_changes_few_lines(old, new):
    lines = [scripts.MARK.sub("", SOURCES[i]).splitlines() for i in (old, new)]
    added = [d for d in difflib.ndiff(*lines) if d.startswith("+ ")]
    assert 0 < len(added) <= 30


@pytest.mark.parametrize("path", SCRIPTS[:4], ids=lambda path: path.stem)
def test_a_script_times_each_part_of_a_step(monkeypatch, capsys, path):
    # Without CUDA, NVTX raises. Afterwards, restore the attention that scripts replace.
    monkeypatch.setattr("torch.cuda.nvtx.range", nullcontext)
    name = "scaled_dot_product_attention"
    monkeypatch.setattr(transformer, name, getattr(transformer, name))
    options = "--size small --context 8 --batch 1 --warmup 0 --steps 2".split()
    lines = run_script(monkeypatch, capsys, path, *options)
    assert len(lines) == 3
    assert all(LINE.fullmatch(line) for line in lines)
    # The standard deviation of a single sample is undefined.
    with pytest.warns(UserWarning, match="std"):
        lines = run_script(monkeypatch, capsys, path, *options[:-1], "1")
    assert len(lines) == 3 and all(line.endswith("± nan ms") for line in lines)
    if path.stem in ("2_sizes", "4_autocast"):
        lines = run_script(monkeypatch, capsys, path, *options, "--no-optimizer")
        assert [line.split()[1] for line in lines] == ["forward", "backward"]


def test_plain_attention_is_timed(monkeypatch, capsys):
    options = ("--n", "16", "32", "--passes", "2", "--warmup", "1")
    lines = run_script(monkeypatch, capsys, SCRIPTS[5], *options)
    assert [line.split()[1] for line in lines] == ["tokens", "16", "32"]
    assert all(float(number) >= 0 for line in lines[1:] for number in line.split())


@pytest.mark.parametrize("script", [0, 1, 2, 3, 5])
def test_no_steps_are_a_usage_error(script, monkeypatch, capsys):
    name = "--passes" if script == 5 else "--steps"
    with pytest.raises(SystemExit):
        run_script(monkeypatch, capsys, SCRIPTS[script], name, "0")
    assert f"error: {name} must be at least 1\n" in capsys.readouterr().err


def test_script_prints_out_of_memory(monkeypatch, capsys):
    full = Mock(side_effect=torch.OutOfMemoryError)
    monkeypatch.setattr("systems.model.transformer.build_model", full)
    lines = run_script(monkeypatch, capsys, SCRIPTS[1], "--size", "small", "xl")
    assert lines == ["small  out of memory", "xl     out of memory"]


def run_on_cpu(monkeypatch, path, *arguments, cuda=None):
    """Run a script that needs a GPU as if its device were the CPU."""
    source = path.read_text("utf-8").replace('"cuda"', '"cpu"')
    source = source.replace("torch.cuda", "cuda")
    monkeypatch.setattr(sys, "argv", [str(path), *arguments])
    exec(source, {"__name__": "__main__", "cuda": cuda})


@pytest.mark.parametrize("only", [(), ("--forward-only",)])
def test_memory_script_saves_a_snapshot(only, monkeypatch, capsys):
    monkeypatch.setitem(sizes.SIZES, "small", sizes.ModelSize(32, 64, 2, 2))
    cuda = Mock(**{"max_memory_allocated.return_value": 2**29})
    options = ("--size", "small", "--context", "8", *only)
    run_on_cpu(monkeypatch, SCRIPTS[4], *options, cuda=cuda)
    name = "small-8-forward" if only else "small-8"
    line = f"small  peak 0.50 GiB, snapshot in {name}.pickle\n"
    assert capsys.readouterr().out == line
    recording = "memory._record_memory_history"
    reset, start, dump, stop, _ = [name for name, *_ in cuda.method_calls]
    assert (reset, start) == ("reset_peak_memory_stats", recording)
    assert (dump, stop) == ("memory._dump_snapshot", recording)


def test_flash_script_times_attention(monkeypatch, capsys):
    def time_call(function, return_mode):
        function()
        return 1.5

    triton = pytest.importorskip("triton")
    monkeypatch.setattr(triton.testing, "do_bench", time_call)
    run_on_cpu(monkeypatch, SCRIPTS[6], "--n", "16", "--d", "16")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[1] for line in lines] == ["name", "plain", "SDPA", "flash"]
    assert all(line.endswith("1.500     1.500     1.500") for line in lines[1:])


def test_pages_show_what_the_scripts_print():
    """Outputs shown on pages have the format of the scripts' print calls."""
    stems = ("end_to_end", "peak_memory", "attention", "flash_benchmarking")
    outputs = scripts.script_outputs({stem: [read_record(stem)] for stem in stems})
    assert [command.split()[0] for command in outputs] == [
        path.name for path in SCRIPTS if path.stem != "3_nvtx"
    ]
    size = "|".join(sizes.SIZES)
    step = LINE.pattern.replace("small  ", f"({size}) +", 1)
    peak = r"2\.7B +peak \d+\.\d\d GiB, snapshot in 2\.7B-512\.pickle"
    *steps, plain, flash = outputs.values()
    for line in (line for lines in steps for line in lines):
        assert re.fullmatch(f"{step}|{peak}|({size}) +out of memory", line), line
    for (head, *lines), source in ((plain, SOURCES[5]), (flash, SOURCES[6])):
        assert f'print("{head}")' in source
        assert {len(line) for line in lines} == {len(head.removesuffix("   (ms)"))}

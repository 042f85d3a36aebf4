"""The student's scripts run alone, stay short, and differ by few lines."""

import difflib
import re
import runpy
import sys
from unittest.mock import MagicMock, Mock

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
    """Run a script on the CPU with a tiny model; return its lines of output."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setitem(sizes.SIZES, "small", sizes.ModelSize(32, 64, 2, 2))
    monkeypatch.setattr(sys, "argv", [str(path), *arguments])
    runpy.run_path(str(path), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def test_scripts_are_short():
    lengths = [len(source.splitlines()) for source in SOURCES]
    assert len(lengths) == 7 and max(lengths) <= 80 and sum(lengths) <= 483


@pytest.mark.parametrize(("old", "new"), [(0, 1), (0, 2), (1, 3), (3, 4)])
def test_each_step_changes_few_lines(old, new):
    lines = [scripts.MARK.sub("", SOURCES[i]).splitlines() for i in (old, new)]
    added = [d for d in difflib.ndiff(*lines) if d.startswith("+ ")]
    assert 0 < len(added) <= 30


@pytest.mark.parametrize("path", SCRIPTS[:4], ids=lambda path: path.stem)
def test_a_script_times_each_part_of_a_step(monkeypatch, capsys, path):
    # Afterwards, restore the attention that scripts replace.
    name = "scaled_dot_product_attention"
    monkeypatch.setattr(transformer, name, getattr(transformer, name))
    run = run_on_cpu if path.stem == "3_nvtx" else run_script
    options = "--size small --context 8 --batch 1 --warmup 0 --steps 2".split()
    lines = run(monkeypatch, capsys, path, *options)
    assert len(lines) == 3 and all(LINE.fullmatch(line) for line in lines)
    if path.stem == "3_nvtx":
        # The course's model gives names; a softmax may need `dim`.
        monkeypatch.setattr(transformer, "softmax", lambda x, dim: x.softmax(dim))
        q, k, v = torch.randn(3, 2, 4, 8)
        replaced = transformer.scaled_dot_product_attention
        o = replaced(K=k, Q=q, V=v, mask=torch.ones(4, 4).tril() > 0)
        expected = torch.nn.functional.scaled_dot_product_attention
        torch.testing.assert_close(o, expected(q, k, v, is_causal=True))
    # The standard deviation of a single sample is undefined.
    lines = run(monkeypatch, capsys, path, *options[:-1], "1")
    single = r"small  \w+ +\d+\.\d\d ms"
    assert len(lines) == 3 and all(re.fullmatch(single, line) for line in lines)
    if path.stem in ("2_sizes", "4_autocast"):
        lines = run_script(monkeypatch, capsys, path, *options, "--no-optimizer")
        assert [line.split()[1] for line in lines] == ["forward", "backward"]


def test_plain_attention_is_timed(monkeypatch, capsys):
    options = ("--n", "16", "32", "--passes", "2", "--warmup", "1")
    lines = run_script(monkeypatch, capsys, SCRIPTS[5], *options)
    assert [line.split()[1] for line in lines] == ["tokens", "16", "32"]
    unknown_memory = r"( +\d+){2} +\d+\.\d\d +nan +\d+\.\d\d"
    assert all(re.fullmatch(unknown_memory, line) for line in lines[1:])


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_bad_numbers_and_no_gpu_are_usage_errors(path, monkeypatch, capsys):
    zeros = {"6_attention": ("d", "n", "batch", "passes"), "7_flash": ("n", "d")}
    names = zeros.get(path.stem, ("context", "batch", "steps"))
    bad = [f"--{name} 0" for name in names]
    bad += ["--d 257" if path.stem == "7_flash" else "--warmup -1"]
    needs_gpu = path.stem in ("3_nvtx", "5_memory", "7_flash")
    for options in bad + [""] * needs_gpu:
        with pytest.raises(SystemExit):
            run_script(monkeypatch, capsys, path, *options.split())
        limit = "--d 1 to 256" if path.stem == "7_flash" else "--warmup 0"
        fault = f"must be at least 1, {limit}" if options else "script needs a GPU"
        assert fault in capsys.readouterr().err


@pytest.mark.parametrize("kind", [torch.OutOfMemoryError, RuntimeError])
def test_script_prints_out_of_memory(kind, monkeypatch, capsys):
    for batch in (10**18, 10**20):
        options = ("--size=small", f"--batch={batch}")
        lines = run_script(monkeypatch, capsys, SCRIPTS[1], *options)
        assert lines == ["small  out of memory"]
    full = Mock(side_effect=kind("out of memory. Tried to allocate 2.50 GiB"))
    monkeypatch.setattr("systems.model.transformer.build_model", full)
    lines = run_script(monkeypatch, capsys, SCRIPTS[1], "--size", "small", "xl")
    assert lines == ["small  out of memory", "xl     out of memory"]
    with pytest.raises(SystemExit, match="2"):
        run_script(monkeypatch, capsys, SCRIPTS[0])
    assert "error: out of memory: --size, --context or" in capsys.readouterr().err
    full.side_effect = RuntimeError("an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal"):
        run_script(monkeypatch, capsys, SCRIPTS[1])


def run_on_cpu(monkeypatch, capsys, path, *arguments, cuda=None):
    """Run a script that needs a GPU as `run_script` does, with a mock as torch.cuda."""
    source = path.read_text("utf-8").replace('"cuda"', '"cpu"')
    source = source.replace("torch.cuda", "cuda")
    monkeypatch.setitem(sys.modules, "cuda", cuda := cuda or MagicMock())
    scope = {"__name__": "__main__", "cuda": cuda}
    monkeypatch.setattr("runpy.run_path", lambda *_, **__: exec(source, scope))
    return run_script(monkeypatch, capsys, path, *arguments)


@pytest.mark.parametrize("only", [(), ("--forward-only",)])
def test_memory_script_saves_a_snapshot(only, monkeypatch, capsys):
    cuda = Mock(**{"max_memory_allocated.return_value": 2**29})
    options = ("--size", "small", "--context", "8", *only)
    lines = run_on_cpu(monkeypatch, capsys, SCRIPTS[4], *options, cuda=cuda)
    name = "small-8-batch4-fp32-forward" if only else "small-8-batch4-fp32"
    assert lines == [f"small  peak 0.50 GiB, snapshot in {name}.pickle"]
    calls = [name.rpartition("_")[2] for name, *_ in cuda.method_calls]
    assert calls == "available stats history snapshot history allocated".split()


@pytest.mark.interpreted
def test_flash_script_times_attention(monkeypatch, capsys):
    triton = pytest.importorskip("triton")
    monkeypatch.setattr(triton.testing, "do_bench", lambda f, **_: (f(), 1.5)[1])
    lines = run_on_cpu(monkeypatch, capsys, SCRIPTS[6], "--n", "16", "--d", "16")
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
    peak = r"2\.7B +peak \d+\.\d\d GiB, snapshot in 2\.7B-512-batch4-fp32\.pickle"
    *steps, plain, flash = outputs.values()
    for line in (line for lines in steps for line in lines):
        assert re.fullmatch(f"{step}|{peak}|({size}) +out of memory", line), line
    for (head, *lines), source in ((plain, SOURCES[5]), (flash, SOURCES[6])):
        assert f'print("{head}")' in source
        assert {len(line) for line in lines} == {len(head.removesuffix("   (ms)"))}

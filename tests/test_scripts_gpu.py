"""On a GPU, the student's scripts and the experiments agree within 3 %."""

from argparse import Namespace
from runpy import run_path
from statistics import median

import pytest
import torch

from systems import ROOT
from systems.benchmarking import gpu_time, timing
from systems.benchmarking.peers import load_peer
from systems.benchmarking.workload import Workload, random_inputs
from systems.model import transformer

pytestmark = [pytest.mark.gpu, pytest.mark.alone]

SIZE, CONTEXT = "medium", 512
OPTIONS = dict(context=CONTEXT, batch=4, warmup=2, steps=2, no_optimizer=False)
PHASES = ("forward", "backward", "optimizer")


def load_script(name):
    return run_path(str(ROOT / f"docs/scripts/{name}.py"))["measure"].__globals__


def gpu_ms(step, *phases, **options):
    metrics = gpu_time.measure(step, "cuda", passes=5, **options)
    return {name: median(metrics[f"{name}_gpu_ms"]) for name in phases}


def script_ms(script, work, *phases):
    """Return the GPU time in ms of each phase that the script times in `work`."""
    time_ms = script["time_ms"]

    def step(phase):
        names = iter(phases)

        def time_phase_ms(*arguments):
            with phase(next(names)):
                return time_ms(*arguments)

        script["time_ms"] = time_phase_ms
        work()

    return gpu_ms(step, *phases)


SCRIPTS = ("1_clock", "2_sizes", "3_nvtx", "4_autocast")
CASES = [*((name, "fp32") for name in SCRIPTS), ("4_autocast", "bf16")]


@pytest.mark.parametrize(("name", "precision"), CASES)
def test_gpu_time_of_a_step_agrees_with_the_workload(name, precision, monkeypatch):
    eager = transformer.scaled_dot_product_attention
    script, steps = load_script(name), []
    used = script.get("annotated_attention", eager)
    monkeypatch.setattr(transformer, "scaled_dot_product_attention", used)
    time_step = script["time_step"]
    script["time_step"] = lambda *step: steps.append(step) or time_step(*step)
    script["measure"](SIZE, Namespace(**OPTIONS, precision=precision))
    found = script_ms(script, lambda: time_step(*steps[0]), *PHASES)
    monkeypatch.undo()
    work = Workload("cuda", SIZE, CONTEXT, "step", precision)
    clear = work.model.zero_grad
    timing.measure(work.step, warmup=2, repeats=1, device="cuda", between=clear)
    assert found == pytest.approx(gpu_ms(work.step, *PHASES, between=clear), rel=0.03)


@pytest.mark.parametrize("mode", ["forward", "step"])
def test_peak_memory_agrees_with_the_workload(mode, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    options = Namespace(**OPTIONS, precision="bf16", forward_only=mode == "forward")
    timing.empty_cache("cuda")  # Free models that earlier tests left in cycles.
    load_script("5_memory")["measure"](SIZE, options)
    found = float(capsys.readouterr().out.split()[2])
    name = f"{SIZE}-{CONTEXT}-batch4-bf16{'-forward' * (mode == 'forward')}.pickle"
    assert (tmp_path / name).exists()
    timing.empty_cache("cuda")
    work = Workload("cuda", SIZE, CONTEXT, mode, "bf16")
    steps = {"warmup": 2, "repeats": 2, "between": work.model.zero_grad}
    metrics = timing.measure(work.step, device="cuda", **steps)
    assert found == pytest.approx(metrics["peak_allocated_bytes"] / 2**30, rel=0.03)


def test_gpu_time_of_plain_attention_agrees():
    script, plain = load_script("6_attention"), transformer.scaled_dot_product_attention
    options = Namespace(batch=8, warmup=0, passes=1)
    found = script_ms(
        script, lambda: script["measure"](plain, 64, 4096, options), *PHASES[:2]
    )
    inputs = random_inputs((8, 1, 4096, 64), torch.float32, "cuda")
    step = gpu_time.make_attention_step(plain, *inputs)
    assert found == pytest.approx(gpu_ms(step, *PHASES[:2]), rel=0.03)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_do_bench_of_flash_attention_agrees(dtype, capsys):
    """At this length, launch overhead is less than 2 % of the time."""
    n, d = 65536, 64
    load_script("7_flash")["measure"](n, Namespace(d=d, dtype=dtype))
    inputs = random_inputs((1, 1, n, d), getattr(torch, dtype), "cuda")
    lines = capsys.readouterr().out.splitlines()
    for name, line in zip(("plain", "sdpa", "ours"), lines, strict=True):
        if name != "plain" or "out of memory" not in line:
            attend = load_peer(name, causal=True, n=n, device="cuda")
            harness = gpu_time.bench_passes(attend, *inputs)
            expected = [median(times) for times in harness.values()]
            found = [float(ms) for ms in line.split()[2:]]
            assert found == pytest.approx(expected, rel=0.03), name

"""Test profiles of training steps; on a CPU, operations stand in for kernels."""

import copy
import gzip
import json
from dataclasses import replace

import pytest
import torch

from systems.benchmarking import phases, timing
from systems.experiments import kernel_profile
from systems.experiments.kernel_profile import Config
from systems.formulas.fit import GIB, peak_bytes
from systems.formulas.memory_costs import Pass
from systems.model import transformer
from systems.model.sizes import SIZES, ModelSize
from systems.profiling import annotated_attention, nsys, torch_trace
from systems.records.outcome import measure_row
from tests.profiling.test_digest import FIRST, SECOND, kernel, span

CONFIG = Config("small", 6, batch=2, vocab=50, warmup=1, passes=2)


@pytest.fixture
def cpu_root(monkeypatch, tmp_path):
    """Run two tiny layers on the CPU, with operations instead of kernels."""
    monkeypatch.setitem(SIZES, "small", ModelSize(8, 16, 2, 2))
    monkeypatch.setattr(kernel_profile, "require_gpu", lambda: "cpu")
    monkeypatch.setattr(torch_trace, "GPU_CATEGORIES", {"cpu_op"})
    monkeypatch.setattr(kernel_profile, "ROOT", tmp_path)
    monkeypatch.setattr(kernel_profile, "TRACES", tmp_path / "traces")
    # Count these operations, but not `aten::matmul` and others that call them.
    kept = {f"aten::{name}" for name in "mm bmm exp amax max sub sum div".split()}
    read = torch_trace.read_trace

    def keep_operations(path, marks):
        return [kernel for kernel in read(path, marks) if kernel.name in kept]

    monkeypatch.setattr(torch_trace, "read_trace", keep_operations)
    return tmp_path


def test_annotated_attention_is_bitwise_equal():
    q, k, v = (x.requires_grad_() for x in torch.randn(3, 2, 3, 7, 4))
    implementations = transformer.eager_attention, annotated_attention.causal_attention
    outputs = [attention(q, k, v) for attention in implementations]
    assert torch.equal(*outputs)
    ours, theirs = (torch.autograd.grad(o.square().sum(), (q, k, v)) for o in outputs)
    assert all(map(torch.equal, ours, theirs))


def test_copy_of_an_annotated_model_uses_its_weights():
    original = transformer.BasicsTransformerLM(20, 8, 8, 2, 2, 16)
    kernel_profile.mark_layers(original)
    copied = copy.deepcopy(original)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.mul_(0.5)
    expected = transformer.BasicsTransformerLM(20, 8, 8, 2, 2, 16)
    expected.load_state_dict(copied.state_dict())
    ids = torch.arange(8)[None]
    assert torch.equal(copied(ids), expected(ids))


@pytest.mark.parametrize("mode", kernel_profile.MODES)
def test_profile_counts_the_kernels_of_each_mode(cpu_root, mode):
    metrics = kernel_profile.run(replace(CONFIG, mode=mode))
    for name in ["forward"] if mode == "forward" else phases.PHASES:
        # Times without a profiler belong to `end_to_end`.
        assert f"{name}_ms" not in metrics and len(metrics[f"profiled_{name}_ms"]) == 2
    assert (metrics["profiler"], metrics["passes"]) == ("torch", 2)
    assert len(metrics["thousand_marks_ms"]) == 5
    rows = metrics["kernels"]
    calls = {(row["phase"], row["name"]): row["calls"] for row in rows}
    # Each layer has four projections and three feed-forward matrices, and there is the
    # head. `einsum` runs each matmul as a bmm with a batch of one.
    assert calls["forward", "aten::bmm"] == 2 * 7 + 1
    for part in ("scores", "output"):
        assert calls[f"forward/attention {part}", "aten::bmm"] == 2
    part = "forward/attention softmax"
    softmax = {row["name"]: row["category"] for row in rows if row["phase"] == part}
    assert softmax == {f"aten::{x}": "softmax" for x in "max sub exp sum div".split()}
    if mode == "step":
        assert calls["backward", "aten::bmm"] == 2 * (2 * (7 + 2) + 1)
        kinds = {row["category"] for row in rows if row["phase"] == "optimizer"}
        assert kinds <= {"optimizer"}


def test_kernel_rows_add_up_to_busy_time(cpu_root):
    metrics = kernel_profile.run(CONFIG)
    rows = metrics["kernels"]
    busy = [name for name in metrics if name.endswith("_gpu_busy_ms")]
    total = sum(sum(metrics[name]) for name in busy) / CONFIG.passes
    assert sum(row["total_ms"] for row in rows) == pytest.approx(total, rel=1e-3)
    assert all(row["phase"] for row in rows)
    # Matmul time by operation equals matmul time by name.
    named = [r["total_ms"] for r in rows if r["name"] in ("aten::mm", "aten::bmm")]
    launched = sum(metrics["matmul_ops_ms"]) / CONFIG.passes
    assert launched == pytest.approx(sum(named), rel=1e-3)
    json.dumps(metrics, allow_nan=False)


def test_keep_traces_writes_a_trace(cpu_root):
    kernel_profile.run(CONFIG)
    assert not (cpu_root / "traces").exists()
    kernel_profile.run(replace(CONFIG, keep_traces=True, mode="forward"))
    path = cpu_root / "traces" / "kernel_profile-small-6-batch2-forward-fp32.json.gz"
    assert json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]


def fake_nsys(monkeypatch, tmp_path, row, kernels=()):
    asked = []

    def fake_profile(work, report, cwd):
        asked.append((work, report, cwd))
        text = f"Capture range started.\n{json.dumps(row) if row else ''}\nGenerated:"
        return text, report.with_suffix(".sqlite")

    monkeypatch.setattr(nsys, "profile", fake_profile)
    monkeypatch.setattr(nsys, "read_export", lambda path, marks: list(kernels))
    return asked


def test_nsys_profiles_a_child_process(cpu_root, monkeypatch):
    forward = span("forward", 60, 90)
    starts = (0, FIRST), (100, SECOND)
    kernels = [kernel("gemm", at, at + 10, step, forward) for at, step in starts]
    found = {"forward_ms": [1.0, 2.0], "passes": 2}
    row = {"config": {}, "status": "ok", "metrics": found, "reason": None}
    asked, freed = fake_nsys(monkeypatch, cpu_root, row, kernels), []
    monkeypatch.setattr(timing, "empty_cache", freed.append)
    metrics = kernel_profile.run(replace(CONFIG, mode="forward", profiler="nsys"))
    ((work, report, cwd),) = asked
    assert work[1:3] == ["-m", "systems.experiments.kernel_profile"] and cwd == cpu_root
    assert work[-1] == "--json" and work[work.index("--passes") + 1] == "2"
    assert work[work.index("--profiler") + 1] == "capture"
    assert metrics["profiler"] == "nsys"
    assert metrics["profiled_forward_ms"] == [1.0, 2.0]
    kept = "traces/kernel_profile-small-6-batch2-forward-fp32.nsys-rep"
    assert metrics["report"] == str(report.relative_to(cpu_root)) == kept
    assert metrics["kernels"][0]["calls"] == 1 and freed == ["cpu"]
    assert "matmul_ops_ms" not in metrics


def test_errors_of_the_profiled_process_are_reported(cpu_root, monkeypatch):
    config = replace(CONFIG, mode="forward", profiler="nsys")
    reason = "CUDA out of memory"
    row = {"config": {}, "status": "out_of_memory", "metrics": {}, "reason": reason}
    fake_nsys(monkeypatch, cpu_root, row)
    row = measure_row(config, kernel_profile.run)
    assert (row.status, row.reason) == ("out_of_memory", reason)
    fake_nsys(monkeypatch, cpu_root, None)
    with pytest.raises(nsys.NsysError, match="printed no row: run it by itself with"):
        kernel_profile.run(config)


def test_capture_mode_starts_and_stops_the_profiler(cpu_root, monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda.profiler, "start", lambda: calls.append("start"))
    monkeypatch.setattr(torch.cuda.profiler, "stop", lambda: calls.append("stop"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("wait"))
    metrics = kernel_profile.run(replace(CONFIG, profiler="capture"))
    assert calls == ["start", "wait", "stop"]
    lengths = {name: len(x) for name, x in metrics.items() if name.endswith("_ms")}
    assert lengths == {f"{name}_ms": 2 for name in phases.PHASES}
    assert "kernels" not in metrics


def test_passes_are_also_alone_where_a_step_exceeds_40_gib():
    for c in kernel_profile.configs()[:40]:
        large = peak_bytes(Pass(c.size, c.context, c.mode, c.precision)) > 40 * GIB
        alone = replace(c, mode="forward") in kernel_profile.configs()
        assert alone == (large or (c.context, c.precision) == (512, "fp32"))

"""Tests that need a GPU: launch configurations, long tensors, repeats, compilers.

Run `pytest -m "gpu and not alone" -n 8`, then `pytest -m "gpu and alone"`.
"""

import gc
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

from systems import ROOT
from systems.attention import (
    FlashAttentionPyTorch,
    FlashAttentionTriton,
    flash_attention,
    prepared,
)
from systems.attention.hopper import launches as hopper
from systems.attention.hopper import one_pass_launches, schedule
from systems.attention.triton import launches
from systems.attention.triton.chooser import select_by_mask
from systems.attention.triton.launches import launch_backward, launch_forward
from systems.attention.triton.primitives import INTERPRETED
from systems.attention.triton.tables import CONFIGS, FEW_ROWS
from tests.attention import checks
from tests.needed import run_python

pytestmark = pytest.mark.gpu

LENGTHS = [1, 17, 63, 64, 97, 128, 130, 191, 257, 1000, 4096]
PAIRS = [(1, 1000), (1000, 1), (65, 191), (191, 65), (128, 4096), (1000, 130)]
# Warnings of compilers are not about this project.
COMPILED = pytest.mark.filterwarnings("ignore")
MASKS = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])


def drop_duplicates(tables: dict[str, Any]) -> dict[str, Any]:
    """Return the tables by GPU; of equal tables, keep only the first."""
    found: dict[str, Any] = {}
    for arch, table in tables.items():
        if table not in found.values():
            found[arch] = table
    return found


# Every configuration by (GPU, arithmetic, head dimension): the three kernels of one
# entry are checked together. Where few rows have no entry, the general one applies.
ENTRIES = {
    (arch, kind, d): {name: by_d[d] for name, by_d in passes.items()}
    for arch, kinds in drop_duplicates(CONFIGS).items()
    for kind, passes in kinds.items()
    for d in passes["forward"]
} | {
    (f"{arch} {few.most_rows} rows", kind, d): {
        name: by_d[d] if d in by_d else CONFIGS[arch][kind][name][d]
        for name, by_d in few.configs.items()
    }
    for arch, kinds in drop_duplicates(FEW_ROWS).items()
    for kind, tiers in kinds.items()
    for few in tiers
    for d in sorted({d for by_d in few.configs.values() for d in by_d})
}


@MASKS
@pytest.mark.parametrize("d", checks.HEAD_DIMS)
@pytest.mark.parametrize("dtype", checks.DTYPES, ids=str)
def test_triton_kernels_are_accurate_at_every_length(dtype, d, causal):
    for n_q, n_k in [*((n, n) for n in LENGTHS), *PAIRS]:
        inputs = checks.make_inputs(n_q, n_k, d, dtype, "cuda", lead=(2,))
        checks.check_result(FlashAttentionTriton, inputs, causal)


@MASKS
@pytest.mark.parametrize(("gpu", "kind", "d"), ENTRIES, ids=str)
def test_every_launch_configuration_is_accurate(set_precision, gpu, kind, d, causal):
    configs = {
        name: select_by_mask(config, causal)
        for name, config in ENTRIES[gpu, kind, d].items()
    }
    # Both 16-bit dtypes use the same entries, so test one with each mask.
    half = torch.bfloat16 if causal else torch.float16
    dtype = half if kind == "half" else torch.float32
    set_precision("high" if kind == "high" else "highest")
    lengths = [(512, 512, d), (333, 461, d), (333, 461, d - 3)][: 3 if causal else 2]
    for n_q, n_k, head in lengths:
        q, k, v, do = inputs = checks.make_inputs(
            n_q, n_k, head, dtype, "cuda", lead=(2,)
        )
        options = causal, head**-0.5
        o, lse = launch_forward(q, k, v, *options, config=configs["forward"])
        backward = {f"{name}_config": configs[name] for name in ("dkdv", "dq")}
        outputs = o, lse, *launch_backward(do, q, k, v, o, lse, *options, **backward)
        checks.check_against_reference(outputs, *inputs, causal, split=kind == "high")


@COMPILED
@MASKS
@pytest.mark.parametrize("dtype", checks.DTYPES, ids=str)
def test_compiled_backward_of_pytorch_tiles_is_accurate(dtype, causal):
    for n_q, n_k in ((128, 128), (257, 97)):
        inputs = checks.make_inputs(n_q, n_k, 64, dtype, "cuda", lead=(2,))
        checks.check_result(FlashAttentionPyTorch, inputs, causal)


@MASKS
@pytest.mark.parametrize("dtype", checks.DTYPES, ids=str)
def test_two_hundred_calls_are_bitwise_equal(dtype, causal, monkeypatch):
    """Run Triton kernels on many heads, and on one head, whose loops are split."""
    used = []
    output_for = launches.allocate_output
    monkeypatch.setattr(
        launches,
        "allocate_output",
        lambda x, splits: used.append(splits) or output_for(x, splits),
    )
    for n, lead, lead_k in [(1000, (4, 8), (4, 2)), (2048, (1,), (1,))]:
        inputs = checks.make_inputs(n, n, 64, dtype, "cuda", lead=lead, lead_k=lead_k)
        first = checks.run_class(FlashAttentionTriton, *inputs, causal)
        for _ in range(200):
            again = checks.run_class(FlashAttentionTriton, *inputs, causal)
            for name in checks.NAMES:
                assert torch.equal(first[name], again[name]), (name, n)
    assert max(used) > 1


@MASKS
def test_offsets_beyond_two_to_the_31_reach_the_right_rows(causal):
    """The last head of each long tensor lies beyond 2³¹ elements."""
    heads, n, d = 2**31 // (4096 * 128) + 2, 4096, 128
    long = [
        torch.empty(heads, n, d, dtype=torch.bfloat16, device="cuda").normal_()
        for _ in range(4)
    ]
    assert long[0].numel() > 2**31
    alone = [x[-1:].clone() for x in long]
    actual = checks.run_class(FlashAttentionTriton, *long, causal)
    assert_near({name: x[-1:] for name, x in actual.items()}, alone, causal)


def assert_near(actual, inputs, causal: bool) -> None:
    """Check that `actual` agrees within 1 % with attention of these inputs."""
    expected = checks.run_class(FlashAttentionTriton, *inputs, causal)
    for name, x in expected.items():
        close = {"rtol": 0.01, "atol": 0.01, "msg": name}
        torch.testing.assert_close(actual[name], x, **close)


def test_maximum_number_of_rows_gives_exact_results():
    """Test one key with all the weight, and 2³⁰ keys with equal weights."""
    n = 2**30
    one, many = (
        torch.ones(1, rows, 1, device="cuda", dtype=torch.bfloat16) for rows in (1, n)
    )
    do = torch.zeros_like(many)
    do[:, :: n - 1] = 1
    found = checks.run_class(FlashAttentionTriton, many, one, 3 * one, do, False)
    assert (found["o"] == 3).all() and (found["dq"] == 0).all()
    assert found["dk"] == 0 and found["dv"] == 2
    del found
    do.zero_()
    found = checks.run_class(FlashAttentionTriton, one, many, do, one, False)
    assert found["o"] == 0 and found["dq"] == 0
    assert (found["dk"] == 0).all() and (found["dv"] == 2.0**-30).all()


@MASKS
def test_large_row_strides_are_supported(causal):
    n, d, stride = 80, 16, 2**25
    memory = torch.empty(n * stride, dtype=torch.bfloat16, device="cuda")
    memory.fill_(float("nan"))
    inputs = checks.make_inputs(n, n, d, torch.bfloat16, "cuda")
    strides = n * stride, stride, 1
    views = [memory.as_strided((1, n, d), strides, 64 * i) for i in range(4)]
    for view, x in zip(views, inputs, strict=True):
        view.copy_(x)
    assert_near(checks.run_class(FlashAttentionTriton, *views, causal), inputs, causal)


def test_heads_may_exceed_the_limit_of_a_grid_axis():
    """CUDA limits the second and third axis of a grid to 65,535."""
    inputs = checks.make_inputs(16, 16, 16, torch.bfloat16, "cuda", lead=(70_000,))
    checks.check_result(FlashAttentionTriton, inputs, True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_memory_is_linear_in_the_length(dtype):
    def peak_bytes(n: int) -> int:
        # Free tensors of earlier tests first.
        gc.collect()
        held = torch.cuda.memory_allocated()
        inputs = checks.make_inputs(n, n, 64, dtype, "cuda", lead=(1, 4))
        torch.cuda.reset_peak_memory_stats()
        run_both_passes(*inputs)
        return torch.cuda.max_memory_allocated() - held

    peak_bytes(1024)
    assert peak_bytes(16384) / peak_bytes(8192) <= 2.1


@COMPILED
def test_gradients_accumulate_in_the_leaderboard_test_function():
    """The output gradient has stride zero, and gradients accumulate over calls."""
    torch.compiler.reset()
    q, k, v, _ = checks.make_inputs(512, 512, 64, torch.bfloat16, "cuda", lead=(16,))
    for x in (q, k, v):
        x.requires_grad_()
    flash = torch.compile(FlashAttentionTriton.apply)
    for _ in range(2):
        flash(q, k, v, True).sum().backward()
    do = torch.ones((), device="cuda", dtype=q.dtype).expand_as(q)
    one = checks.run_class(FlashAttentionTriton, q, k, v, do, True)
    for x, name in ((q, "dq"), (k, "dk"), (v, "dv")):
        close = {"rtol": 0.02, "atol": 0.02, "msg": name}
        torch.testing.assert_close(x.grad, 2 * one[name], **close)


@COMPILED
def test_lengths_are_dynamic_under_the_default_compiler():
    torch.compiler.reset()

    def attend(q, k, v):
        return flash_attention(q * 2, k, v, causal=True).cos()

    compiled = torch.compile(attend, fullgraph=True, dynamic=True)
    for n in (200, 333):
        q, k, v, do = checks.make_inputs(n, n, 64, torch.bfloat16, "cuda", lead=(2, 4))
        leaves = tuple(x.requires_grad_() for x in (q, k, v))
        expected = torch.autograd.grad(attend(*leaves), leaves, do)
        for ours, theirs in zip(
            torch.autograd.grad(compiled(*leaves), leaves, do), expected, strict=True
        ):
            torch.testing.assert_close(ours, theirs, rtol=0.02, atol=0.02)


def run_both_passes(q, k, v, do):
    """Return o and the gradients of the public function."""
    leaves = tuple(x.detach().requires_grad_() for x in (q, k, v))
    o = flash_attention(*leaves, causal=True)
    return o.detach(), *torch.autograd.grad(o, leaves, do)


def forget_plans():
    """Empty the caches of launches, and overwrite the memory that they free."""
    for cached in (*PLANS, schedule.make_schedule):
        cached.cache_clear()
    tuple(map(torch.Tensor.cuda, 4 * [torch.zeros(2**i) for i in range(7, 16)]))


# --8<-- [start:graph]
def capture_graph(step):
    """Return a CUDA graph of `step` and the tensors that its replay writes."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        # The first call compiles, which can't be captured.
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    return graph, results


# --8<-- [end:graph]


@pytest.mark.parametrize(
    ("dtype", "lead", "n"),
    [
        (torch.bfloat16, (2, 4), 333),
        # One head: loops are split.
        (torch.bfloat16, (1, 1), 4096),
        # On Hopper, a separate kernel splits float32 into limbs.
        (torch.float32, (4, 8), 512),
        # A Hopper GPU runs the Hopper kernels here, with the one-pass backward.
        (torch.bfloat16, (4, 16), 2048),
    ],
    ids=str,
)
def test_cuda_graph_of_both_passes_equals_eager_mode(dtype, lead, n):
    tensors = checks.make_inputs(n, n, 64, dtype, "cuda", lead=lead)
    graph, results = capture_graph(lambda: run_both_passes(*tensors))
    for seed in (1, 2):
        others = checks.make_inputs(n, n, 64, dtype, "cuda", lead=lead, seed=seed)
        for x, other in zip(tensors, others, strict=True):
            x.copy_(other)
        forget_plans()
        graph.replay()
        assert all(map(torch.equal, results, run_both_passes(*tensors))), seed


@COMPILED
@pytest.mark.parametrize(("lead", "n"), [((2, 4), 256), ((1, 16), 4096)], ids=str)
def test_compiler_captures_a_cuda_graph(lead, n):
    """`mode="reduce-overhead"` warms up, then captures a graph, then replays it."""
    forget_plans()
    torch.compiler.reset()
    counters.clear()

    def attend(q, k, v):
        return flash_attention(q, k, v, causal=True)

    compiled = torch.compile(attend, fullgraph=True, mode="reduce-overhead")
    for seed in range(4):
        q, k, v, do = checks.make_inputs(
            n, n, 64, torch.bfloat16, "cuda", lead=lead, seed=seed
        )
        leaves = tuple(x.requires_grad_() for x in (q, k, v))
        o, expected = compiled(*leaves), attend(*leaves)
        ours = o, *checks.gradients(o, leaves, do)
        assert all(
            map(torch.equal, ours, (expected, *checks.gradients(expected, leaves, do)))
        )
    assert counters["inductor"]["cudagraph_skips"] == 0


# Cached functions whose launches depend only on the layouts of the inputs.
PLANS = (
    launches.forward_launches,
    launches.backward_launches,
    prepared.prepare_call_cached,
    hopper.plan_forward,
    hopper.plan_two_passes,
    one_pass_launches.plan_one_pass,
)
# Shapes with split loops, with a ragged length, and for the Hopper kernels.
SHAPES = [(1, 2, 1024, 64), (2, 3, 333, 80), (1, 16, 4096, 64), (1, 16, 4096, 128)]


@pytest.mark.parametrize("known", [False, True], ids=["first calls", "later calls"])
def test_concurrent_streams_equal_a_single_thread(known):
    inputs = [
        checks.make_inputs(n, n, d, torch.bfloat16, "cuda", lead=(b, h))
        for b, h, n, d in SHAPES
    ]

    def run_on_stream(stream):
        with torch.cuda.stream(stream):
            found = [run_both_passes(*x) for _ in range(5) for x in inputs]
        stream.synchronize()
        return found

    for cached in PLANS:
        cached.cache_clear()
    expected = [run_both_passes(*x) for x in inputs] if known else []
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(8)]
    with ThreadPoolExecutor(len(streams)) as pool:
        found = [results for of in pool.map(run_on_stream, streams) for results in of]
    expected = expected or [run_both_passes(*x) for x in inputs]
    for i, results in enumerate(found):
        assert all(map(torch.equal, results, expected[i % len(inputs)])), i


def test_call_waits_for_work_on_its_side_stream():
    q, k, v, _ = checks.make_inputs(1024, 1024, 64, torch.bfloat16, "cuda", lead=(1, 4))
    expected = flash_attention(q, k, v, causal=True)
    side, late = torch.cuda.Stream(), torch.zeros_like(q)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(10**8)
        late.copy_(q)
        o = flash_attention(late, k, v, causal=True)
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(o, expected)


def test_cpu_tensors_are_rejected_on_a_gpu_machine():
    x = torch.zeros(1, 8, 16)
    with pytest.raises(ValueError, match="q must be on a CUDA device, got cpu"):
        flash_attention(x, x, x)
    with pytest.raises(ValueError, match="k must be on the device of q, cuda:0, got"):
        flash_attention(x.cuda(), x, x)
    assert not INTERPRETED.value


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_kernels_run_on_the_gpu_of_the_tensors():
    inputs = checks.make_inputs(97, 97, 64, torch.bfloat16, "cuda:1")
    assert torch.cuda.current_device() == 0
    checks.check_result(FlashAttentionTriton, inputs, True)


FIRST_CALL = """
import sys, time
import torch
n, d, dtype = int(sys.argv[1]), int(sys.argv[2]), getattr(torch, sys.argv[3])
options = dict(device="cuda", dtype=dtype, requires_grad=True)
q, k, v = (torch.randn(1, 16, n, d, **options) for _ in range(3))
do = torch.randn_like(q)
torch.cuda.synchronize()
times = [time.perf_counter()]
from systems.attention import flash_attention
o = flash_attention(q, k, v, causal=True)
torch.cuda.synchronize()
times.append(time.perf_counter())
o.backward(do)
torch.cuda.synchronize()
times.append(time.perf_counter())
print(*(after - before for before, after in zip(times, times[1:])))
"""
MOST_SECONDS = 15


# Run alone, because other tests' compilers would use its cores.
@pytest.mark.alone
# Cases: both backends on Hopper, and the slowest of the graded configurations.
@pytest.mark.parametrize(
    ("dtype", "d", "n"),
    [("bfloat16", 128, 128), ("bfloat16", 128, 4096), ("float32", 128, 4096)],
)
def test_first_call_compiles_within_a_time_limit(dtype, d, n, tmp_path):
    environment = os.environ | {"TRITON_CACHE_DIR": str(tmp_path)}
    options = {"env": environment, "timeout": 120}
    done = run_python("-c", FIRST_CALL, n, d, dtype, **options)
    assert done.returncode == 0, done.stderr
    # The first call also imports Triton.
    forward, backward = map(float, done.stdout.split())
    print(f"{dtype}, d {d}, N {n}: first calls {forward:.1f} s, {backward:.1f} s")
    assert any(tmp_path.rglob("*.cubin")) and max(forward, backward) < MOST_SECONDS


SANITIZER = shutil.which(
    "compute-sanitizer", path=f"{os.environ.get('PATH', '')}:/usr/local/cuda/bin"
)
# Triton 3.8 and later query an attribute that only newer drivers know; the error is
# harmless.
TOOLS = {"memcheck": ("--report-api-errors", "no"), "racecheck": ()}
SMALL = """
import torch
from systems.attention import flash_attention
from systems.weighted_sum import weighted_sum
for causal in (False, True):
    for dtype in (torch.float32, torch.bfloat16):
        q = torch.randn(1, 2, 70, 24, device="cuda", dtype=dtype, requires_grad=True)
        k = torch.randn(1, 1, 97, 24, device="cuda", dtype=dtype, requires_grad=True)
        flash_attention(q, k, k, causal=causal).sum().backward()
weight = torch.randn(24, device="cuda", dtype=dtype, requires_grad=True)
weighted_sum(q, weight).sum().backward()
torch.cuda.synchronize()
"""


@pytest.mark.skipif(SANITIZER is None, reason="compute-sanitizer is not installed")
@pytest.mark.parametrize("tool", TOOLS)
def test_compute_sanitizer_finds_no_errors(tool):
    assert SANITIZER is not None
    options = "--tool", tool, *TOOLS[tool], "--error-exitcode", "9"
    command = [SANITIZER, *options, sys.executable, "-c", SMALL]
    # Without this, allocations are parts of large blocks, so stray accesses would be
    # missed.
    environment = os.environ | {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    piped = {"capture_output": True, "text": True}
    done = subprocess.run(command, cwd=ROOT, env=environment, **piped)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

"""Test the experiments: grids, command lines, phases and rows."""

import gc
import json
import sys
import weakref
from collections.abc import Callable
from dataclasses import asdict, astuple, is_dataclass, replace
from importlib import import_module
from itertools import product
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch._dynamo.utils import counters

from systems import ROOT
from systems.benchmarking import compiling, gpu_time, timing, workload
from systems.experiments import (
    STEMS,
    attention,
    end_to_end,
    flash_ablation,
    flash_accuracy,
    flash_benchmarking,
    flash_leaderboard,
    flash_peers,
    model_attention,
    warmup,
)
from systems.experiments import compile as compile_experiment
from systems.model import transformer as model_module
from systems.model.sizes import SIZES, TABLE_1, ModelSize
from systems.records import store
from systems.records.outcome import measure_row, out_of_memory_reason
from systems.records.record import Row
from systems.running import command, groups, precompile
from systems.running.command import config_options
from tests.attention.checks import make_inputs, run_reference
from tests.factories import RESULTS
from tests.needed import compiles_cpp
from tools.render.load import is_fresh


def run_command(capsys, monkeypatch, of, *options: str) -> tuple[int, str, str]:
    """Run an experiment's command; return exit code, output and errors."""
    monkeypatch.setattr(sys, "argv", ["experiment", *options])
    text = "What it does.\n\nAn example."
    monkeypatch.setattr(sys.modules["__main__"], "__doc__", text, raising=False)
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        command.main(of.Config, of.run)
    return ended.value.code, *capsys.readouterr()


def make_stem(run) -> SimpleNamespace:
    """Return a stand-in for the module `end_to_end` with this `run`."""
    return SimpleNamespace(Config=end_to_end.Config, run=run)


def compiler_error_row(error: Callable[[], Exception]):
    """Return the row of a configuration whose compiler raises this error."""

    def backend(graph, inputs):
        raise error()

    def run(config):
        torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
        return {}

    return measure_row(end_to_end.Config(), run)


@pytest.mark.parametrize("stem", STEMS)
def test_experiment_defines_what_tools_need(stem):
    entry = STEMS[stem]
    assert entry.module == f"systems.experiments.{stem}"
    module = import_module(entry.module)
    assert is_dataclass(module.Config) and module.Config.__dataclass_params__.frozen
    assert callable(module.run) and module.PROTOCOL and module.__doc__
    assert {*entry.full, *entry.quick} <= {"cuda", "cpu", "meta"}
    names = map(precompile.implementation_or_execution, module.configs())
    assert {*entry.precompiled} <= {*names}


@pytest.mark.parametrize("stem", STEMS)
def test_grids_have_no_duplicates_and_equal_the_record(stem):
    configs = import_module(STEMS[stem].module).configs
    full, quick = configs(), configs(quick=True)
    assert len(full) == len(set(full)) > len(quick) == len(set(quick)) > 0
    for record in map(store.read, RESULTS.glob(f"*/{stem}.json")):
        # A stale record may lack fields that were added since.
        if record.kind == "measured" and is_fresh(record):
            assert [row.config for row in record.rows] == [asdict(c) for c in full]


# Settings that the assignment asks for, by fields of the configuration.
CONTEXTS, HEAD_DIMS = (128, 256, 512, 1024), (16, 32, 64, 128)
ASKED = {
    ("end_to_end", "size context precision warmup steps batch"): product(
        TABLE_1, CONTEXTS, ("fp32", "bf16"), (5,), (10,), (4,)
    ),
    ("warmup", "size context warmup"): product(("small",), (128,), (0, 1, 2, 5)),
    ("attention", "d n passes batch"): product(
        HEAD_DIMS, (256, 1024, 4096, 8192, 16384), (100,), (8,)
    ),
    ("kernel_profile", "size context precision"): product(
        TABLE_1, CONTEXTS, ("fp32", "bf16")
    ),
    ("flash_benchmarking", "implementation dtype d n"): product(
        ("ours", "plain"), ("bf16", "fp32"), HEAD_DIMS, (2**p for p in range(7, 17))
    ),
}


@pytest.mark.parametrize(("stem", "fields"), ASKED)
def test_grid_contains_the_assignment_s_cells(stem, fields):
    configs = import_module(STEMS[stem].module).configs()
    found = {tuple(getattr(c, name) for name in fields.split()) for c in configs}
    assert set(ASKED[stem, fields]) <= found


def test_stems_list_all_modules_and_leaderboard_settings_are_right():
    modules = (ROOT / "systems" / "experiments").glob("[!_]*.py")
    assert sorted(STEMS) == sorted(path.stem for path in modules)
    ceiling, *implementations = flash_leaderboard.configs()
    assert ceiling.implementation == "ceiling"
    (asked,) = groups.make_groups(flash_leaderboard, implementations)
    expected = flash_leaderboard.Config("ours", 1000, 10_000, heads=16, n=16384, d=64)
    assert asked[0] == expected


@pytest.mark.parametrize("stem", STEMS)
def test_configurations_round_trip_through_options(stem, capsys, monkeypatch):
    module = import_module(STEMS[stem].module)
    ends = *module.configs()[::7], *module.configs()[-3:], *module.configs(quick=True)
    for config in {*ends}:
        seen = []

        def run(config, seen=seen):
            seen.append(config)
            return {"count": 1}

        monkeypatch.setattr(module, "run", run)
        options = *config_options(config), "--json"
        code, out, err = run_command(capsys, monkeypatch, module, *options)
        assert (code, err) == (0, "")
        assert seen == [config] and type(seen[0]) is type(config)
        assert Row(**json.loads(out)).config == asdict(config)


REFUSED = {
    "end_to_end --size huge": "'huge' is not one of 'small', 'medium', 'large', 'xl'",
    "end_to_end --mode backward": "'backward' is not one of",
    "end_to_end --context ten": "Invalid value for '--context'",
    "end_to_end --context 0": "Invalid value for '--context'",
    "end_to_end --steps 0": "Invalid value for '--steps'",
    "end_to_end --warmup -1": "Invalid value for '--warmup'",
    "end_to_end --attention flash9": "'flash9' is not",
    "end_to_end --colour red": "No such option: --colour",
    "accumulation --term nan": "--term must be finite, not nan",
    # Two terms near float32's largest number have an infinite sum.
    "accumulation --term 3e38 --steps 10": "is inf, not a finite number",
    f"accumulation --steps {10**30}": "Invalid value for '--steps': ",
    "mixed_precision --vocab 3": "vocab must be 8 or more, not 3",
    "method": "CUDA events exist on a GPU only, and torch sees none here",
    "kernel_profile": "kernels run on a GPU, and torch sees none",
}


@pytest.mark.parametrize("line", REFUSED)
def test_impossible_option_gives_a_one_line_error(line, capsys, monkeypatch, use_cpu):
    monkeypatch.setattr(end_to_end, "run", lambda config: pytest.fail("it ran"))
    stem, *options = line.split()
    module = import_module(STEMS[stem].module)
    code, out, err = run_command(capsys, monkeypatch, module, *options)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("error: ") and REFUSED[line] in err


@pytest.mark.parametrize(
    "line", [f"model_sizes --context {10**18}", f"accumulation --steps {10**15}"]
)
def test_impossible_allocation_is_out_of_memory(line, capsys, monkeypatch):
    stem, *options = line.split()
    module = import_module(STEMS[stem].module)
    code, out, _ = run_command(capsys, monkeypatch, module, *options, "--json")
    row = Row(**json.loads(out))
    assert (code, row.status) == (0, "out_of_memory") and row.reason
    assert "\n" not in row.reason and "alloc_cpu.cpp" not in row.reason


FULL = "CUDA out of memory. Tried to allocate 2.50 GiB"


def raise_out_of_memory(config=None):
    raise torch.OutOfMemoryError(f"{FULL}. See the manual.")


def test_out_of_memory_is_a_row(capsys, monkeypatch):
    of = make_stem(raise_out_of_memory)
    code, out, _ = run_command(capsys, monkeypatch, of)
    assert code == 0 and out.splitlines()[-1] == f"out of memory: {FULL}"
    code, out, _ = run_command(capsys, monkeypatch, of, "--json")
    row = Row(**json.loads(out))
    assert (code, row.status) == (0, "out_of_memory")
    assert (row.reason, row.metrics) == (FULL, {})


def test_terminal_shows_phases_and_total(capsys, monkeypatch):
    times = {"forward_ms": [1.0, 3.0], "loss_ms": [0.5, 0.5], "backward_ms": [2.0, 6.0]}
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    of = make_stem(lambda config: times | {"peak_bytes": 3 * 2**29})
    code, out, err = run_command(capsys, monkeypatch, of)
    assert code == 0 and err.startswith("measuring")
    assert out.startswith("size small, context 128, mode ")
    cells = [line.split("│")[1:-1] for line in out.splitlines() if line.startswith("│")]
    assert [" ".join(map(str.strip, line)) for line in cells] == [
        "forward 2.000 1.414 2.000 1.000 3.000",
        "loss 0.500 0.000 0.500 0.500 0.500",
        "backward 4.000 2.828 4.000 2.000 6.000",
        "total 6.500 4.243 6.500 3.500 9.500",
    ]
    assert out.endswith("peak bytes: 1610612736 (1.50 GiB)\n")
    of = make_stem(lambda config: {"forward_ms": [1.0]})
    out = run_command(capsys, monkeypatch, of)[1]
    assert "1.000" in out and "std" not in out and "nan" not in out
    # Passes timed apart, with other numbers of samples, add up to nothing.
    apart = {"forward_ms": [1.0], "backward_ms": [2.0, 3.0], "both_ms": [4.0]}
    out = run_command(capsys, monkeypatch, make_stem(lambda config: apart))[1]
    assert "both" in out and "total" not in out and "nan" not in out


def test_out_of_memory_in_the_compiler_is_a_row():
    """The compiler wraps errors of its backend."""
    row = compiler_error_row(raise_out_of_memory)
    assert (row.status, row.reason) == ("out_of_memory", FULL)
    with pytest.raises(RuntimeError, match="no such kernel"):
        compiler_error_row(lambda: ValueError("no such kernel"))


def test_the_ablation_refuses_a_cpu_without_the_interpreter(use_cpu, monkeypatch):
    compiled = SimpleNamespace(value=False)
    monkeypatch.setattr(flash_ablation, "INTERPRETED", compiled)
    with pytest.raises(ValueError, match="need a CUDA GPU.*TRITON_INTERPRET=1"):
        measure_row(flash_ablation.configs(quick=True)[0], flash_ablation.run)


@pytest.mark.parametrize(
    "error, said",
    [
        ("InvalidCxxCompiler", "torch.compile needs a C++ compiler, and found none"),
        ("CppCompileError", "torch.compile could not compile its C++ code"),
    ],
)
def test_cpu_compiler_errors_are_unsupported(error, said, monkeypatch):
    from torch._inductor import exc

    given = (["g++", "a.cpp"], "no such") if error == "CppCompileError" else ()
    row = compiler_error_row(lambda: getattr(exc, error)(*given))
    assert row.status == "unsupported" and (row.reason or "").startswith(said)
    monkeypatch.setattr(sys, "prefix", "/home/my clone")
    row = compiler_error_row(lambda: getattr(exc, error)(*given))
    assert ("path with a space" in (row.reason or "")) == bool(given)


def test_only_memory_error_is_out_of_memory_without_torch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    assert out_of_memory_reason(ValueError("CUDA out of memory.")) is None
    assert out_of_memory_reason(MemoryError()) == "no memory left for Python"


def test_full_gpu_is_out_of_memory_in_libraries_words_too():
    for text in ("CUDA error: out of memory", "cuBLAS: CUBLAS_STATUS_ALLOC_FAILED"):
        assert out_of_memory_reason(RuntimeError(f"{text}\nmore")) == text
    assert out_of_memory_reason(RuntimeError("CUDA error: illegal access")) is None


@pytest.fixture
def model_calls(monkeypatch, use_cpu):
    """Make `small` tiny, on the CPU; return the list of calls of its attention."""
    monkeypatch.setitem(SIZES, "small", ModelSize(8, 16, 1, 2))
    calls, attend = [], model_module.scaled_dot_product_attention

    def record_call(Q, K, V, mask=None):
        dtype = (Q @ K.transpose(-1, -2)).dtype
        calls.append((torch.is_grad_enabled(), dtype, Q.shape))
        return attend(Q, K, V, mask)

    monkeypatch.setattr(model_module, "scaled_dot_product_attention", record_call)
    yield calls
    torch.set_float32_matmul_precision("highest")


PHASES = {
    "forward": ["forward_ms"],
    "forward_backward": ["forward_ms", "loss_ms", "backward_ms"],
    "step": ["forward_ms", "loss_ms", "backward_ms", "optimizer_ms"],
}


@pytest.mark.parametrize("mode", end_to_end.MODES)
@pytest.mark.parametrize(
    "precision, rounding", [("fp32", "highest"), ("tf32", "high"), ("bf16", "highest")]
)
def test_end_to_end_times_phases_of_its_mode(model_calls, mode, precision, rounding):
    counts = {"batch": 3, "vocab": 50, "warmup": 2, "steps": 4}
    metrics = end_to_end.run(end_to_end.Config("small", 6, mode, precision, **counts))
    assert list(metrics) == PHASES[mode]
    assert all(len(samples) == 4 and min(samples) > 0 for samples in metrics.values())
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    assert model_calls == [(mode != "forward", dtype, torch.Size([3, 2, 6, 4]))] * 6
    assert torch.get_float32_matmul_precision() == rounding


def test_warmup_records_first_steps_and_setup(model_calls):
    metrics = warmup.run(warmup.Config(warmup=1, steps=3, context=6, batch=2))
    lengths = {name: len(samples) for name, samples in metrics.items()}
    expected = {"setup_ms": 1, "forward_ms": 3, "loss_ms": 3, "backward_ms": 3}
    assert lengths == expected and len(model_calls) == 4


def count_samples(metrics: dict[str, Any]) -> dict[str, int]:
    return {name: len(x) for name, x in metrics.items() if name.endswith("_ms")}


@pytest.fixture
def quick_compiler(monkeypatch, use_cpu, skip_shape_checks, run_uncompiled):
    """Capture graphs on the CPU, but run them uncompiled, for a tiny model."""
    monkeypatch.setitem(SIZES, "small", ModelSize(8, 16, 1, 2))


@pytest.mark.parametrize("execution", ["eager", "compiled"])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_times_passes_and_lists_tensors(quick_compiler, causal, execution):
    counts = {"batch": 2, "warmup": 2, "passes": 3}
    config = attention.Config(8, 24, causal, "fp32", execution, **counts)
    metrics = measure_row(config, attention.run).metrics
    passes = "forward_ms", "backward_ms"
    expected = {f"warmup_{name}": 2 for name in passes} | dict.fromkeys(passes, 3)
    assert count_samples(metrics) == expected
    graphs = int(execution == "compiled")
    assert (metrics["graphs"], metrics["recompiles"]) == (graphs, 0)
    # Two 2 x 24 x 24 score matrices are saved and, if eager and causal, a mask.
    kept = [tensor for tensor in metrics["saved"] if tensor["adds_bytes"] >= 24 * 24]
    matrices = [tensor for tensor in kept if tensor["adds_bytes"] == 2 * 24 * 24 * 4]
    assert len(matrices) == 2 and (len(kept) == 3) == (causal and execution == "eager")
    assert not any(name.endswith(("_bytes", "_kernels")) for name in metrics)


SHORT: dict[str, Any] = {"context": 6, "batch": 2, "vocab": 50}


@pytest.mark.slow
@pytest.mark.parametrize(
    "execution, optimizer, graphs",
    [("eager", False, 0), ("compiled", False, 1), ("compiled", True, 4)],
)
def test_compile_times_every_phase_and_counts_graphs(
    quick_compiler, monkeypatch, execution, optimizer, graphs
):
    """AdamW is compiled three times: without state, for constant t, and for any t."""
    found = {"forward_gpu_ms": [2.0], "forward_kernels": 7, "forward_fused": []}
    monkeypatch.setattr(gpu_time, "measure", lambda *_, **__: found)
    first = 4 if graphs else 0
    config = compile_experiment.Config(
        "small", "fp32", execution, optimizer, **SHORT, warmup=first, steps=5, rounds=2
    )
    metrics = measure_row(config, compile_experiment.run).metrics
    assert count_samples(metrics) == {
        **{f"warmup_{name}": first for name in PHASES["step"] if first},
        **dict.fromkeys(PHASES["step"], 5),
        "forward_gpu_ms": 1,
    }
    assert (metrics["graphs"], metrics["recompiles"]) == (graphs, 0)
    assert metrics["forward_kernels"] == 7 and "forward_fused" not in metrics


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [False, True])
def test_precompiled_row_keeps_first_step_times(
    quick_compiler, monkeypatch, tmp_path, optimizer
):
    """First-step times are precompilation's; the row's own are named `again_...`."""
    config = compile_experiment.Config(
        "small", "fp32", "compiled", optimizer, **SHORT, warmup=3, steps=1, rounds=1
    )
    caches = Mock(wraps=compiling.fresh_caches)
    monkeypatch.setattr(compiling, "fresh_caches", caches)
    with precompile.make_code_folder():
        folder = precompile.code_folder(*astuple(config))
        # Without compiled code, the row compiles in its own cache.
        alone = measure_row(config, compile_experiment.run).metrics
        compile_experiment.precompile(config)
        cold = precompile.read_samples(folder)
        metrics = measure_row(config, compile_experiment.run).metrics
    folders = [call.args[1] for call in caches.call_args_list]
    assert folders == [None, folder, folder] and folder is not None
    assert len(alone["warmup_forward_ms"]) == 3 and "again_forward_ms" not in alone
    assert len(cold["warmup_forward_ms"]) == (3 if optimizer else 1)
    assert ("warmup_optimizer_ms" in cold) == optimizer
    assert {name: metrics[name] for name in cold} == cold
    assert len(metrics["again_backward_ms"]) == 3 and metrics["recompiles"] == 0
    assert not folder.exists()


@compiles_cpp
@pytest.mark.slow
def test_precompiled_row_compiles_nothing(quick_compiler, monkeypatch, tmp_path):
    """After precompilation by the real compiler (a minute) a row compiles nothing."""
    monkeypatch.setattr(compiling, "BACKEND", "inductor")
    config = compile_experiment.Config(
        "small", "bf16", "compiled", **SHORT, warmup=1, steps=1, rounds=1
    )
    with precompile.make_code_folder():
        compile_experiment.precompile(config)
        counters.clear()
        row = measure_row(config, compile_experiment.run)
    assert row.status == "ok" and row.metrics["graphs"] == 1
    # The cache has one graph for each pass.
    assert counters["inductor"]["fxgraph_cache_hit"] == 2
    assert counters["inductor"]["fxgraph_cache_miss"] == 0
    (first,) = row.metrics["again_forward_ms"]
    assert first < row.metrics["warmup_forward_ms"][0] / 3


def test_only_failing_adamw_compilation_is_unsupported(quick_compiler, monkeypatch):
    def backend(graph, inputs):
        if any(node.target == "mul_" for node in graph.graph.nodes) == broken_optimizer:
            raise ValueError("no such kernel")
        return graph

    monkeypatch.setattr(compiling, "BACKEND", backend)
    monkeypatch.setattr(compiling, "warm_up_compiler", lambda device: None)
    config = compile_experiment.Config("small", "fp32", "compiled", True, **SHORT)
    broken_optimizer = True
    row = measure_row(config, compile_experiment.run)
    assert row.status == "unsupported" and "no such kernel" in (row.reason or "")
    broken_optimizer = False
    with pytest.raises(RuntimeError, match="no such kernel"):
        measure_row(replace(config, optimizer=False), compile_experiment.run)


@pytest.mark.parametrize(
    "module, few", [(attention, 0), (compile_experiment, 0), (compile_experiment, 2)]
)
def test_too_few_warm_up_steps_are_rejected(module, few):
    options = {"execution": "compiled", "warmup": few}
    options |= {"optimizer": True} if few else {}
    with pytest.raises(ValueError, match="--warmup must be [13] or more"):
        measure_row(module.Config(**options), module.run)


@pytest.mark.slow
def test_compiled_models_are_freed_after_their_row(quick_compiler, monkeypatch):
    """A model that is kept would count in the next row's peak memory."""
    models, build = [], workload.build_model

    def record_call(*arguments):
        model = build(*arguments)
        models.append(weakref.ref(model.lm_head.weight))
        return model

    monkeypatch.setattr(workload, "build_model", record_call)
    config = compile_experiment.Config(
        "small", "fp32", "compiled", **SHORT, warmup=1, steps=2, rounds=2
    )
    assert measure_row(config, compile_experiment.run).status == "ok"
    gc.collect()
    assert [model() for model in models] == [None]


@pytest.mark.parametrize("name", flash_accuracy.IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", flash_accuracy.DTYPES)
def test_each_attention_is_near_float64_or_unsupported(name, dtype, request):
    """SDPA on a CPU has only flash and math; on a GPU, fp32 has no flash, no cuDNN."""
    if "recompute" in name:
        request.applymarker(compiles_cpp)
    config = flash_accuracy.Config(name, dtype, d=16, n=64 if "first" in name else 40)
    on_gpu = timing.default_device() == "cuda"
    if "first" in name and dtype == "bf16" and not on_gpu:
        with pytest.raises(TypeError, match="can't multiply bfloat16"):
            measure_row(config, flash_accuracy.run)
        return
    row = measure_row(config, flash_accuracy.run)
    reason = row.reason or ""
    lacking = {"sdpa_cudnn", "sdpa_efficient"}
    if on_gpu:
        lacking = {"sdpa_cudnn", "sdpa_flash"} if dtype == "fp32" else set()
    if name in lacking:
        assert row.status == "unsupported" and name.removeprefix("sdpa_") in reason
        return
    if name == "hopper":
        assert row.status == "unsupported" and reason.startswith("hopper: ")
        return
    names = {"o", "dq", "dk", "dv"} | (set() if name.startswith("sdpa") else {"lse"})
    repeated = {"calls", "differing_calls"} if name == "triton" else set()
    errors = product(names, ("relative", "largest"))
    assert set(row.metrics) == repeated | {f"{of}_{kind}_error" for of, kind in errors}
    assert row.metrics.get("differing_calls", 0) == 0
    most = {"fp32": 1e-6, "fp16": 2e-3, "bf16": 2e-2}[dtype]
    assert all(1e-9 < row.metrics[f"{of}_relative_error"] < most for of in names)


PASS_TIMES = ["forward_ms", "backward_ms", "both_ms"]


def test_flash_benchmarking_times_three_passes(use_cpu):
    config = flash_benchmarking.Config("sdpa", "fp32", 16, 64)
    found = measure_row(config, flash_benchmarking.run).metrics
    assert list(found) == ["ran", *PASS_TIMES] and found["ran"] == "flash_attention"
    assert all(min(found[name]) > 0 for name in PASS_TIMES)


@pytest.mark.slow
def test_do_bench_runs_before_any_profiler(use_cpu, monkeypatch):
    """do_bench times both rows before the first round of GPU time."""
    done = []
    monkeypatch.setattr(
        gpu_time, "bench_passes", lambda *_: done.append("do_bench") or {"a_ms": [1.0]}
    )
    monkeypatch.setattr(gpu_time, "add_round", lambda *_, **__: done.append("round"))
    names = ("plain", "sdpa")
    group = [flash_benchmarking.Config(name, "fp32", 16, 64) for name in names]
    assert groups.make_groups(flash_benchmarking, group) == [group]
    groups.measure_group(flash_benchmarking, group)
    assert done == ["do_bench"] * 2 + ["round"] * 2 * flash_benchmarking.ROUNDS


def test_row_out_of_memory_leaves_no_shared_inputs(use_cpu, monkeypatch):
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
    monkeypatch.setattr(compiling, "measure", Mock(side_effect=error))
    (row,) = groups.measure_group(attention, [attention.Config(16, 64)])
    assert row.status == "out_of_memory"
    assert attention.cached_inputs.cache_info().currsize == 0


@pytest.mark.parametrize("n", [flash_peers.SHORT, flash_peers.SHORT + 1])
def test_flash_peers_interleaves_rows_of_a_shape(use_cpu, monkeypatch, n):
    flash_peers.make_problem.cache_clear()
    turns, calls, alone = [], [], []
    real, timed = flash_peers.use_peer, flash_peers.call_ms

    def record_round(metrics, step, device):
        assert len(calls) in (0, 2 * flash_peers.ROUNDS_OF_CALLS)
        metrics.setdefault("both_rounds_ms", []).append(1.0)
        turns.append(alone[-1])

    def record_timing(*given):
        calls.append(alone[-1])
        return timed(*given)

    monkeypatch.setattr(gpu_time, "add_round", record_round)
    monkeypatch.setattr(flash_peers, "use_peer", lambda x: alone.append(x) or real(x))
    monkeypatch.setattr(flash_peers, "call_ms", record_timing)
    configs = [
        flash_peers.Config(name, 1, 3, n, 16, True, "fp32")
        for name in ("plain", "sdpa_efficient", "sdpa_flash")
    ]
    (group,) = groups.make_groups(flash_peers, configs)
    plain, efficient, flash = groups.measure_group(flash_peers, group)
    assert (efficient.status, efficient.metrics) == ("unsupported", {})
    assert efficient.reason == "SDPA has no efficient kernel for this input"
    assert turns == ["plain", "sdpa_flash"] * gpu_time.ROUNDS
    assert plain.metrics["both_rounds_ms"] == [1.0] * gpu_time.ROUNDS
    assert flash.metrics["ran"] == "flash_attention"
    names = [f"{of}_relative_error" for of in ("o", "dq", "dk", "dv")]
    assert all(0 < plain.metrics[name] < 1e-6 for name in names)
    # In short shapes, single calls are timed as well.
    rounds = flash_peers.ROUNDS_OF_CALLS if n <= flash_peers.SHORT else 0
    assert calls == ["plain", "sdpa_flash"] * rounds
    times = plain.metrics.get("call_ms", [])
    assert len(times) == len(calls) / 2 and all(0 < time < 1000 for time in times)
    # Inputs and exact results were computed once.
    assert flash_peers.make_problem.cache_info().misses == 1
    assert flash.metrics["repeats"] and flash.metrics["varies"] == ""


def test_flash_peers_checks_grouped_heads_in_bnhd(use_cpu, monkeypatch):
    shape = (2, 4, flash_peers.SHORT + 3, 16, True, "fp32", 2, "bnhd")
    config = flash_peers.Config("sdpa_flash", *shape)
    with pytest.raises(AssertionError, match="multiple of --group"):
        flash_peers.make_problem(replace(config, group=3), "cpu")
    q, k, *_ = flash_peers.make_problem(config, "cpu")
    assert (q.shape[1], k.shape[1]) == (4, 2)
    assert q.stride(1) < q.stride(2) and q.transpose(1, 2).is_contiguous()
    metrics = measure_row(config, flash_peers.run).metrics
    names = [f"{of}_relative_error" for of in flash_peers.RESULTS]
    assert all(0 < metrics[name] < 1e-6 for name in names)


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("causal", [True, False])
def test_exact_gradients_equal_those_of_autograd(causal, group, monkeypatch):
    """The block length does not divide the sequence length."""
    monkeypatch.setattr(flash_peers, "EXACT_ROWS", 7)
    heads = {"lead": (1, 2 * group), "lead_k": (1, 2)}
    q, k, v, do = make_inputs(30, 30, 8, torch.float64, **heads)
    expected = run_reference(q, k, v, do, causal)
    found = flash_peers.exact_attention(q, k, v, do, causal=causal)
    for name in flash_peers.RESULTS:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-12, atol=1e-12)


def test_leaderboard_expands_a_scalar_output_gradient(use_cpu, monkeypatch):
    seen = []

    def attend(q, k, v):
        o = q + k + v
        o.register_hook(lambda do: seen.append((tuple(do.shape), do.stride())))
        return o

    monkeypatch.setattr(flash_leaderboard, "load_peer", lambda *_, **__: attend)
    config = flash_leaderboard.Config("plain", heads=2, n=8, d=4)
    metrics = measure_row(config, flash_leaderboard.run).metrics
    assert list(metrics) == ["both_ms", "ran", "kernels"]
    assert set(seen) == {((1, 2, 8, 4), (0, 0, 0, 0))}
    top = measure_row(flash_leaderboard.Config("ceiling"), flash_leaderboard.run)
    assert (top.status, top.reason) == ("unsupported", "needs a CUDA GPU")


@pytest.mark.parametrize("name, ran", [("eager", "eager"), ("sdpa", "flash_attention")])
def test_model_attention_names_the_backend_that_ran(model_calls, name, ran):
    config = model_attention.Config("small", 6, name, 1, warmup=0, steps=4)
    metrics = measure_row(config, model_attention.run).metrics
    assert {len(metrics[phase]) for phase in PHASES["step"]} == {4}
    assert list(metrics) == [*PHASES["step"], "ran"]
    assert metrics["ran"] == ran
    # Only eager attention calls the function that the fixture records.
    assert bool(model_calls) == (name == "eager")
    assert all(dtype == torch.bfloat16 for _, dtype, _ in model_calls)


@pytest.mark.parametrize("step", flash_ablation.STEPS)
def test_each_step_of_the_ablation_computes_attention(step):
    # In the interpreter, the kernels of `attention.first` reject bf16.
    exact = step.startswith("first_") and timing.default_device() == "cpu"
    given = {"dtype": "fp32"} if exact else {}
    config = flash_ablation.Config(step, heads=2, n=256, d=16, **given)
    metrics = measure_row(config, flash_ablation.run).metrics
    # In bf16, probabilities and results have 8 significant bits.
    least, most = (0, 1e-6) if exact else (1e-4, 6e-3)
    assert least < metrics["relative_error"] < most and metrics["ran"] == "triton"
    assert metrics["repeats"] or step == "atomic_backward"

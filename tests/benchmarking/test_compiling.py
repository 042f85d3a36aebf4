"""Test that compilations start without caches, are counted and are not timed."""

import os
import tempfile

import pytest
import torch

from systems.benchmarking import compiling

pytestmark = pytest.mark.usefixtures("run_uncompiled")


def make_step(function, sizes):
    """Return a step with two phases that takes the next size at each call."""
    left = list(sizes)

    def step(phase):
        x = torch.ones(left.pop(0), requires_grad=True)
        with phase("forward"):
            y = function(x)
        with phase("backward"):
            y.sum().backward()

    return step


def measure(step, warmup: int, repeats: int) -> dict:
    options = {"device": "cpu", "between": lambda: None}
    return compiling.measure(step, warmup=warmup, repeats=repeats, **options)


def test_recompiling_after_warm_up_is_an_error():
    with compiling.fresh_caches("cpu"):
        metrics = measure(make_step(compiling.compile_work(torch.sin), [4, 5, 5]), 2, 1)
        assert (metrics["graphs"], metrics["recompiles"]) == (2, 0)
        with pytest.raises(RuntimeError, match="recompile"):
            measure(make_step(compiling.compile_work(torch.cos), [4, 5]), 1, 1)


def test_graph_break_is_an_error():
    work = compiling.compile_work(lambda x: torch._dynamo.graph_break() or x)
    with pytest.raises(Exception, match="graph"):
        work(torch.ones(2))


def test_each_configuration_starts_without_compiled_code():
    square, folders = (lambda x: x * x), []
    for _ in range(2):
        before = compiling.count_graphs()
        with compiling.fresh_caches("cpu"):
            folders.append(os.environ["TORCHINDUCTOR_CACHE_DIR"])
            assert not os.path.exists(os.environ["TRITON_CACHE_DIR"])
            before = compiling.count_graphs()
            for _ in range(2):
                compiling.compile_work(square)(torch.ones(3))
        assert compiling.count_graphs() - before == 1
    assert folders[0] != folders[1] and not any(map(os.path.exists, folders))
    before = compiling.count_graphs()
    compiling.compile_work(square)(torch.ones(3))
    assert compiling.count_graphs() - before == 1


def test_failing_configuration_leaves_no_folder(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with pytest.raises(MemoryError), compiling.fresh_caches("cpu"):
        assert os.environ["TORCHINDUCTOR_CACHE_DIR"].startswith(str(tmp_path))
        raise MemoryError
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("tmp")]

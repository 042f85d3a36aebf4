"""Without a CUDA GPU, Triton's kernels run in its interpreter."""

import gc
import os
import signal
import sys

import pytest

# Tests send SIGINT to children, which ignore it if pytest itself was started with `&`.
signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests compare output without colors, and in a git hook would commit to its repository.
for name in "FORCE_COLOR GIT_DIR GIT_INDEX_FILE GIT_WORK_TREE PY_COLORS".split():
    os.environ.pop(name, None)
os.environ["COLUMNS"] = "200"

# Imports leave no garbage, but searching for it takes a sixth of their time.
gc.disable()

if workers := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
    # Share the cores, because each worker's torch would start a thread per core.
    threads = max(1, (os.cpu_count() or 1) // int(workers))
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))

try:
    import torch

    HAS_GPU = torch.cuda.is_available()
except ImportError:
    HAS_GPU = False

if not HAS_GPU:
    assert "triton.language" not in sys.modules, (
        "triton was imported before its interpreter could be chosen"
    )
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_addoption(parser):
    parser.addoption(
        "--quick",
        action="store_true",
        help="one case of each test, and no test that is slow or needs a program",
    )


def pytest_collection_modifyitems(config, items):
    """Skip GPU tests without a GPU and interpreted kernels with one; for --quick, keep
    one case of each fast test.
    """
    if config.getoption("--quick"):
        cases, left_out = {}, {"slow", "alone", "browser", "slurm", "gpu", "versions"}
        for item in items:
            if not left_out & {mark.name for mark in item.iter_markers()}:
                cases.setdefault((item.path, item.originalname), item)
        items[:] = cases.values()
    mark, reason = "gpu", "needs a CUDA GPU"
    if HAS_GPU:
        mark, reason = "interpreted", "needs a CPU: set CUDA_VISIBLE_DEVICES="
    for item in items:
        if item.get_closest_marker(mark):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item):
    """Return GPU memory to the driver, for other processes on the GPU."""
    if HAS_GPU and item.get_closest_marker("gpu"):
        torch.cuda.empty_cache()


def skip_without_triton(report, error: BaseException, path: object):
    """Turn a failure into a skip if Triton is missing, except in CI."""
    causes: list[BaseException] = [error]
    while cause := causes[-1].__cause__ or causes[-1].__context__:
        causes.append(cause)
    names = [getattr(cause, "name", None) or "" for cause in causes]
    missing = {name.partition(".")[0] for name in names}
    if "triton" in missing and not os.environ.get("CI"):
        reason = "needs Triton, which is there for Linux alone"
        report.outcome, report.longrepr = "skipped", (str(path), 0, reason)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector):
    report = yield
    if report.failed and isinstance(collector, pytest.Module):
        skip_without_triton(report, report.call.excinfo.value, collector.path)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.failed:
        skip_without_triton(report, call.excinfo.value, item.path)
    return report


def pytest_collection_finish():
    """Speed up Triton's interpreter if any test module imported Triton."""
    gc.freeze()
    gc.enable()
    if not HAS_GPU and sys.modules.get("triton"):
        from tests.interpreting import speed_up_interpreter

        speed_up_interpreter()


@pytest.fixture(scope="session")
def chromium() -> str:
    """Return the path of Chromium; in CI it must exist."""
    from tests.needed import skip_or_fail
    from tools.submission import find_chromium

    try:
        return find_chromium()
    except SystemExit:
        skip_or_fail("no Chromium is installed")


@pytest.fixture
def set_precision():
    """Return a function that sets torch's float32 precision until the test ends."""
    import torch

    before = torch.get_float32_matmul_precision()
    yield torch.set_float32_matmul_precision
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def device() -> str:
    """Return where Triton kernels run: "cuda", or "cpu" in the interpreter."""
    return "cuda" if HAS_GPU else "cpu"


@pytest.fixture
def use_cpu(monkeypatch) -> None:
    """Make experiments that prefer the GPU run on the CPU."""
    from systems.benchmarking import timing

    monkeypatch.setattr(timing, "default_device", lambda: "cpu")


@pytest.fixture
def skip_shape_checks(monkeypatch) -> None:
    """Disable checks of shapes, which compilers can't trace."""
    from importlib.util import module_from_spec, spec_from_file_location

    from systems.benchmarking import workload
    from systems.experiments import attention
    from systems.model import transformer

    spec = spec_from_file_location(transformer.__name__, transformer.__file__)
    assert spec is not None and spec.loader is not None
    plain = module_from_spec(spec)
    spec.loader.exec_module(plain)
    monkeypatch.setitem(sys.modules, transformer.__name__, plain)
    monkeypatch.setattr(attention, "transformer", plain)
    monkeypatch.setattr(workload, "build_model", plain.build_model)


@pytest.fixture
def run_uncompiled(monkeypatch):
    """Capture and differentiate graphs, but run them uncompiled, which needs no C++."""
    import torch

    from systems.benchmarking import compiling

    monkeypatch.setattr(compiling, "BACKEND", "aot_eager")
    torch.compiler.reset()
    compiling.warm_up_compiler.cache_clear()
    yield
    torch.compiler.reset()


@pytest.fixture
def pretend_gpu(monkeypatch) -> None:
    """Simulate a GPU named "A GPU", on which the experiment `fake` is measured."""
    from systems.experiments import STEMS
    from systems.running import groups, machine
    from tests.factories import fake_stem_entry, make_gpu

    monkeypatch.setitem(STEMS, "fake", fake_stem_entry("cuda"))
    monkeypatch.setattr(machine, "choose_device", lambda allowed: make_gpu())
    monkeypatch.setattr(groups, "sm_clock_mhz", lambda: None)
    for name in ("check_torch", "free_memory"):
        monkeypatch.setattr(machine, name, lambda *_: None)

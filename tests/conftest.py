"""Without a CUDA GPU, Triton's kernels run in its interpreter: it must be told before triton is first imported."""

import os
import sys

import pytest

try:
    import torch

    HAS_GPU = torch.cuda.is_available()
except ImportError:
    HAS_GPU = False

if not HAS_GPU:
    assert "triton.language" not in sys.modules, "triton was imported before its interpreter could be chosen"
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_collection_modifyitems(items):
    """Tests that need a GPU are skipped, with the reason, where there is none."""
    if not HAS_GPU:
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of the browser that the project itself would print with. In CI it must be there."""
    from tools.submission import Missing, find_chromium

    try:
        return find_chromium()
    except Missing as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


@pytest.fixture
def precision():
    """A setter of torch's float32 precision, put back afterwards."""
    import torch

    before = torch.get_float32_matmul_precision()
    yield torch.set_float32_matmul_precision
    torch.set_float32_matmul_precision(before)


@pytest.fixture
def device() -> str:
    """Where Triton's kernels run here: on the GPU, or on the CPU by the interpreter."""
    return "cuda" if HAS_GPU else "cpu"

"""What is spared of Triton's interpreter changes no bit."""

import pytest
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="kernels are compiled here, not interpreted"
)


@triton.jit
def halved(x):
    return tl.where(x > 1, x / 2, tl.exp(x))


@triton.jit
def twice_halved(x):
    return halved(halved(x))


@triton.jit
def kernel(x_ptr, y_ptr, n: tl.constexpr):
    at = tl.arange(0, n)
    total = tl.full((n,), 0.0, tl.float32)
    for _ in range(3):
        total += twice_halved(tl.load(x_ptr + at))
    tl.store(y_ptr + at, total)


def test_a_launch_patches_the_language_once_and_gives_it_back(monkeypatch):
    """The launch itself, where Triton does so for each of its helpers too."""
    once, x = interpreter._patch_lang, torch.linspace(-3, 3, 64)
    assert once.whole, "tests/conftest.py has chosen it"
    found, patched = [], []
    for patch in (once, once.whole):
        load, calls = tl.load, []

        def counted(function, patch=patch, calls=calls):
            scope = patch(function)
            calls.append(bool(scope._changes))
            return scope

        monkeypatch.setattr(interpreter, "_patch_lang", counted)
        kernel[(1,)](x, y := torch.empty_like(x), n=64)  # pyright: ignore
        assert tl.load is load
        found.append(y)
        patched.append(sum(calls))
    assert torch.equal(*found) and patched == [1, 1 + 3 * 3]

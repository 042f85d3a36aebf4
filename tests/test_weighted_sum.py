"""Compare the weighted-sum kernel, and one with block pointers, with PyTorch."""

import ast
import inspect

import pytest
import torch
import triton
import triton.language as tl

from systems import ROOT
from systems.weighted_sum import MAX_COLUMNS_TILE, ROWS_TILE, weighted_sum
from tests.attention.checks import BATCHED, check_batched_gradients


def plain_weighted_sum(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x * w).sum(-1)


@pytest.mark.parametrize(
    "shape", [(1, 1), (16, 128), (17, 129), (3, 5, 300), (33,)], ids=str
)
def test_values_and_gradients_equal_pytorch(shape, device):
    generator = torch.Generator().manual_seed(0)
    x, w, dy = (
        torch.randn(s, generator=generator).to(device).requires_grad_()
        for s in (shape, shape[-1:], shape[:-1])
    )
    exact = plain_weighted_sum(x.double(), w.double())
    expected = torch.autograd.grad(exact, (x, w), dy.double())
    y = weighted_sum(x, w)
    torch.testing.assert_close(y.double(), exact, rtol=0, atol=1e-5)
    for ours, theirs in zip(torch.autograd.grad(y, (x, w), dy), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_accumulates_in_float32(dtype, device):
    """In half precision, 2048 + 1 is rounded to 2048."""
    x = torch.zeros(2, 17 * MAX_COLUMNS_TILE, dtype=dtype, device=device)
    x[:, ::MAX_COLUMNS_TILE] = 1
    x[:, 0] = 2048
    y = weighted_sum(x, torch.ones_like(x[0]))
    assert y.dtype == dtype and (y == 2064).all()


@pytest.mark.parametrize("negative", range(3))
def test_strides_and_negative_bits_are_supported(negative, device):
    z = torch.randn(37, 50, dtype=torch.complex64, device=device)
    views = [z.conj().imag if i == negative else z.imag for i in range(3)]
    x, w, dy = views[0][1:, :45], views[1][0, :45], views[2][0, :1].expand(36)
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    y, expected = weighted_sum(x, w), plain_weighted_sum(x, w)
    ours, theirs = (torch.autograd.grad(z, (x, w), dy) for z in (y, expected))
    for a, b in zip((y, *ours), (expected, *theirs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)


def test_repeated_calls_are_bitwise_equal(device):
    x = torch.randn(5 * ROWS_TILE + 3, 200, device=device)
    w = torch.randn(200, device=device, requires_grad=True)
    first, *others = (
        torch.autograd.grad(weighted_sum(x, w).cos().sum(), w)[0] for _ in range(3)
    )
    assert all(torch.equal(gradient, first) for gradient in others)


@pytest.mark.parametrize("way", BATCHED)
def test_batched_and_second_derivatives_are_rejected(way, device):
    x, w = (torch.ones(s, device=device, requires_grad=True) for s in ((3, 4), (4,)))
    with pytest.raises(NotImplementedError, match="weighted sum .* once for each"):
        check_batched_gradients(way, weighted_sum(x, w), (x, w))
    with pytest.raises(ValueError, match="the weighted sum can't be .* again"):
        torch.autograd.grad(weighted_sum(x, w).sum(), x, create_graph=True)


def test_invalid_input_is_rejected(device):
    x, w = (torch.zeros(s, device=device) for s in ((3, 4), (4,)))
    for error, text, given in (
        (TypeError, "w must be float32, .* got torch.float16", (x, w.half())),
        (ValueError, r"shape of a row of x, \(4,\), got \(5,\)", (x, x.new_zeros(5))),
        (ValueError, r"x must not be empty, got shape \(0, 4\)", (x[:0], w)),
        (ValueError, f"on the device of x, {x.device}, got meta", (x, w.to("meta"))),
        (
            ValueError,
            f"at most 34359738352 rows, got {2**35}",
            (x[:1, :1].expand(2**35, 1), x.new_zeros(1)),
        ),
        (ValueError, "x must be on a CUDA device", (x.to("meta"), w.to("meta"))),
    ):
        with pytest.raises(error, match=text):
            weighted_sum(*given)


@triton.jit
def block_pointer_kernel(
    x_ptr, y_ptr, stride_xn, stride_xd, n, d, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # fmt: skip
    first = tl.program_id(0) * ROWS
    x = tl.make_block_ptr(
        x_ptr, (n, d), (stride_xn, stride_xd), (first, 0), (ROWS, COLUMNS), (1, 0)
    )
    y = tl.make_block_ptr(y_ptr, (n,), (1,), (first,), (ROWS,), (0,))
    tile = tl.zeros([ROWS], tl.float32)
    for _ in range(0, d, COLUMNS):
        tile += tl.sum(tl.load(x, boundary_check=(0, 1), padding_option="zero"), 1)
        x = tl.advance(x, (0, COLUMNS))
    tl.store(y, tile, boundary_check=(0,))


@pytest.mark.filterwarnings("ignore:.*make_block_ptr is deprecated")
@pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset")
def test_block_pointers_work_as_the_page_says(device):
    x, y = torch.randn(5, 10, device=device), torch.empty(5, device=device)
    run = block_pointer_kernel[(3,)]
    if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 9):
        with pytest.raises(Exception, match="Block pointers have been removed"):
            run(x, y, *x.stride(), 5, 10, ROWS=2, COLUMNS=4)
        return
    run(x, y, *x.stride(), 5, 10, ROWS=2, COLUMNS=4)
    torch.testing.assert_close(y, x.sum(1))
    lines = ast.unparse(ast.parse(inspect.getsource(block_pointer_kernel.fn)))
    page = (ROOT / "docs/weighted_sum.md").read_text("utf-8")
    calls = [c for c in page.split("`") if c.startswith(("x = tl.", "tl.store(y"))]
    assert len(calls) == 3 and all(ast.unparse(ast.parse(c)) in lines for c in calls)

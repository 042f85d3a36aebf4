"""Test inputs that flash attention supports or rejects: strides, heads, dtypes."""

import math
import os
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

import systems.attention as attention_package
from systems import ROOT
from systems.attention import (
    FlashAttentionPyTorch,
    FlashAttentionTriton,
    dispatch,
    flash_attention,
    prepared,
    torch_tiles,
)
from systems.attention.triton import launches
from tests.attention import checks
from tests.needed import run_python

CLASSES = [FlashAttentionPyTorch, FlashAttentionTriton]
BACKENDS = ["torch", "triton", "auto"]
zeros: Any = torch.zeros


def embed_in_nan(x: torch.Tensor) -> torch.Tensor:
    """Return a copy of x as a view into a larger memory that is NaN elsewhere."""
    *lead, n, d = x.shape
    memory = x.new_full((*lead, n + 70, d + 9), float("nan"))
    view = memory[..., 3 : n + 3, 2 : d + 2]
    view.copy_(x)
    return view


LAYOUTS = {
    "head dimension outermost": lambda x: x.mT.contiguous().mT,
    "heads beside the head dimension": lambda x: (
        x.transpose(1, 2).contiguous().transpose(1, 2)
    ),
    "every other column": lambda x: torch.stack((x, x), -1).flatten(-2)[..., ::2],
    "amid NaN": embed_in_nan,
}


@checks.parametrize_pairs(cls=CLASSES, layout=list(LAYOUTS), causal=[False, True])
def test_results_do_not_depend_on_strides(cls, layout, causal, device):
    inputs = checks.make_inputs(37, 70, 24, device=device, lead=(1, 2))
    expected = checks.run_class(cls, *inputs, causal)
    views = tuple(LAYOUTS[layout](x) for x in inputs)
    assert not any(x.is_contiguous() for x in views)
    assert all(map(torch.equal, views, inputs))
    actual = checks.run_class(cls, *views, causal)
    for name in checks.NAMES:
        # PyTorch may sum another layout in another order.
        close = {"rtol": 0, "atol": 1e-5, "msg": name}
        torch.testing.assert_close(actual[name], expected[name], **close)


@pytest.mark.parametrize("cls", CLASSES)
def test_expanded_keys_and_output_gradient_are_supported(cls, device):
    """The gradient of o.sum() has stride zero; keys are expanded over the batch."""
    q, k, v, _ = checks.make_inputs(40, 70, 16, device=device, lead=(3,))
    k, v = k[:1].expand(3, -1, -1), v[:1].expand(3, -1, -1)
    do = torch.ones((), device=device).expand_as(q)
    assert do.stride() == (0, 0, 0)
    checks.check_against_reference(
        checks.run_class(cls, q, k, v, do, True), q, k, v, do, True
    )


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("d", [16, 24])
def test_kernels_write_exactly_their_outputs(d, causal, device):
    q, k, v, do = inputs = checks.make_inputs(37, 70, d, device=device, lead=(2,))
    expected = checks.run_class(FlashAttentionTriton, *inputs, causal)
    with checks.poison_buffers(launches) as memories:
        o, lse = launches.launch_forward(q, k, v, causal, d**-0.5)
        rest = do, q, k, v, o, lse, causal, d**-0.5
        outputs = o, lse, *launches.launch_backward(*rest)
    # The buffers are o, lse, dq, dk, dv and delta.
    assert len(memories) == 6
    assert all(torch.isfinite(memory).all() for memory in memories)
    for name, output in zip(checks.NAMES, outputs, strict=True):
        assert torch.equal(output, expected[name]), name


def check_float32_results(backend: str, q, k, v, do, causal: bool) -> torch.Tensor:
    leaves = tuple(x.requires_grad_() for x in (q, k, v))
    o = flash_attention(*leaves, causal=causal, backend=backend)
    expected = checks.run_reference(q, k, v, do, causal)
    results = o, *checks.gradients(o, leaves, do)
    found = dict(zip(("o", "dq", "dk", "dv"), results, strict=True))
    for name, x in found.items():
        close = {"rtol": 0, "atol": 2e-5, "msg": name}
        torch.testing.assert_close(x.double(), expected[name], **close)
    return o


@checks.parametrize_pairs(backend=BACKENDS, kv_heads=[1, 2, 4], causal=[False, True])
def test_grouped_heads_equal_sdpa(backend, kv_heads, causal, device):
    heads = {"lead": (2, 4), "lead_k": (2, kv_heads)}
    q, k, v, do = checks.make_inputs(33, 40, 16, device=device, **heads)
    o = check_float32_results(backend, q, k, v, do, causal)
    sdpa = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    torch.testing.assert_close(o, sdpa, rtol=0, atol=2e-5)


@pytest.mark.parametrize("lead", [(), (3,), (2, 1, 3)], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_leading_dimensions_are_kept(backend, lead, device):
    inputs = checks.make_inputs(20, 20, 16, device=device, lead=lead)
    assert check_float32_results(backend, *inputs, causal=True).shape == inputs[0].shape


def test_output_has_the_memory_layout_of_q(device):
    """The model's heads are a transposed view, and transposing o back must not copy."""
    x = torch.randn(2, 20, 3, 16, device=device)
    q = x.transpose(1, 2)
    assert flash_attention(q, q, q).transpose(1, 2).is_contiguous()


def nested_tensor(*parts: torch.Tensor) -> torch.Tensor:
    """Return a nested tensor that is not jagged, without PyTorch's warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor(list(parts))


def qkv(*options, K=None, V=None) -> list[Any]:
    """Return [q, k, v, *options] with valid tensors, or with K and V if given."""
    q = zeros(2, 8, 4)
    return [q, q if K is None else K, q if V is None else V, *options]


HALF = zeros(2, 8, 4).half()
META = zeros(2, 8, 4, device="meta")
# Wrong arguments by error message, in the order of the parameters.
WRONG_TYPES = {
    "q must be a torch.Tensor, got list": [[1.0], zeros(2, 8, 4), zeros(2, 8, 4)],
    "q must be a strided .*sparse": [zeros(2, 8, 4).to_sparse()] * 3,
    "k must be a strided .*sparse": qkv(K=zeros(2, 8, 4).to_sparse()),
    "v must be a strided .*sparse": qkv(V=zeros(2, 8, 4).to_sparse()),
    "q must be one of .*float32.*, got int64": [zeros(8, dtype=torch.int64)] * 3,
    "v must have the dtype of q, torch.float32, got torch.float16": qkv(V=HALF),
    "causal must be True or False, got 1; .* SDPA takes attn_mask": qkv(1),
    r"causal must be True or False, got numpy\.bool": qkv(np.bool_(True)),
    # The fourth argument is PyTorch's mask, or flash-attn's dropout rate.
    r"must be True or False, got torch\.Tensor; .* SDPA takes": qkv(zeros(8, 8)),
    "got 0.0; it is the fourth argument, .* flash-attn dropout_p": qkv(0.0),
    "scale must be an int, a float or None, got builtins.str": qkv(False, "1"),
    "float or None, got numpy.float32": qkv(False, np.float32(0.5)),
    "must not be nested tensors": [nested_tensor(zeros(3, 4), zeros(2, 4))] * 3,
}
WRONG_VALUES = {
    "k must be on the device of q, cpu, got meta": qkv(K=META),
    "q must be on a .*device.*, got meta": [META] * 3,
    r"q must have two or more .* got shape \(4,\)": [zeros(4)] * 3,
    r"k must have two or more .* got shape \(\)": qkv(K=torch.tensor(0.0)),
    r"k must have as many dimensions as q, 3, got shape \(8, 4\)": qkv(K=zeros(8, 4)),
    r"k must not be empty, got .*2, 0, 4": qkv(K=zeros(2, 0, 4), V=zeros(2, 0, 4)),
    r"v must have the head dimension of q, 4, got .*2, 8, 5": qkv(V=zeros(2, 8, 5)),
    r"v must have the shape of k, \(2, 8, 4\), got .*2, 9, 4": qkv(V=zeros(2, 9, 4)),
    r"k must have the leading dimensions of q, \(2,\), got \(3,\)": [
        *(zeros(2, 1, 8, 4), *[zeros(3, 1, 8, 4)] * 2)
    ],
    "k must have as many heads as q, 4, or a divisor of them, got 3": [
        *(zeros(1, 4, 8, 4), *[zeros(1, 3, 8, 4)] * 2)
    ],
    "scale must be positive and .*-1.0": qkv(False, -1.0),
    "scale must be .* got nan": qkv(False, math.nan),
    "scale must be .* normal number of float32 .* got 1e-46": qkv(False, 1e-46),
    "scale must be .* got 1000": qkv(False, 10**400),
    r"scale must be .* times log2\(e\), too .* got 3e\+38": qkv(False, 3e38),
}


@pytest.mark.parametrize("message", [*WRONG_TYPES, *WRONG_VALUES])
@pytest.mark.parametrize("backend", BACKENDS)
def test_invalid_input_is_rejected_before_any_launch(backend, message, monkeypatch):
    given = (WRONG_TYPES | WRONG_VALUES)[message]
    error = TypeError if message in WRONG_TYPES else ValueError

    def fail_if_run(*_):
        pytest.fail("it ran")

    monkeypatch.setattr(torch_tiles, "tiled_forward", fail_if_run)
    monkeypatch.setattr(prepared.PreparedCall, "forward", fail_if_run)
    monkeypatch.setattr(dispatch, "LAUNCHERS", {})
    with pytest.raises(error, match=message):
        flash_attention(*given, backend=backend)  # pyright: ignore


@pytest.mark.parametrize("backend", BACKENDS)
def test_smallest_and_largest_scale_give_right_results(backend, device):
    q, k, v = (torch.randn(8, 4, device=device) for _ in range(3))
    o = flash_attention(q, k, v, causal=True, scale=2.0**-126, backend=backend)
    counts = torch.arange(1, 9, device=device)[:, None]
    torch.testing.assert_close(o, v.cumsum(0) / counts)
    # Each query's score is 0 for all keys but one, whose score is very low.
    k, v = torch.eye(8, device=device) * -(2.0**-4), torch.randn(8, 8, device=device)
    largest = math.nextafter(2.0**127, 0)
    o = flash_attention(-k.flip(0), k, v, scale=largest, backend=backend)
    torch.testing.assert_close(o, (v.sum(0) - v.flip(0)) / 7)


def test_kernels_reject_more_inputs_than_pytorch_tiles(device):
    named = "one of auto, hopper, triton, torch, first, got 'cuda'"
    for error, message, tensor, options in (
        (TypeError, "one of float32, .* got float64", zeros(8, 4).double(), {}),
        (ValueError, "q must have a head dimension from 1 to 256", zeros(8, 257), {}),
        (ValueError, "q must be on a CUDA device", META, {}),
        (ValueError, named, zeros(8, 4), {"backend": "cuda"}),
    ):
        with pytest.raises(error, match=message):
            flash_attention(*[tensor] * 3, **options)
    with pytest.raises(ValueError, match=r"be \(batch, N, d\).* got shape \(8, 4\)"):
        FlashAttentionTriton.apply(*[zeros(8, 4, device=device)] * 3)
    one = [zeros(1, 8, 4, device=device)] * 3
    with pytest.raises(ValueError, match="one of auto, hopper, triton, got 'cuda'"):
        FlashAttentionTriton.apply(*one, False, None, "cuda")


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("differentiated", [False, True])
def test_more_than_two_to_the_30_rows_are_rejected(which, differentiated, device):
    """The error comes before memory is allocated, so expanded tensors are enough."""
    tensors = [zeros(1, 1, 1, device=device) for _ in range(2)]
    tensors[which] = tensors[which].expand(1, 2**30 + 1, 1)
    q, k = tensors
    q.requires_grad_(differentiated)
    with pytest.raises(ValueError, match="at most 1073741824 rows, got .*1073741825"):
        flash_attention(q, k, k, backend="triton")


@pytest.mark.slow
def test_kernels_need_a_gpu_or_the_interpreter():
    code = """
import torch
from systems.attention import flash_attention
x = torch.zeros(8, 4)
assert flash_attention(x, x, x, backend="torch").shape == (8, 4)
try:
    flash_attention(x, x, x)
except ValueError as error:
    print(error)
"""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = run_python("-c", code, env=environment)
    assert done.stdout.startswith(
        "q must be on a CUDA device, got cpu; the CPU is taken where TRITON_INTERPRET=1"
    ), done


@pytest.mark.parametrize("backend", BACKENDS)
def test_second_derivatives_and_forward_mode_are_refused(backend, device):
    q, k, v, tangent = checks.make_inputs(20, 20, 16, device=device)
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="jvp"):
        flash_attention(q, k, forward_ad.make_dual(v, tangent), backend=backend)
    o = flash_attention(q.requires_grad_(), k, v, backend=backend)
    text = "can't be differentiated again: backward got create_graph=True"
    with pytest.raises(ValueError, match=text):
        torch.autograd.grad(o.sum(), q, create_graph=True)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("way", checks.BATCHED)
def test_batched_gradients_equal_single_passes(way, backend, device):
    q, k, v, _ = checks.make_inputs(
        20, 33, 16, device=device, lead=(2, 4), lead_k=(2, 2)
    )
    leaves = q.requires_grad_(), k.requires_grad_(), v.requires_grad_()
    o = flash_attention(*leaves, causal=True, backend=backend)
    checks.check_batched_gradients(way, o, leaves)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "dtypes",
    [(torch.float32,) * 3, (torch.float32, torch.float32, torch.bfloat16)],
    ids=str,
)
def test_autocast_casts_like_sdpa(dtypes, backend, device):
    leaves = [
        torch.randn(1, 2, 40, 16, device=device, dtype=dtype, requires_grad=True)
        for dtype in dtypes
    ]
    results = []
    for attention in (
        lambda q, k, v: flash_attention(q, k, v, causal=True, backend=backend),
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    ):
        with torch.autocast(device, dtype=torch.bfloat16):
            o = attention(*leaves)
        results.append((o, *torch.autograd.grad(o, leaves, torch.ones_like(o))))
    for ours, theirs in zip(*results, strict=True):
        assert ours.dtype == theirs.dtype
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.05)


def test_float32_matmuls_follow_torch_precision(set_precision):
    """The kernels never use Triton's default, TF32."""
    expected = {"highest": "highest", "high": "high", "medium": "high"}
    for setting, arithmetic in expected.items():
        set_precision(setting)
        assert launches.choose_arithmetic(torch.float32) == arithmetic
        assert launches.choose_arithmetic(torch.bfloat16) == "half"
    for setting, arithmetic in {"ieee": "highest", "tf32": "high"}.items():
        torch.backends.cuda.matmul.fp32_precision = setting
        assert launches.choose_arithmetic(torch.float32) == arithmetic


TRANSFORMS = {
    "grad": lambda f, x: torch.func.grad(lambda x: f(x).sum())(x),
    "vmap": lambda f, x: torch.func.vmap(f)(x),
    "vjp": lambda f, x: torch.func.vjp(f, x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,)),
    "hessian": lambda f, x: torch.func.hessian(lambda x: f(x).sum())(x),
}


@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("backend", [*BACKENDS, "first"])
def test_function_transforms_raise_a_clear_error(backend, transform, device):
    x = torch.randn(2, 64, 16, device=device)
    with pytest.raises(NotImplementedError, match="can't be transformed by torch.func"):
        TRANSFORMS[transform](lambda x: flash_attention(x, x, x, backend=backend), x)


def page_example(beginning: str) -> str:
    """Return the code in flash_any_shape.md whose last line begins with this text."""
    page = (ROOT / "docs" / "flash_any_shape.md").read_text(encoding="utf-8")
    blocks = [part.partition("```")[0].strip() for part in page.split("```python\n")]
    (code,) = [x for x in blocks if x.splitlines()[-1].startswith(beginning)]
    return code


@pytest.mark.parametrize(("n_q", "n_k"), [(5, 21), (20, 20), (1, 70)])
def test_page_example_equals_the_flash_attn_mask(n_q, n_k, device):
    """flash-attn aligns its mask at the last query, which sees all keys."""
    q, k, v, do = checks.make_inputs(n_q, n_k, 16, device=device, lead=(2, 3))
    leaves = q.requires_grad_(), k.requires_grad_(), v.requires_grad_()
    names: dict[str, Any] = {"q": q, "k": k, "v": v, "F": F}
    exec(page_example("o = flash_attention(F.pad("), names | globals(), names)
    visible = torch.ones(n_q, n_k, dtype=torch.bool, device=device).tril(n_k - n_q)
    expected = F.scaled_dot_product_attention(*leaves, attn_mask=visible)
    ours = names["o"], *checks.gradients(names["o"], leaves, do)
    for a, b in zip(
        ours, (expected, *checks.gradients(expected, leaves, do)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-5)


def test_page_example_accepts_the_flash_attn_layout(device):
    q, k, v = (torch.randn(2, 20, 3, 16, device=device) for _ in range(3))
    names: dict[str, Any] = {"q": q, "k": k, "v": v}
    exec(page_example("o = flash_attention(*(x.transpose"), names | globals(), names)
    expected = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)))
    torch.testing.assert_close(names["o"], expected.transpose(1, 2), rtol=0, atol=2e-5)


@pytest.mark.parametrize("cls", CLASSES)
def test_forward_saves_only_tensors_for_backward(cls, device):
    q, k, v, _ = checks.make_inputs(20, 30, 16, device=device, lead=(2,))
    o = cls.apply(*(x.requires_grad_() for x in (q, k, v)), True)
    saved = [q.shape, k.shape, v.shape, o.shape, q.shape[:-1]]
    assert sorted(x.shape for x in o.grad_fn.saved_tensors) == sorted(saved)


@pytest.mark.parametrize("cls", CLASSES)
def test_causal_mask_is_off_by_default(cls, device):
    q, k, v = torch.randn(3, 2, 20, 16, device=device, requires_grad=True)
    o = cls.apply(q, k, v)
    full, causal = (cls.apply(q, k, v, masked) for masked in (False, True))
    assert torch.equal(o, full) and not torch.equal(o, causal)
    assert torch.autograd.grad(o.sum(), q)[0].any()


def test_gradient_of_v_alone_is_right(device):
    q, k, v, do = checks.make_inputs(20, 30, 16, device=device)
    v.requires_grad_()
    (dv,) = torch.autograd.grad(flash_attention(q, k, v), v, do)
    expected = checks.run_reference(q, k, v, do, False)["dv"]
    assert torch.allclose(dv.double(), expected, atol=1e-5)


IMPORTING = """
import sys

class Missing:
    def find_spec(self, name, *_):
        if name.partition(".")[0] in {"msgspec", "typer", "rich", "yaml", "jinja2"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
import systems.attention
assert "torch" not in sys.modules and "triton" not in sys.modules
import systems.attention.torch_tiles
assert "systems.attention.dispatch" not in sys.modules
import torch
device = sys.argv[1]
for backend in ("torch", "triton", "auto", "first"):
    q = torch.ones(1, 64, 64, device=device, requires_grad=True)
    systems.attention.flash_attention(q, q, q, backend=backend).sum().backward()
    assert q.grad.isfinite().all()
assert "systems.attention.reference" not in sys.modules
for name in systems.attention.EXPORTS:
    assert getattr(systems.attention, name).__name__ == name
found = {name for name in sys.modules if name.startswith("systems.records")}
assert not found, found
from systems.attention.triton import tuned
assert tuned.configs("no-such-gpu", "3.7.1") == {} and tuned.kernels_hash()
"""


@pytest.mark.slow
def test_modules_are_imported_when_needed(device):
    """The package imports without torch, and no kernel needs records or the oracle."""
    done = run_python("-c", IMPORTING, device)
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="no attribute 'flash9'"):
        _ = attention_package.flash9

"""Test that launches are prepared once per layout, and bypass Triton's slow path."""

import ast
import math
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from triton import knobs

from systems import ROOT
from systems.attention import dispatch, flash_attention, prepared, relaunch
from systems.attention.relaunch import (
    Launch,
    make_layout,
    shape_and_strides,
    use_device,
)
from systems.attention.triton.launches import launch_forward
from tests.attention.checks import make_inputs


class FakeKernel:
    """A stand-in for a Triton function, which records calls and compiled launches."""

    arg_names: tuple[str, ...] = ("x_ptr", "y_ptr", "stride", "n", "B", "A")

    def __init__(self):
        self.calls = []

    def __getitem__(self, grid):
        def launch(*args, **options):
            self.calls.append(("asked", grid, args, options))
            return FakeCompiled(self.calls)

        return launch


class FakeCompiled:
    function, packed_metadata = "function", "metadata"

    def __init__(self, calls):
        self.calls = calls

    def run(self, *args):
        self.calls.append(("again", *args))

    def __getitem__(self, grid):
        return lambda *args: self.calls.append(("with hooks", grid, args))


STREAM = 70


@pytest.fixture
def fake_gpu(monkeypatch):
    """Pretend that the current device is GPU 3."""
    active = SimpleNamespace(
        get_current_device=lambda: 3, get_current_stream=lambda device: STREAM + device
    )
    monkeypatch.setattr(relaunch, "driver", SimpleNamespace(active=active))


def test_every_launch_enables_fp_fusion():
    """Without `enable_fp_fusion` Triton 3.9 warns, because its default will change."""
    launched = set()
    for path in (ROOT / "systems").rglob("*.py"):
        for call in ast.walk(ast.parse(path.read_text())):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Subscript):
                kernel = ast.unparse(call.func.value)
                if kernel.endswith("kernel"):
                    given = {k.arg: ast.unparse(k.value) for k in call.keywords}
                    in_general = kernel == "self.kernel"
                    assert in_general or given["enable_fp_fusion"] == "True", kernel
                    launched.add(kernel)
    assert {"self.kernel", "forward_kernel", "add_kernel"} <= launched


def aligned_view(offset: int = 0) -> torch.Tensor:
    memory = torch.zeros(64)
    return memory[-memory.data_ptr() // 4 % 4 + offset :][:8]


@pytest.mark.usefixtures("fake_gpu")
def test_only_the_first_launch_takes_the_slow_path():
    kernel, x, y = FakeKernel(), aligned_view(), aligned_view()
    launch = Launch(kernel, (7,), (3, 5), {"A": 1, "B": 2}, num_warps=4)
    launch(x, y)
    launch(y, x)
    given = {"A": 1, "B": 2, "enable_fp_fusion": True, "num_warps": 4}
    assert kernel.calls == [
        ("asked", (7, 1, 1), (x, y, 3, 5), given),
        # Expected: no hooks, addresses, then constants in the order of parameters.
        (
            *("again", 7, 1, 1, STREAM + 3, "function", "metadata", None, None, None),
            *(y.data_ptr(), x.data_ptr(), 3, 5, 2, 1),
        ),
    ]


@pytest.mark.usefixtures("fake_gpu")
def test_oversized_grids_raise_a_clear_error():
    kernel, x = FakeKernel(), aligned_view()
    Launch(kernel, (2**31 - 1,), (3, 5), {"A": 1, "B": 2})(x, x)
    with pytest.raises(ValueError, match="at most 2147483647 programs .* 2147483648"):
        Launch(kernel, (2**31,), (3, 5), {"A": 1, "B": 2})(x, x)
    assert len(kernel.calls) == 1


@pytest.mark.usefixtures("fake_gpu")
def test_launch_option_may_be_a_kernel_argument():
    """A Gluon kernel may have num_warps as an argument; descriptors have no address."""
    kernel, x, described = FakeKernel(), aligned_view(), object()
    kernel.arg_names = ("x_ptr", "y_desc", "n", "A", "num_warps")
    launch = Launch(kernel, (7,), (3,), {"A": 1}, num_warps=4, maxnreg=168)
    launch(x, described)
    launch(x, described)
    assert kernel.calls[1][-5:] == (x.data_ptr(), described, 3, 1, 4)


@pytest.mark.usefixtures("fake_gpu")
def test_unaligned_tensors_take_the_slow_path():
    kernel, x, y = FakeKernel(), aligned_view(), aligned_view(offset=1)
    launch = Launch(kernel, (7,), (3, 5), {"A": 1, "B": 2})
    for tensors in ((x, y), (x, x), (y, x), (x, x)):
        launch(*tensors)
    assert [call[0] for call in kernel.calls] == ["asked", "asked", "asked", "again"]


@pytest.mark.usefixtures("fake_gpu")
@pytest.mark.parametrize("hook", ["launch_enter_hook", "launch_exit_hook"])
@pytest.mark.parametrize(
    ("put", "second"), [("added", "with hooks"), (print, "with hooks"), (None, "again")]
)
def test_launches_under_a_profiler_call_its_hooks(hook, put, second, monkeypatch):
    """Triton's hooks are a chain or a single function, depending on its version."""
    kernel, x, chain = FakeKernel(), aligned_view(), getattr(knobs.runtime, hook)
    launch = Launch(kernel, (7,), (3, 5), {"A": 1, "B": 2})
    launch(x, x)
    with monkeypatch.context() as patch:
        if put == "added":
            patch.setattr(chain, "calls", [print])
        else:
            patch.setattr(knobs.runtime, hook, put)
        launch(x, x)
    launch(x, x)
    assert [call[0] for call in kernel.calls] == ["asked", second, "again"]
    if put:
        arguments = x.data_ptr(), x.data_ptr(), 3, 5, 2, 1
        assert kernel.calls[1] == ("with hooks", (7, 1, 1), arguments)


def test_device_of_a_tensor_becomes_current(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(torch.cuda, "device", lambda device: device)
    first, second = (
        cast(
            torch.Tensor,
            SimpleNamespace(is_cuda=True, device=f"cuda:{i}", get_device=lambda i=i: i),
        )
        for i in (0, 1)
    )
    assert use_device(first) == "cuda:0"
    assert use_device(second) is use_device(torch.zeros(1)) is relaunch.NO_DEVICE_CHANGE


def test_layout_has_four_dimensions():
    x = torch.zeros(4, 8, 16).transpose(0, 1)
    assert make_layout(*shape_and_strides(x)) == ((1, 8, 4, 16), (0, 16, 128, 1))
    assert make_layout(*shape_and_strides(x[None])).shape == (1, 8, 4, 16)
    split = make_layout(*shape_and_strides(x.unflatten(0, (2, 4))))
    assert split.strides == (64, 16, 128, 1)


@pytest.mark.gpu
def test_triton_hooks_see_launches():
    x = torch.randn(3, 1, 2, 64, 16, device="cuda").unbind()
    heard = []
    launch_forward(*x, True, 0.25)
    knobs.runtime.launch_enter_hook.add(heard.append)
    try:
        launch_forward(*x, True, 0.25)
    finally:
        knobs.runtime.launch_enter_hook.remove(heard.append)
    launch_forward(*x, True, 0.25)
    assert [metadata.get()["name"] for metadata in heard] == ["forward_kernel"]


def make_leaves(*tensors):
    return tuple(x.detach().requires_grad_() for x in tensors)


def test_second_call_reuses_prepared_launches(device, monkeypatch):
    q, k, v, do = make_inputs(20, 33, 16, device=device, lead=(1, 2))
    one = torch.ones((), device=device).expand_as(q)

    def run_passes():
        leaves = make_leaves(q.clone(), k.clone(), v.clone())
        o = flash_attention(*leaves, causal=True)
        by = [torch.autograd.grad(o, leaves, x, retain_graph=True) for x in (do, one)]
        return flash_attention(q, k, v, causal=True), o, *by[0], *by[1]

    first = run_passes()
    for module, names in (
        (dispatch, "check_arguments choose_backend"),
        (prepared, "check_properties forward_launches backward_launches"),
    ):
        for name in names.split():
            monkeypatch.setattr(module, name, lambda *_, name=name: pytest.fail(name))
    assert all(torch.equal(a, b) for a, b in zip(run_passes(), first, strict=True))


def test_backward_rereads_float32_precision(device, monkeypatch, set_precision):
    q, k, v, do = make_inputs(20, 20, 16, device=device, lead=(1, 2))
    prepared.prepare_call_cached.cache_clear()
    asked, launches_for = [], prepared.backward_launches

    def record_arithmetic(arithmetic, *rest):
        asked.append(arithmetic)
        return launches_for(arithmetic, *rest)

    monkeypatch.setattr(prepared, "backward_launches", record_arithmetic)
    leaves = make_leaves(q, k, v)
    set_precision("highest")
    o = flash_attention(*leaves)
    for setting in ("highest", "high", "highest"):
        set_precision(setting)
        torch.autograd.grad(o, leaves, do, retain_graph=True)
    # Each arithmetic was prepared once.
    assert asked == ["highest", "high"]


WRONG: dict[str, dict[str, Any]] = {
    "causal must be True or False, got 1": {"causal": 1},
    "scale must be an int, a float or None": {"causal": True, "scale": True},
    "scale must be positive": {"causal": True, "scale": 0.0},
    "backend must be one of": {"causal": True, "backend": "none"},
}


@pytest.mark.parametrize("said", WRONG)
@pytest.mark.parametrize("recorded", [False, True])
def test_invalid_options_that_equal_cached_ones_are_rejected(said, recorded, device):
    """Test causal=1 after causal=True: both are equal as keys of a cache."""
    q, k, v, _ = make_inputs(20, 20, 16, device=device)
    if recorded:
        q, k, v = make_leaves(q, k, v)
    flash_attention(q, k, v, causal=True, scale=1.0)
    with pytest.raises((TypeError, ValueError), match=said):
        flash_attention(q, k, v, **WRONG[said])


# Hooks that change the layout of a saved tensor.
PACKS = {
    "contiguous": lambda x: x.clone(memory_format=torch.contiguous_format),
    "amid NaN": lambda x: torch.stack((x, torch.full_like(x, math.nan)), -1)[..., 0],
}
LIES = {
    "without a batch": lambda *tensors: tuple(x[0] for x in tensors),
    "heads beside tokens": lambda *tensors: tuple(
        x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors
    ),
    "one tensor of three": lambda *tensors: torch.stack(tensors, 3).unbind(3),
}


@pytest.mark.parametrize(
    ("backend", "lies", "pack"),
    [
        *(("auto", lies, "contiguous") for lies in list(LIES)[1:]),
        *((each, "without a batch", "amid NaN") for each in ("auto", "first", "torch")),
    ],
)
def test_hooks_may_change_layouts_of_saved_tensors(backend, lies, pack, device):
    q, k, v, do = make_inputs(64, 64, 16, device=device, lead=(1, 2))
    leaves = make_leaves(*LIES[lies](q, k, v))
    options = {"causal": True, "backend": backend}
    do = do.view(leaves[0].shape)
    expected = torch.autograd.grad(flash_attention(*leaves, **options), leaves, do)
    with torch.autograd.graph.saved_tensors_hooks(PACKS[pack], lambda x: x):
        o = flash_attention(*leaves, **options)
    for a, b in zip(torch.autograd.grad(o, leaves, do), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)

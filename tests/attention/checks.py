"""Compare attention with float64; allow twice plain PyTorch's error plus a margin."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import combinations, product
from typing import Any

import pytest
import torch
from torch import Tensor

from systems.attention import attention_reference

NAMES: tuple[str, ...] = ("o", "lse", "dq", "dk", "dv")
# Tested dtypes and head dimensions; Triton's kernels pad 80 and 96 columns to 128.
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
HEAD_DIMS = [16, 32, 64, 80, 96, 128, 256]
# Upper bounds of errors, relative to max(1, largest exact value).
CAP = {torch.double: 1e-10, torch.float32: 1e-3, torch.half: 2e-2, torch.bfloat16: 0.1}


IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
# Skip without a Hopper GPU; not if `VERSIONS` lacks this Triton.
HOPPER = (pytest.mark.gpu, pytest.mark.skipif(not IS_HOPPER, reason="needs a Hopper"))


def needs_hopper(test):
    return HOPPER[0](HOPPER[1](test))


def parametrize_pairs(**axes: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize with all combinations on a GPU; on a CPU, with a pairwise subset."""
    every = list(product(*axes.values()))
    cases = every if torch.cuda.is_available() else cover_pairs(every)
    return pytest.mark.parametrize(
        tuple(axes), cases, ids=lambda value: getattr(value, "__name__", str(value))
    )


def cover_pairs(every: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Choose combinations greedily until each pair of values of two axes occurs."""

    def value_pairs(case: tuple[Any, ...]) -> set[Any]:
        return set(combinations(enumerate(map(repr, case)), 2))

    missing, chosen = set().union(*map(value_pairs, every)), []
    while missing:
        chosen.append(max(every, key=lambda case: len(value_pairs(case) & missing)))
        missing -= value_pairs(chosen[-1])
    return chosen


def make_inputs(
    n_q: int,
    n_k: int,
    d: int,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    lead: tuple[int, ...] = (1,),
    lead_k: tuple[int, ...] | None = None,
    sigma: float = 1.0,
    seed: int = 0,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return normal q, k, v and do; scaled scores have the standard deviation sigma."""
    generator = torch.Generator().manual_seed(seed)

    def draw_normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    lead_k = lead if lead_k is None else lead_k
    tensors = (
        draw_normal(*lead, n_q, d) * sigma,
        draw_normal(*lead_k, n_k, d),
        draw_normal(*lead_k, n_k, d),
        draw_normal(*lead, n_q, d),
    )
    q, k, v, do = (x.to(device, dtype) for x in tensors)
    return q, k, v, do


def to_dict(results: Iterable[Tensor]) -> dict[str, Tensor]:
    return dict(zip(NAMES, results, strict=True))


def gradients(o: Tensor, inputs: tuple[Tensor, ...], do: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(o, inputs, do, retain_graph=True)


def find_saved_lse(o: Tensor, rows: tuple[int, ...]) -> Tensor:
    """Return the log-sum-exp saved for backward: the only tensor of shape `rows`."""
    saved = o.grad_fn.saved_tensors  # pyright: ignore
    (lse,) = [x for x in saved if x.shape == rows]
    return lse


def run_class(
    cls, q: Tensor, k: Tensor, v: Tensor, do: Tensor, causal: bool, *options
) -> dict[str, Tensor]:
    """Return o, lse, dq, dk and dv of an autograd Function, by name."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    o = cls.apply(q, k, v, causal, *options)
    lse = find_saved_lse(o, q.shape[:-1])
    return to_dict((o.detach(), lse, *gradients(o, (q, k, v), do)))


def run_reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    causal: bool,
    scale: float | None = None,
    dtype=torch.float64,
) -> dict[str, Tensor]:
    """Return o, lse, dq, dk and dv of plain attention in this dtype, by name."""
    q, k, v = (x.detach().to(dtype).requires_grad_() for x in (q, k, v))
    o, lse = attention_reference(q, k, v, causal, scale)
    return to_dict((o.detach(), lse.detach(), *gradients(o, (q, k, v), do.to(dtype))))


class LimbMatmul(torch.autograd.Function):
    """Multiply float32 matrices as bfloat16 limbs, also in the backward pass."""

    @staticmethod
    def forward(ctx, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return matmul_limbs(a, b)

    @staticmethod
    def backward(ctx, g: Tensor):  # pyright: ignore[reportIncompatibleMethodOverride]
        a, b = ctx.saved_tensors
        return matmul_limbs(g, b.mT), matmul_limbs(a.mT, g)


def matmul_limbs(a: Tensor, b: Tensor) -> Tensor:
    """Return a @ b as the float32 sum of three matmuls of bfloat16 limbs."""
    (a_high, a_low), (b_high, b_low) = split_into_two_limbs(a), split_into_two_limbs(b)
    return a_low @ b_high + a_high @ b_low + a_high @ b_high


def split_into_two_limbs(x: Tensor) -> tuple[Tensor, Tensor]:
    """Split float32 into the nearest bfloat16 and the rest, rounded to bfloat16."""
    high = x.bfloat16().float()
    return high, (x - high).bfloat16().float()


def mask_later_keys(s: Tensor) -> Tensor:
    later = torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu(1)
    return s.masked_fill(later, float("-inf"))


def run_in_limbs(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, causal: bool, scale: float | None
) -> dict[str, Tensor]:
    """Return o, lse, dq, dk and dv of plain attention with `matmul_limbs`, by name."""
    q, k, v = (x.detach().requires_grad_() for x in (q, k, v))
    s = LimbMatmul.apply(q, k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
    s = mask_later_keys(s) if causal else s
    o, lse = LimbMatmul.apply(torch.softmax(s, -1), v), torch.logsumexp(s, -1)
    return to_dict((o.detach(), lse.detach(), *gradients(o, (q, k, v), do)))


def delta_errors(
    o_error: Tensor,
    q: Tensor,
    k: Tensor,
    do: Tensor,
    causal: bool,
    scale: float | None,
    lse: Tensor,
) -> dict[str, float]:
    """Return the errors of dq and dk due to o's error in delta = rowsum(o · do)."""
    q, k, do = q.double(), k.double(), do.double()
    scale = float(q.shape[-1] ** -0.5 if scale is None else scale)
    s = q @ k.mT * scale
    s = mask_later_keys(s) if causal else s
    ds = torch.exp(s - lse[..., None]) * (o_error * do).sum(-1, keepdim=True)
    return {
        "dq": (ds @ k * scale).abs().max().item(),
        "dk": (ds.mT @ q * scale).abs().max().item(),
    }


def max_error(actual: Tensor, exact: Tensor) -> float:
    return (actual.double() - exact.double()).abs().max().item()


def check_against_reference(
    actual: Mapping[str, Tensor] | Iterable[Tensor],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    do: Tensor,
    causal: bool,
    scale: float | None = None,
    split: bool = False,
) -> None:
    """Check that each error is at most CAP · max(1, largest value), and at most twice
    plain PyTorch's error in the same precision plus a margin.

    The margin, `band`, adds: one rounding of the result; `terms`, because float32 sums
    of d products can cancel; `walk`, the random walk of rounding errors in a sum over
    tokens; `recomputed`, the rounding of lse. With `split`, plain attention multiplies
    float32 as bfloat16 limbs, and `band` for dq and dk adds o's error by way of delta.
    """
    actual = actual if isinstance(actual, Mapping) else to_dict(actual)
    exact = run_reference(q, k, v, do, causal, scale)
    wide = q.dtype if q.dtype == torch.float64 else torch.float32
    if split:
        plain = run_in_limbs(q, k, v, do, causal, scale)
    else:
        plain = run_reference(q, k, v, do, causal, scale, dtype=q.dtype)
        plain["lse"] = run_reference(q, k, v, do, causal, scale, dtype=wide)["lse"]
    eps = torch.finfo(wide).eps
    for name in NAMES:
        assert torch.isfinite(actual[name]).all(), f"{name} is not finite"
        dtype = wide if name == "lse" else q.dtype
        assert actual[name].dtype == dtype, name
        assert actual[name].shape == exact[name].shape, name
        largest = exact[name].abs().max().item()
        # The products in dk and lse have q as a factor, so their errors scale with q.
        size = q.abs().max().item() if name in ("dk", "lse") else 1.0
        terms = 8 * eps * q.shape[-1] ** 0.5 * size
        # Rounding an lse of 200 changes p = exp(s - lse) by 200 eps.
        recomputed = eps * exact["lse"].abs().max().item() * largest
        recomputed *= name not in ("o", "lse")
        summed = q.shape[-2] if name in ("dk", "dv") else k.shape[-2]
        walk = eps / 2 * summed**0.5 * largest
        band = torch.finfo(dtype).eps * largest + terms + walk + recomputed
        if split and name in ("dq", "dk"):
            o_error = plain["o"] - exact["o"]
            band += delta_errors(o_error, q, k, do, causal, scale, exact["lse"])[name]
        error = max_error(actual[name], exact[name])
        bound = 2 * max_error(plain[name], exact[name]) + band
        bound = min(bound, CAP[q.dtype] * max(1.0, largest))
        assert error <= bound, (
            f"{name}: error {error:.3g} exceeds {bound:.3g} (largest {largest:.3g})"
        )


def check_result(cls, inputs, causal: bool, scale: float | None = None) -> None:
    """Check the results of an autograd Function against the reference."""
    results = run_class(cls, *inputs, causal, scale)
    check_against_reference(results, *inputs, causal, scale)


# Ways to compute several gradients in one backward pass, as functions of an output,
# inputs and a stack of output gradients.
BATCHED = {
    "is_grads_batched": lambda o, inputs, dos: torch.autograd.grad(
        o, inputs, dos, is_grads_batched=True, retain_graph=True
    ),
    "vmap": lambda o, inputs, dos: torch.func.vmap(lambda do: gradients(o, inputs, do))(
        dos
    ),
    "vmap along the last dimension": lambda o, inputs, dos: torch.func.vmap(
        lambda do: gradients(o, inputs, do), in_dims=-1
    )(dos.movedim(0, -1)),
}


def check_batched_gradients(way: str, o: Tensor, inputs: tuple[Tensor, ...]) -> None:
    """Check that batched gradients are bitwise equal to gradients of single passes."""
    dos = torch.randn(3, *o.shape, device=o.device).to(o.dtype)
    found = BATCHED[way](o, inputs, dos)
    for i, do in enumerate(dos):
        for ours, alone in zip(found, gradients(o, inputs, do), strict=True):
            assert torch.equal(ours[i], alone)


@contextmanager
def poison_buffers(launches) -> Iterator[list[Tensor]]:
    """Fill new buffers with NaN, yield their list, and check the memory around them."""
    memories, new_empty = [], Tensor.new_empty

    def new_poisoned(x, shape, dtype=None, **options):
        # Calls with a device are copies by Triton's interpreter: don't poison those.
        if options:
            return new_empty(x, shape, dtype=dtype, **options)
        size, kind = math.prod(shape), dtype or x.dtype
        memory = torch.full((size + 8192,), float("nan"), dtype=kind, device=x.device)
        memory[:4096] = memory[-4096:] = 123.0
        memories.append(memory)
        return memory[4096:-4096].view(shape)

    def new_statistics(x):
        return new_poisoned(x, x.shape[:-1], torch.float32)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "new_empty", new_poisoned)
        patch.setattr(torch, "empty_like", lambda x: new_poisoned(x, x.shape))
        patch.setattr(launches, "empty_row_statistics", new_statistics)
        yield memories
    for memory in memories:
        assert (memory[:4096] == 123).all() and (memory[-4096:] == 123).all()


class FakeGpuTensor:
    """A stand-in for a GPU tensor with the properties that `choose_backend` reads."""

    def __init__(self, x: torch.Tensor, device: str = "cuda:0"):
        self.x, self.device = x, torch.device(device)

    def __getattr__(self, name: str):
        return getattr(self.x, name)


def fake_tensor(*shape: int, dtype=torch.bfloat16, device: str = "cuda:0") -> Any:
    return FakeGpuTensor(torch.empty(shape, dtype=dtype, device="meta"), device)

"""Imitate CUDA's autocast on a CPU: in `cuda_autocast`, bf16 autocast for "cpu" casts
and caches as on CUDA. test_autocast.py compares the results with a GPU's record."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

aten = torch.ops.aten


@contextmanager
def cuda_autocast(monkeypatch) -> Iterator[None]:
    copies: dict[int, Tensor] = {}
    monkeypatch.setattr(torch, "clear_autocast_cache", copies.clear)

    def cast_to_bf16(x: Tensor) -> Tensor:
        if x.dtype != torch.float32:
            return x
        # Autocast caches copies only of leaves that require gradients.
        if not (x.is_leaf and x.requires_grad):
            return x.to(torch.bfloat16)
        if id(x) not in copies:
            copies[id(x)] = x.to(torch.bfloat16)
        return copies[id(x)]

    def einsum(equation, tensors, *, path=None):
        return aten.einsum(equation, [cast_to_bf16(x) for x in tensors], path=path)

    def sum_in_fp32(x, *arguments, dtype=None, **options):
        wide = dtype or torch.float32
        return aten.sum.dim_IntList(x, *arguments, dtype=wide, **options)

    def cross_entropy(logits, targets, *_):
        # The CPU runs cross-entropy in fp32 as a whole, CUDA only its `nll_loss`.
        logarithms = aten.log_softmax.int(logits, 1, logits.dtype)
        return aten.nll_loss_nd(logarithms.float(), targets)

    def run_in_fp32(operation):
        return lambda x, *arguments: operation(x.float(), *arguments)

    library = torch.library.Library("aten", "IMPL")
    for name, function in {
        "einsum": einsum,
        "pow.Tensor_Scalar": run_in_fp32(aten.pow.Tensor_Scalar),
        "rsqrt": run_in_fp32(aten.rsqrt.default),
        "exp": run_in_fp32(aten.exp.default),
        "sum.dim_IntList": sum_in_fp32,
        "cross_entropy_loss": cross_entropy,
    }.items():
        with warnings.catch_warnings():
            # Overriding the CPU's cast of the loss is intended.
            warnings.filterwarnings("ignore", "Warning only once for all operators")
            library.impl(name, disable_autocast(function), "AutocastCPU")
    try:
        yield
    finally:
        library._destroy()


def disable_autocast(function):
    """Return the function, with autocast disabled inside."""
    autocast = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def run(*arguments, **options):
        with torch._C._ExcludeDispatchKeyGuard(autocast):
            return function(*arguments, **options)

    return run

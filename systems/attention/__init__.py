"""Attention functions and classes. Their modules are imported on first use, so that
importing this package does not import torch. "Where to find what" in CONTRIBUTING.md
says which modules choose, tune and launch kernels.

    from systems.attention import attention_reference, flash_attention
    from systems.attention import FlashAttentionPyTorch, FlashAttentionTriton
"""

from importlib import import_module
from typing import TYPE_CHECKING

from systems.attention.implementations import IMPLEMENTATIONS

if TYPE_CHECKING:
    from systems.attention.dispatch import FlashAttentionTriton
    from systems.attention.flash import flash_attention
    from systems.attention.reference import attention_reference
    from systems.attention.torch_tiles import FlashAttentionPyTorch

__all__ = [
    "IMPLEMENTATIONS",
    "FlashAttentionPyTorch",
    "FlashAttentionTriton",
    "attention_reference",
    "flash_attention",
]

# Public names and the modules that define them.
EXPORTS = {
    "attention_reference": "systems.attention.reference",
    "flash_attention": "systems.attention.flash",
    "FlashAttentionPyTorch": "systems.attention.torch_tiles",
    "FlashAttentionTriton": "systems.attention.dispatch",
}


def __getattr__(name: str):
    if name not in EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(EXPORTS[name]), name)

"""Adapters for the course's test file, which runs if it is copied to this folder."""

import einops  # noqa: F401, the course's file imports it

from systems.attention import FlashAttentionPyTorch, FlashAttentionTriton


def get_flashattention_autograd_function_pytorch():
    return FlashAttentionPyTorch


def get_flashattention_autograd_function_triton():
    return FlashAttentionTriton

"""What the course's own test file asks for: put it into this folder and run it."""

from systems.attention import FlashAttentionPyTorch, FlashAttentionTriton


def get_flashattention_autograd_function_pytorch():
    return FlashAttentionPyTorch


def get_flashattention_autograd_function_triton():
    return FlashAttentionTriton

"""Tests marked `gpu` are skipped where torch sees no GPU. torch is imported only if one was collected."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if not marked:
        return
    import torch

    if not torch.cuda.is_available():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason=f"needs a GPU, and torch {torch.__version__} sees none"))

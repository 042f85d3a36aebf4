from pathlib import Path

import pytest

from tests.factories import copied_tree


@pytest.fixture
def tree(tmp_path) -> Path:
    """A tree whose only experiments are those of the tests."""
    return copied_tree(tmp_path / "tree")

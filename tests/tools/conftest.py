from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.factories import copied_tree

if TYPE_CHECKING:
    from tests.tools.browser.looking import Browser


@pytest.fixture
def tree(tmp_path) -> Path:
    """A tree whose only experiments are those of the tests."""
    return copied_tree(tmp_path / "tree")


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Browser]:
    """One for all tests: Playwright runs once in a process."""
    from tests.tools.browser.looking import FLAGS, sync_playwright

    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=chromium, args=FLAGS)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of this tree, built once for all tests."""
    from tests.tools.browser.looking import built_once

    return built_once(tmp_path_factory, "site")

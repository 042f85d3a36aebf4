from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.factories import copy_tree

if TYPE_CHECKING:
    from tests.tools.browser.looking import Browser


@pytest.fixture
def tree(tmp_path) -> Path:
    """Return a copy of the project with only the tests' experiments."""
    return copy_tree(tmp_path / "tree")


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Browser]:
    """Start one browser for all tests, because Playwright runs once per process."""
    from tests.tools.browser.looking import FLAGS, sync_playwright

    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=chromium, args=FLAGS)


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the built site, shared by all tests."""
    from tests.tools.browser.looking import build_once

    return build_once(tmp_path_factory, "site")

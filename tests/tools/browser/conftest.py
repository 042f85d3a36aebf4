"""Each test opens the site in a fresh browser profile."""

# Import `looking` late, because it skips the importing module without a browser.
from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.tools.browser.looking import Browser, Page


@pytest.fixture(scope="session")
def pages(site: Path) -> list[Path]:
    return sorted(path for path in site.rglob("*.html") if path.name != "404.html")


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """Open a fresh profile, and fail on a remote request or an error on the console."""
    from tests.tools.browser.looking import DESK, is_remote

    context = browser.new_context(viewport=DESK, color_scheme="light", offline=True)
    remote: list[str] = []
    errors: list[str] = []
    context.on(
        "request",
        lambda request: remote.append(request.url) if is_remote(request.url) else None,
    )
    context.on(
        "console",
        lambda message: (
            errors.append(message.text)
            if message.type in {"error", "warning"}
            else None
        ),
    )
    context.on("weberror", lambda error: errors.append(str(error.error)))
    yield context.new_page()
    context.close()
    assert remote == []
    assert errors == []

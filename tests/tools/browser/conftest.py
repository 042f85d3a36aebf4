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
    from playwright.sync_api import ConsoleMessage

    from tests.tools.browser.looking import DESK, is_remote

    context = browser.new_context(viewport=DESK, color_scheme="light", offline=True)
    urls, messages, errors = list[str](), list[ConsoleMessage](), list[str]()
    context.on("request", lambda request: urls.append(request.url))
    context.on("console", lambda message: messages.append(message))
    context.on("weberror", lambda error: errors.append(str(error.error)))
    yield context.new_page()
    context.close()
    assert [url for url in urls if is_remote(url)] == []
    assert [x.text for x in messages if x.type in {"error", "warning"}] == []
    assert errors == []

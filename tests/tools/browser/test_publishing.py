"""Test the published site under a repository's path, and its 404 page."""

from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.tools.browser.looking import DESK, PHONE, Browser, build_site, expect

pytestmark = pytest.mark.browser


class SiteHandler(SimpleHTTPRequestHandler):
    """A server for the site below /guide/, as on GitHub Pages."""

    def send_error(self, code: int, *_: object) -> None:
        body = Path(self.directory, "guide", "404.html").read_bytes()
        self.send_response(code)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def address(tmp_path: Path) -> Iterator[str]:
    """Serve the folder tmp_path, and return the address of its folder `guide`."""
    handler = partial(SiteHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/guide/"
        server.shutdown()


def test_site_works_in_a_sub_path(
    browser: Browser, tmp_path: Path, address: str
) -> None:
    repository = "https://example.org/owner/guide"
    build_site(tmp_path / "guide", SITE_URL=address, REPO_URL=repository)
    context = browser.new_context(viewport=DESK)
    answers: dict[str, int] = {}
    failed: list[str] = []
    context.on("response", lambda one: answers.update({one.url: one.status}))
    # Requests of a page are aborted when the browser leaves it.
    context.on(
        "requestfailed",
        lambda one: one.failure == "net::ERR_ABORTED" or failed.append(one.url),
    )
    page = context.new_page()
    for name in ("index.html", "notebooks/online_softmax.html", "api/attention.html"):
        page.goto(address + name)
        expect(page.locator("article h1")).to_be_visible()
        link = page.locator(".md-header .md-source")
        expect(link).to_have_attribute("href", repository)
    page.locator(".md-search__input").click()
    page.locator(".md-search__input").press_sequentially("online softmax")
    expect(
        page.locator('.md-search-result__link[href*="online_softmax.html"]').first
    ).to_be_visible()
    assert {url: code for url, code in answers.items() if code >= 400} == {}
    missing = f"{address}no/such/page.html"
    page.goto(missing)
    expect(page.locator("article h1")).to_have_text("This page is not here")
    # The logo is small only if the style sheets are loaded.
    box = page.locator(".md-logo svg").first.bounding_box()
    assert box and box["width"] < 50
    page.locator("article a", has_text="overview").click()
    expect(page).to_have_url(f"{address}index.html")
    assert [url for url, code in answers.items() if code >= 400] == [missing]
    # No other host is requested, not even for the repository's stars.
    assert failed == []
    assert all(url.startswith((address, "data:", "blob:")) for url in answers)
    context.close()


@pytest.mark.parametrize("script", [False, True])
def test_404_page_works_without_a_site_url(
    browser: Browser, site: Path, tmp_path: Path, address: str, script: bool
) -> None:
    """The site was built without an address, and copied into a server's folder."""
    (tmp_path / "guide").symlink_to(site)
    context = browser.new_context(viewport=DESK, java_script_enabled=script)
    page = context.new_page()
    page.goto(f"{address}no/such/page.html")
    expect(page.locator("article h1")).to_have_text("This page is not here")
    if script:
        expect(page.locator(".md-logo svg").first).to_be_visible()
        page.locator(".md-search__input").click()
        page.locator(".md-search__input").press_sequentially("softmax")
        expect(page.locator(".md-search-result__link").first).to_be_visible()
        page.keyboard.press("Escape")
        page.locator("article a", has_text="overview").click()
        expect(page).to_have_url(f"{address}index.html")
    else:
        # Without scripts the page is plain, and no drawing fills the screen.
        widest = "all => Math.max(0, ...all.map((x) => x.clientWidth))"
        assert page.locator("svg:visible").evaluate_all(widest) <= 40
        expect(page.locator("nav li:visible")).to_have_count(0)
        page.set_viewport_size(PHONE)
        page.goto(f"{address}accumulation.html")
        assert page.evaluate("document.body.scrollWidth") == PHONE["width"]
        page.goto(f"{address}explorer.html")
        expect(page.locator("#explorer :is(a, button):visible")).to_have_count(0)
        page.goto(f"{address}index.html")
        expect(page.locator("article input:visible")).to_have_count(0)
    context.close()

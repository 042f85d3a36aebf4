"""The hook that tells where to go, inside the site and from outside."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tools.hooks import publishing


@pytest.mark.parametrize(
    ("site_url", "overview"),
    [
        ("", "/index.html"),
        ("https://example.org/", "/index.html"),
        ("https://example.org/guide/", "/guide/index.html"),
    ],
)
def test_a_wrong_address_leads_to_the_overview(site_url: str, overview: str) -> None:
    config: Any = SimpleNamespace(site_url=site_url, site_name="Guide")
    page = f"<title>Guide</title>{publishing.NOT_FOUND}"
    shown = publishing.on_post_template(page, template_name="404.html", config=config)
    assert f'href="{overview}"' in shown
    assert "<title>Not found - Guide</title>" in shown
    assert publishing.NOT_FOUND not in shown
    same = publishing.on_post_template(page, template_name="main.html", config=config)
    assert same == page


def test_programs_get_a_list_of_all_pages() -> None:
    config: Any = SimpleNamespace(site_name="Guide", site_description="Of what.")
    pages: Any = [
        SimpleNamespace(
            title=f"Page {name}",
            url=f"{name}.html",
            canonical_url=top and f"{top}{name}.html",
            meta={"description": f"About {name}."},
        )
        for name, top in (("one", None), ("two", "https://example.org/guide/"))
    ]
    assert publishing.listed(pages, config) == (
        "# Guide\n\n> Of what.\n\n- [Page one](one.html): About one.\n"
        "- [Page two](https://example.org/guide/two.html): About two.\n"
    )


def test_what_repeats_on_every_page_is_not_searched() -> None:
    shown = publishing.on_page_content('<p class="provenance">Measured</p><p>Why</p>')
    assert shown == '<p class="provenance" data-search-exclude>Measured</p><p>Why</p>'
    listing = '<div class="language-python highlight"><pre>x</pre></div>'
    assert "data-search-exclude><pre>" in publishing.on_page_content(listing)
    command = listing.replace("python", "console")
    assert publishing.on_page_content(command) == command

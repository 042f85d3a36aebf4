"""Test the publishing hook and the theme's templates."""

from types import SimpleNamespace
from typing import Any

import pytest
from jinja2 import ChoiceLoader, DictLoader, Environment, FileSystemLoader
from material.plugins.search.plugin import Parser
from mkdocs.exceptions import PluginError

from systems import ROOT
from tools.hooks import publishing

# A stand-in for the theme's base.html, which the templates extend.
BASE = """{% block htmltitle %}{% endblock %}{% block extrahead %}{% endblock %}
{% block header %}<div class="md-search" role="dialog"></div>{% endblock %}
{% block content %}{% endblock %}"""


def render(template: str, top: str = "", **context: Any) -> str:
    ours = FileSystemLoader(ROOT / "tools" / "hooks" / "theme")
    jinja = Environment(loader=ChoiceLoader([ours, DictLoader({"base.html": BASE})]))
    jinja.filters["url"] = lambda path: f"{top}/{path}"
    config = {"site_name": "Guide", "site_description": "Of what.", "site_url": ""}
    return jinja.get_template(template).render(config=config, **context)


@pytest.mark.parametrize("top", ["", "/guide"])
def test_404_page_links_to_the_index(top: str) -> None:
    assert f'href="{top}/index.html"' in render("404.html", top)


def test_llms_txt_lists_all_pages() -> None:
    meta = {"description": "About it's."}
    one = SimpleNamespace(title="One", url="one.html", canonical_url=None, meta=meta)
    two = SimpleNamespace(title="Two", canonical_url="https://e.org/2.html", meta=meta)
    assert render("llms.txt", nav=SimpleNamespace(pages=[one, two])).strip() == (
        "# Guide\n\n> Of what.\n\n- [One](one.html): About it's.\n"
        "- [Two](https://e.org/2.html): About it's."
    )


def test_search_skips_figures_listings_and_numbers() -> None:
    table = '<table class="data"><tr><td{}>1</td></tr></table>'
    sought = "<p>Why</p>" + table.format("") + '<div class="language-console">$ a</div>'
    left_out = (
        '<svg class="plot wide"><text>0.25</text></svg>',
        '<p class="provenance">H200</p>',
        '<div class="language-python highlight"><pre>x</pre></div>',
        table.format(' class="r"'),
    )
    parser = Parser()
    parser.feed(publishing.on_page_content(sought + "".join(left_out)))
    (section,) = parser.data
    assert "".join(section.text) == "<p>Why</p>1$ a"


def test_only_the_folder_of_mkdocs_yml_builds(tmp_path):
    config: Any = SimpleNamespace(config_file_path=str(tmp_path / "mkdocs.yml"))
    with pytest.raises(PluginError, match="run mkdocs there"):
        publishing.on_config(config)


def test_links_to_large_records_are_compressed(tmp_path):
    for name, size in (("small", 10), ("large", publishing.READABLE_BYTES + 1)):
        path = tmp_path / "results" / "a-gpu" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b" " * size)
    records = [f"{to}results/a-gpu/{name}.json" for name in ("small", "large", "none")
               for to in ("", "../")]  # fmt: skip
    page = " ".join(f'<a href="{record}">' for record in records)
    linked = publishing.on_post_page(page, config=SimpleNamespace(docs_dir=tmp_path))
    assert linked == page.replace("large.json", "large.json.xz")

"""Test tables, tabs and names of kernels in Markdown."""

import re
from functools import cache

import markdown
from mkdocs.utils.yaml import yaml_load

from systems import ROOT
from tools.render.markdown import items_table, make_tabs, table


@cache
def converter() -> markdown.Markdown:
    """Return the site's Markdown converter, with the extensions of MkDocs."""
    with open(ROOT / "mkdocs.yml", encoding="utf-8") as file:
        listed = yaml_load(file)["markdown_extensions"]
    known = [x if isinstance(x, dict) else {x: {}} for x in listed]
    options = {name: given for each in known for name, given in each.items()}
    return markdown.Markdown(
        extensions=["fenced_code", *options], extension_configs=options
    )


def to_html(text: str) -> str:
    return converter().reset().convert(text)


def test_angle_brackets_are_escaped():
    name = "void reduce<float, a|b>(__half*)"
    page = to_html(table(["head"], [[f"`{name}`"]]))
    assert page.count("<td") == 1
    assert "reduce&lt;float, a|b&gt;(" in page.replace("<wbr>", "")


def test_long_table_hides_most_rows():
    lines = [["" if n < 3 else f"`{n}`", f"{n}"] for n in range(20)]
    flags = [n in (4, 9) for n in range(20)]
    page = to_html(table(["a", "b"], lines, shown_first=flags))
    rows = re.findall(r"<tr( class=\"rest\")?>", page)
    assert len(rows) == 21 and rows.count("") == 3
    assert page.count('type="checkbox"> All 20 rows') == 1 and "{:" not in page
    assert "checkbox" not in to_html(table(["a", "b"], lines[:8], shown_first=flags))
    assert "All 9 rows" in to_html(table(["a", "b"], lines[:9], shown_first=flags[:9]))
    of_items = items_table(range(20), ("a", str), ("b", str), shown_first=(4).__eq__)
    assert to_html(of_items).count('class="rest"') == 19


def test_tabs_of_a_set_share_the_number_of_their_figure():
    figure = "<figure>\n<figcaption>F</figcaption>\n</figure>"
    one = make_tabs([("A", figure), ("B", figure), ("C", "None")])
    page = to_html("\n\n".join([one, one, make_tabs([("A", "1"), ("B", "2")]), figure]))
    assert page.count('class="tabbed-set') == 3 and page.count("again") == 2
    assert re.findall(r"Figure\s(\d)", page) == ["1", "1", "2", "2", "3"]
    assert len({*re.findall(r'<figure id="(.*?)"', page)}) == 5

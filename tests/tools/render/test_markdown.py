"""What pages show of a record is text: none of it becomes markup."""

import markdown
import pytest

from tools.render.markdown import Markup, bold, figure, inert, lines, table, tabs

# Each would run, load, include, compute or format if a page took it as it is.
LIVE = [
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "[x](javascript:alert(1))",
    "![x](https://example.org/x.png)",
    '"><b>',
    "*stars* and **stars**",
    "_under_ __under__",
    "`<b>` and ``<b>``",
    "`unclosed <b>",
    "`a|b`",
    "a|b",
    '\n\n--8<-- ".git/config"\n\n',
    '\r--8<-- ".git/config"',
    "{{ 1 }} {$ gpu $} {@ set x = 1 @} {: .x }",
    "\\(x\\) \\[x\\] \\<",
    "\x02wzxhzdk:0\x03",
    "\n\n# heading\n\n- item",
    "\n\n    indented",
    "&lt;b&gt; &amp;",
    '=== "tab"',
]
ALIVE = ("<img", "<script", "<b>", "<em", "<strong", "<a ", "<h1", "<li", "<pre")


def html_of(text: str) -> str:
    extensions = ["tables", "attr_list", "md_in_html", "pymdownx.arithmatex"]
    extensions += ["pymdownx.tabbed", "pymdownx.superfences"]
    options = {"pymdownx.tabbed": {"alternate_style": True}}
    return markdown.markdown(
        text, extensions=extensions, extension_configs=options
    ).replace("</b>", "")


@pytest.mark.parametrize("text", LIVE)
def test_text_stays_text(text):
    shown = inert(text)
    assert "\n" not in shown and "--8<" not in shown and "{" not in shown
    page = html_of(f"Before {shown} after.")
    assert not [mark for mark in (*ALIVE, "arithmatex") if mark in page]
    assert page.count("<p>") == 1 and page.startswith("<p>Before ")


@pytest.mark.parametrize("text", LIVE)
def test_a_cell_stays_a_cell(text):
    page = html_of(table(["head"], [[text], ["next"]]))
    assert page.count("<td") == 2 and not [mark for mark in ALIVE if mark in page]


@pytest.mark.parametrize("text", LIVE)
def test_a_label_stays_a_label(text):
    page = html_of(tabs([(text, "body"), ("next", "body")]))
    assert page.count("<label") == 2 and not [mark for mark in ALIVE if mark in page]


@pytest.mark.parametrize("text", LIVE)
def test_what_an_image_shows_stays_one_attribute(text):
    page = html_of(figure("name", text, "caption"))
    assert page.count("<img") == 2 and page.count("alt=") == 2
    assert "onerror" not in page.replace("onerror=alert(1)&#62;", "")


def test_plain_words_and_code_are_printed_as_they_are():
    text = "fp32_in_fp16, 2 × 3 + 4 % (at most), `a_kernel(int)` · 1.5 GiB"
    assert inert(text) == text
    assert inert("`f<int>`") == "<code>f&#60;int&#62;</code>"
    assert inert(bold("a*")) == "**a&#42;**" and lines(["<", "b"]) == "&#60;<br>b"
    assert inert(Markup("<br>")) == "<br>"

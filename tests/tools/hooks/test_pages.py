"""The hooks of the site build, on the HTML that the Markdown extensions give them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from jinja2 import Environment, StrictUndefined
from mkdocs.exceptions import PluginError

from tools.hooks import pages as hooks

PAGE: Any = SimpleNamespace(file=SimpleNamespace(src_uri="end_to_end.md"))


def test_a_tree_that_was_not_rendered_says_how(tmp_path) -> None:
    config: Any = SimpleNamespace(docs_dir=str(tmp_path))
    with pytest.raises(PluginError, match=r"regen_tables.py --render"):
        hooks.on_config(config)
    (tmp_path / "generated").mkdir()
    (tmp_path / "generated/facts.yml").touch()
    hooks.on_config(config)


def test_an_answer_is_copied_where_it_is_marked_with_its_links_to_its_own_page(
    tmp_path: Any,
) -> None:
    page = (
        "# T\n\n## Answer\n\n"
        "It takes {$ facts.a.b $}, see [there](#idea) and [b](b.md).\n\n"
        "## Run it yourself\n\nrun\n"
    )
    (tmp_path / "a.md").write_text(page, encoding="utf-8")
    config: Any = SimpleNamespace(docs_dir=str(tmp_path))
    built = hooks.on_page_markdown(
        "before\n\n<!-- answer: a -->\n\n<!-- answer: to_come -->\n", PAGE, config
    )
    assert (
        "It takes {$ facts.a.b $}, see [there](a.md#idea) and [b](b.md).\n{@ endif @}"
        in built
    )
    assert (
        built.startswith('before\n\n{@ if facts.answers.a == "yes" @}\n')
        and "run" not in built
    )
    assert "answer: to_come" not in built and "to_come.md" not in built
    (tmp_path / "a.md").write_text("# T\n", encoding="utf-8")
    with pytest.raises(PluginError, match=r'a\.md has no section "## Answer"'):
        hooks.on_page_markdown("<!-- answer: a -->", PAGE, config)


def filled_in(markdown: str, stale: dict[str, str], **edited: str) -> str:
    """The page as the macros plugin leaves it, with its delimiters."""
    marks = ("{@", "@}", "{$", "$}", "{~", "~}")
    facts = {
        "gpu": {"name": "GPU"},
        "a": {"x": "1"},
        "b": {"x": "2"},
        "c": {"x": "3"},
        "stale": stale,
        "edited": edited,
    }
    return (
        Environment(*marks, undefined=StrictUndefined)
        .from_string(markdown)
        .render(facts=facts)
    )


def test_a_page_says_under_its_title_which_of_its_numbers_are_stale() -> None:
    sentence = (
        "On {$ facts.gpu.name $} {$ facts.a.x $} and {$ facts.b.x $}, "
        "{$ facts.a.x $} again."
    )
    page = f"# Title\n\n{sentence}\n\n# Not a title\n"
    config: Any = SimpleNamespace(docs_dir="docs")
    built = hooks.on_page_markdown(page, PAGE, config)
    text = filled_in(
        built, {"a": "[a](results/gpu/a.json)", "b": "", "c": "[c](results/gpu/c.json)"}
    )
    head, rest = text.split("On GPU 1 and 2, 1 again.")
    lines = [line for line in head.splitlines() if line]
    assert lines[0] == "# Title" and lines[2] == "{ .stale }" and len(lines) == 3
    assert (
        lines[1].startswith("**Stale:** ")
        and " numbers of [a](results/gpu/a.json) were " in lines[1]
    )
    assert rest.removesuffix(hooks.GLOSSARY).strip() == "# Not a title"
    both = filled_in(built, {"a": "[a](a)", "b": "[b](b)"})
    assert (
        " [a](a), [b](b) were measured with an earlier version of the code."
        "\n{ .stale }\n\n" in both
    )
    neither = filled_in(built, {"a": "", "b": "", "c": "[c](c)"}, c="[c](c)")
    assert "tale" not in neither and "dited" not in neither
    edited = filled_in(built, {"a": "[a](a)"}, b="[b](b)")
    assert (
        "**Edited by hand:** below, not all numbers of [b](b) are " in (edited)
        and "numbers of [a](a) were measured with an earlier" in edited
    )


def test_the_records_of_a_page_s_tables_are_named_too() -> None:
    page = '# Title\n\n--8<-- "generated/b-table.md"\n'
    text = filled_in(hooks.with_doubts(page), {"a": "[a](a)", "b": "[b](b)"})
    assert "numbers of [b](b) were measured with an earlier version" in text


def test_a_record_behind_two_kinds_of_facts_is_named_once() -> None:
    page = "# Title\n\n{$ facts.a.x $} {$ facts.b.x $}\n"
    text = filled_in(hooks.with_doubts(page), {"a": "[c](c), [d](d)", "b": "[d](d)"})
    assert "numbers of [c](c), [d](d) were measured" in text


def test_a_page_without_facts_is_left_alone() -> None:
    assert hooks.with_doubts("# Title\n\nText.\n") == "# Title\n\nText.\n"


def test_answers_copied_into_a_page_are_among_its_sentences(tmp_path: Any) -> None:
    (tmp_path / "a.md").write_text(
        "# T\n\n## Answer\n\n{$ facts.a.x $}\n", encoding="utf-8"
    )
    config: Any = SimpleNamespace(docs_dir=str(tmp_path))
    built = hooks.on_page_markdown("# All\n\n<!-- answer: a -->\n", PAGE, config)
    assert "facts.stale.get" in built.split("facts.answers")[0]


def test_lines_of_a_page_are_not_indented_but_those_of_code_are():
    page = "<ul>\n    <li>\n        a</li>\n</ul><pre>\n  x\n    y</pre>\n\n   <p>"
    assert hooks.on_post_page(page) == (
        "<ul>\n<li>\na</li>\n</ul><pre>\n  x\n    y</pre>\n<p>"
    )

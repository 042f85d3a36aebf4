"""What pages take from elsewhere: answers, what is doubtful of their numbers, how they
were measured.
"""

from pathlib import Path

import pytest

from systems.records.store import RecordError
from tools.render.spanning import pages

FACTS = {"gpu": {"name": "GPU"}, "a": {"b": "1 ms"}}
NOTHING: dict[str, dict[str, list[str]]] = {"stale": {}, "edited": {}}


def of(
    folder: Path,
    answered: dict[str, str] | None = None,
    doubtful: dict[str, dict[str, list[str]]] | None = None,
    conditions: set[str] | None = None,
    **texts: str,
) -> dict[str, str]:
    """The fragments of these pages."""
    for name, text in texts.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
    doubtful = NOTHING | (doubtful or {})
    return pages.fragments(FACTS, answered or {}, doubtful, conditions or set(), folder)


def test_an_answer_has_its_numbers_and_its_links_lead_to_its_own_page(tmp_path):
    answer = (
        "It takes {$ facts.a.b $}, see [there](#idea) and [b](b.md)."
        '{@ if facts.a.b == "2" @} No.{@ endif @}'
    )
    page = f"# T\n\n## Answer\n\n{answer}\n\n## Run it yourself\n\nrun\n"
    answered = {"a": "yes", "to_come": "yes"}
    files = of(tmp_path, answered, a=page)
    assert files["answer-a.md"] == (
        "It takes 1 ms, see [there](a.md#idea) and [b](b.md).\n"
    )
    assert "answer-to_come.md" not in files
    # The foot of a page stands behind its last section, whatever that is.
    last = page.partition("## Run")[0] + pages.include("foot", "a")
    assert of(tmp_path, answered, a=last)["answer-a.md"] == files["answer-a.md"]


def test_an_answer_that_this_gpu_has_not_measured_is_not_copied(tmp_path):
    page = "# T\n\n## Answer\n\nYes.\n"
    assert of(tmp_path, {"a": "no"}, a=page)["answer-a.md"] == "\n"


def test_a_page_without_an_answer_or_its_number_is_named(tmp_path):
    with pytest.raises(RecordError, match=r'a\.md has no section "## Answer"'):
        of(tmp_path, {"a": "yes"}, a="# T\n")
    with pytest.raises(RecordError, match=r"a\.md: .*'c'"):
        of(tmp_path, {"a": "yes"}, a="# T\n\n## Answer\n\n{$ facts.a.c $}\n")


LINKS = {"a": ["[a](a.json)"], "both": ["[a](a.json)", "[b](b.json)"]}
STALE = "**Stale:** below, numbers of {} were measured with an earlier version"


def test_a_head_names_each_record_once_that_is_older_than_the_code(tmp_path):
    page = "# T\n\n{$ facts.gpu.name $} {$ facts.a.b $}\n\n"
    page += '--8<-- "generated/both-x.md"\n'
    head = of(tmp_path, doubtful={"stale": LINKS}, a=page)["head-a.md"]
    assert head.startswith(STALE.format("[a](a.json), [b](b.json)"))
    assert head.endswith("\n{ .stale }\n\n") and head.count("**") == 2


def test_a_head_says_what_was_edited_too(tmp_path):
    page = "# T\n\n{$ facts.a.b $}\n"
    doubts = {"stale": {"a": ["[a](a)"]}, "edited": {"a": ["[a](a)"]}}
    head = of(tmp_path, doubtful=doubts, a=page)["head-a.md"]
    assert "**Edited by hand:** below, not all numbers of [a](a) are " in head
    assert STALE.format("[a](a)") in head
    doubts = {"stale": {"c": ["[c](c)"]}, "edited": {"c": ["[c](c)"]}}
    assert of(tmp_path, doubtful=doubts, a=page)["head-a.md"] == "\n"


def test_a_page_without_numbers_needs_no_head(tmp_path):
    page = f"# T\n\nText.\n\n{pages.include('foot', 'a')}\n"
    assert of(tmp_path, a=page) == {"foot-a.md": f"{pages.GLOSSARY}\n"}


def test_a_copied_answer_is_part_of_the_page(tmp_path):
    whole = f"# All\n\n{pages.include('answer', 'a')}\n"
    answer = '# T\n\n## Answer\n\n{$ facts.a.b $}\n\n--8<-- "generated/b-table.md"\n'
    files = of(
        tmp_path,
        {"a": "yes"},
        {"stale": LINKS},
        {"b-conditions.md"},
        a=answer,
        whole=whole,
    )
    assert files["head-whole.md"].startswith(STALE.format("[a](a.json)"))
    assert files["foot-whole.md"] == files["foot-a.md"]


def test_a_foot_folds_how_the_tables_of_a_page_were_measured(tmp_path):
    include = '--8<-- "generated/{}.md"'
    lines = [include.format(name) for name in ("b-table", "c-table", "b-figure")]
    page = "# T\n\n" + "\n\n".join(lines)
    foot = of(tmp_path, conditions={"b-conditions.md"}, a=page)["foot-a.md"]
    assert foot == (
        '??? provenance "How these numbers were measured"\n'
        f"    {include.format('b-conditions')}\n\n{pages.GLOSSARY}\n"
    )


def test_a_foot_knows_what_spans_experiments(tmp_path):
    both = {"kernel_profile-conditions.md", "end_to_end-conditions.md"}
    page = '--8<-- "generated/causes-all.md"'
    foot = of(tmp_path, conditions=both, a=page)["foot-a.md"]
    assert all(name in foot for name in both)


def test_pages_in_folders_have_names_of_their_own(tmp_path):
    (tmp_path / "api").mkdir()
    (tmp_path / "generated").mkdir()
    for name in ("api/model", "model", "generated/x-y"):
        (tmp_path / f"{name}.md").write_text("# T\n", encoding="utf-8")
    assert of(tmp_path).keys() == {"foot-api-model.md", "foot-model.md"}

"""The answers of pages, as the write-up shows them."""

import pytest

from systems.records.store import RecordError
from tools.render.spanning.pages import answer_of, fragments

FACTS = {"a": {"b": "1 ms"}}


def test_an_answer_has_its_numbers_and_its_links_lead_to_its_own_page(tmp_path):
    answer = (
        "It takes {$ facts.a.b $}, see [there](#idea) and [b](b.md)."
        '{@ if facts.a.b == "2" @} No.{@ endif @}'
    )
    for after in ("## Run it", "??? provenance", ""):
        page = f"# T\n\n## Answer\n\n{answer}\n\n{after}\n"
        (tmp_path / "a.md").write_text(page)
        filled = "It takes 1 ms, see [there](a.md#idea) and [b](b.md)."
        assert answer_of("a", FACTS, tmp_path) == filled


def test_an_answer_that_this_gpu_has_not_measured_is_not_copied():
    (text,) = fragments(FACTS, {"warmup": False}).values()
    assert "[start:warmup]" in text and "first step" not in text


def test_a_page_without_an_answer_or_its_number_is_named(tmp_path):
    (tmp_path / "a.md").write_text("# T\n")
    with pytest.raises(RecordError, match=r'a\.md has no section "## Answer"'):
        answer_of("a", FACTS, tmp_path)
    (tmp_path / "a.md").write_text("# T\n\n## Answer\n\n{$ facts.a.c $}\n")
    with pytest.raises(RecordError, match=r"a\.md: .*'c'"):
        answer_of("a", FACTS, tmp_path)

"""Any rows may be missing from a record, and any text may stand in it: tables, figures
and facts are rendered all the same, and the text stays text.
"""

import copy
import random
import re
from functools import cache
from importlib import import_module

import pytest
from msgspec.structs import replace

from systems.experiments import STEMS
from systems.records import store
from systems.records.outcome import measure_row
from systems.records.record import Record
from tests.factories import RESULTS, committed, make_record
from tools.render import everything
from tools.render.claims import claims_in, verdict
from tools.render.markdown import inert, provenance

# Which of n rows are lost, and what stands in their place.
LOST = {
    "all": lambda n: range(n),
    "half": lambda n: random.Random(0).sample(range(n), n // 2),
}
STATUSES = (None, "out_of_memory")
NO_NUMBER = re.compile(r"\bnan\b|None")


@cache
def full_record(stem: str) -> Record:
    """Return the committed record, or a reduced one, measured here."""
    gpu = "meta" if "meta" in STEMS[stem].full else "nvidia-h200"
    if (RESULTS / gpu / f"{stem}.json").exists():
        return committed(stem, gpu)
    module = import_module(STEMS[stem].module)
    rows = [measure_row(config, module.run) for config in module.configs(quick=True)]
    return make_record(stem, *rows, device=committed("warmup").device)


def without(record: Record, pattern: str, status: str | None) -> Record:
    """Return a copy without these rows, or with rows of this status in their place."""
    lost = set(LOST[pattern](len(record.rows)))
    rows = [
        row if i not in lost else replace(row, status=status, metrics={}, reason="why")
        for i, row in enumerate(record.rows)
        if status or i not in lost
    ]
    return replace(record, rows=rows, expected_rows=len(rows))


def on_another_gpu(record: Record) -> Record:
    return replace(record, device=replace(record.device, name="X", slug="x"))


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("pattern", LOST)
@pytest.mark.parametrize("stem", STEMS)
def test_facts_and_claims_do_without_rows(stem, pattern, status):
    builder = import_module(f"tools.render.stems.{stem}")
    smaller = without(full_record(stem), pattern, status)
    facts = builder.facts(smaller)
    assert facts.keys() == builder.facts(None).keys()
    texts = [*facts.values()]
    texts += [verdict(claim, smaller) for claim in claims_in(builder)]
    assert not NO_NUMBER.search("\n".join(texts))


@pytest.mark.slow
@pytest.mark.usefixtures("one_width")
@pytest.mark.parametrize(
    ("pattern", "status"), [("all", "out_of_memory"), ("all", None), ("half", None)]
)
@pytest.mark.parametrize("stem", STEMS)
def test_tables_and_figures_do_without_rows(stem, pattern, status):
    """Where half are lost, they are lost on the second of two GPUs."""
    full = full_record(stem)
    smaller = without(full, pattern, status)
    records = [smaller] if pattern == "all" else [full, on_another_gpu(smaller)]
    files = import_module(f"tools.render.stems.{stem}").fragments(records)
    shown = "\n".join(text for name, text in files.items() if name.endswith(".md"))
    assert not NO_NUMBER.search(shown)
    # Each figure is drawn, and its caption is a sentence.
    assert shown.count('class="plot wide"') == shown.count('<figure class="plotted"')
    for finding in re.findall(r"<figcaption><strong>(.*?)</strong>", shown):
        assert finding.endswith(".") and finding[0] != " "
    assert status is None or "out of memory" in shown


@pytest.mark.slow
@pytest.mark.usefixtures("few_figures")
def test_a_site_is_rendered_from_what_is_left(tmp_path):
    """Each experiment has lost other rows, on either of two GPUs."""
    lot = random.Random(0)
    for stem in STEMS:
        full = full_record(stem)
        smaller = without(full, lot.choice([*LOST]), lot.choice(STATUSES))
        records = (full, on_another_gpu(smaller))
        if lot.random() < 0.5:
            records = (smaller, on_another_gpu(full))
        for record in records:
            store.write(record, tmp_path / record.device.slug / f"{stem}.json")
    files = everything.render_all(tmp_path)
    assert files.broken == []
    for stem in STEMS:
        texts = [text for name, text in files.items() if name.startswith(f"{stem}-")]
        shown = "\n".join(text for text in texts if not text.startswith("<svg"))
        assert shown and not NO_NUMBER.search(shown), stem


# What a page must not take as it is, in one text.
HOSTILE = (
    '<img src=x onerror=alert(1)> {{ 1 }} {$ x $} [x](javascript:y) | `b **c** "q" '
    '\n\n--8<-- ".git/config"\n\n=== "tab"\n'
)
LIVE = ("<img src=x", "{{", "{$", "](javascript", "**c**", "--8<--", '=== "tab"')
# Metrics, and fields of the objects in them, whose values builders know by name.
OURS = {"ran", "varies", "profiler", "peak_phase", "phase", "category", "dtype"}


def with_hostile_text(value, text=lambda: HOSTILE):
    """Return metrics with hostile text in place of what others named."""
    if isinstance(value, dict):
        return {
            key: item if key in OURS else with_hostile_text(item, text)
            for key, item in value.items()
        }
    if isinstance(value, list):
        return [with_hostile_text(item, text) for item in value]
    return text() if isinstance(value, str) else value


@pytest.mark.slow
@pytest.mark.usefixtures("one_width")
@pytest.mark.parametrize("stem", STEMS)
def test_no_text_of_a_record_is_live(stem):
    hostile = copy.deepcopy(full_record(stem))
    hostile.device.name = hostile.device.driver = HOSTILE
    hostile.software = hostile.protocol = {HOSTILE: HOSTILE}
    hostile.notes, hostile.started_utc, hostile.git = [HOSTILE], HOSTILE, None
    for i, row in enumerate(hostile.rows):
        row.metrics, row.reason = with_hostile_text(row.metrics), HOSTILE
        if i % 5 == 4:
            row.status, row.metrics = "unsupported", {}
    builder = import_module(f"tools.render.stems.{stem}")
    texts = [inert(text) for text in builder.facts(hostile).values()]
    texts += [
        text
        for name, text in builder.fragments([hostile]).items()
        if name.endswith(".md")
    ]
    texts += [verdict(claim, hostile) for claim in claims_in(builder)]
    texts.append(provenance(replace(hostile, kind="reported", source=HOSTILE)))
    for text in texts:
        assert not [mark for mark in LIVE if mark in text], text[:2000]

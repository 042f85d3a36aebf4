"""Any rows may be missing or lack numbers, and any text may stand in a record: whatever
is rendered says so, and never raises.
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

# Which of n rows are lost.
LOST = {
    "all": lambda n: range(n),
    "first half": lambda n: range(n // 2),
    "second half": lambda n: range(n // 2, n),
    "first": lambda n: [0],
    "last": lambda n: [n - 1],
    "all but the first": lambda n: range(1, n),
    "all but the last": lambda n: range(n - 1),
    "some": lambda n: random.Random(0).sample(range(n), n // 2),
    "most": lambda n: random.Random(0).sample(range(n), n - n // 5),
}


@cache
def record_of(stem: str) -> Record:
    """The committed one; of what no GPU has run yet a reduced one, measured here."""
    gpu = "meta" if "meta" in STEMS[stem].full else "nvidia-h200"
    return (
        committed(stem, gpu)
        if (RESULTS / gpu / f"{stem}.json").exists()
        else made(stem)
    )


def made(stem: str) -> Record:
    module = import_module(STEMS[stem].module)
    rows = [measure_row(config, module.run) for config in module.configs(quick=True)]
    return make_record(stem, *rows, device=committed("warmup").device)


def without(record: Record, pattern: str, status: str | None) -> Record:
    """A copy without these rows, or with rows of this status in their place."""
    lost = set(LOST[pattern](len(record.rows)))
    rows = [
        row if i not in lost else replace(row, status=status, metrics={}, reason="why")
        for i, row in enumerate(record.rows)
        if status or i not in lost
    ]
    return replace(record, rows=rows)


@pytest.mark.parametrize("status", [None, "out_of_memory", "unsupported", "failed"])
@pytest.mark.parametrize("pattern", LOST)
@pytest.mark.parametrize("stem", STEMS)
def test_numbers_and_claims_do_without_them(stem, pattern, status):
    builder = import_module(f"tools.render.stems.{stem}")
    smaller = without(record_of(stem), pattern, status)
    facts = builder.facts(smaller)
    assert facts.keys() == builder.facts(None).keys()
    told = [*facts.values()]
    told += [verdict(claim, smaller) for claim in claims_in(builder)]
    assert not re.search(r"\bnan\b|None", "\n".join(told))


# Every stem lost out of memory, for all builders are asked; of the other patterns each
# stem has two, drawn with a fixed seed, with the loss on either of two GPUs.
OTHERS = [
    (pattern, status, place)
    for pattern in LOST
    for status in (None, "out_of_memory", "unsupported", "failed")
    for place in ("alone", "first", "second")
    if (pattern, status) != ("all", "out_of_memory")
]
SAMPLE = [
    (stem, *chosen)
    for i, stem in enumerate(STEMS)
    for chosen in (
        ("all", "out_of_memory", "alone"),
        *random.Random(i).sample(OTHERS, 2),
    )
]


@pytest.mark.slow
@pytest.mark.usefixtures("one_width")
@pytest.mark.parametrize(("stem", "pattern", "status", "place"), SAMPLE)
def test_tables_and_figures_do_without_them(stem, pattern, status, place):
    """On the GPU of the sentences, and on a second one."""
    builder = import_module(f"tools.render.stems.{stem}")
    full = record_of(stem)
    smaller = without(full, pattern, status)
    records = {
        "alone": [smaller],
        "first": [smaller, elsewhere(full)],
        "second": [full, elsewhere(smaller)],
    }[place]
    files = builder.fragments(records)
    shown = "\n".join(text for name, text in files.items() if name.endswith(".md"))
    assert not re.search(r"\bnan\b|None", shown)
    # Each figure is drawn, and its caption is a sentence.
    assert shown.count('class="plot wide"') == shown.count('<figure class="plotted"')
    for finding in re.findall(r"<figcaption><strong>(.*?)</strong>", shown):
        assert finding.endswith(".") and finding[0] != " "
    if status == "out_of_memory" and pattern == "all":
        assert "out of memory" in shown


@pytest.mark.slow
@pytest.mark.usefixtures("few_figures")
@pytest.mark.parametrize("seed", range(3))
def test_a_site_is_rendered_of_what_is_left(tmp_path, seed):
    """Of every experiment another pattern, all the way from the files."""
    lot = random.Random(seed)
    for stem in STEMS:
        full = record_of(stem)
        losses = (None, "out_of_memory", "unsupported")
        smaller = without(full, lot.choice([*LOST]), lot.choice(losses))
        smaller.expected_rows = len(smaller.rows)
        first = lot.random() < 0.5
        for record in (
            (smaller, elsewhere(full)) if first else (full, elsewhere(smaller))
        ):
            store.write(record, tmp_path / record.device.slug / f"{stem}.json")
    files = everything.render_all(tmp_path)
    assert files.broken == []
    for stem in STEMS:
        of_stem = [text for name, text in files.items() if name.startswith(f"{stem}-")]
        shown = "\n".join(text for text in of_stem if not text.startswith("<svg"))
        assert shown and not re.search(r"\bnan\b|None", shown), stem


def elsewhere(record: Record) -> Record:
    return replace(record, device=replace(record.device, name="X", slug="x"))


@pytest.mark.slow
@pytest.mark.usefixtures("one_width")
@pytest.mark.parametrize("stem", STEMS)
def test_a_record_without_rows_has_no_curves(stem):
    """Complete and empty: nobody measures one, and a page stands all the same."""
    record = without(record_of(stem), "all", None)
    files = import_module(f"tools.render.stems.{stem}").fragments([record])
    assert not re.search(r"\bnan\b|None", files.get("table.md", ""))


# What a page must not take as it is, in one text.
HOSTILE = (
    '<img src=x onerror=alert(1)> {{ 1 }} {$ x $} [x](javascript:y) | `b **c** "q" '
    '\n\n--8<-- ".git/config"\n\n=== "tab"\n'
)
LIVE = ("<img src=x", "{{", "{$", "](javascript", "**c**", "--8<--", '=== "tab"')


def with_hostile_text(record: Record, inside: bool) -> Record:
    """Around its rows in every text that is not a name of ours; inside them in every
    metric that is text, and every reason.
    """
    hostile = copy.deepcopy(record)
    if inside:
        for row in hostile.rows:
            row.reason = HOSTILE
            row.metrics = {
                name: HOSTILE if isinstance(value, str) else value
                for name, value in row.metrics.items()
            }
        return hostile
    hostile.device.name = hostile.device.driver = HOSTILE
    hostile.software = hostile.protocol = {HOSTILE: HOSTILE}
    hostile.notes, hostile.started_utc, hostile.git = [HOSTILE], HOSTILE, None
    return hostile


@pytest.mark.slow
@pytest.mark.usefixtures("one_width")
@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("stem", STEMS)
def test_no_text_of_a_record_is_live(stem, inside):
    builder = import_module(f"tools.render.stems.{stem}")
    hostile = with_hostile_text(record_of(stem), inside)
    reported = replace(hostile, kind="reported", source=HOSTILE)
    try:
        files = builder.fragments([hostile])
        told = [inert(text) for text in builder.facts(hostile).values()]
    except (KeyError, ValueError) as error:
        assert inside, error
        return  # It is named as broken.
    told += [text for name, text in files.items() if name.endswith(".md")]
    told += [verdict(claim, hostile) for claim in claims_in(builder)]
    told.append(provenance(reported))
    for text in told:
        assert not [mark for mark in LIVE if mark in text], text[:2000]

"""Records that were changed by hand: each change is refused with one line, or the
record says of itself that it was edited.
"""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from systems.records import store
from systems.records.store import RecordError
from tests.factories import RECORDS, RESULTS
from tools import regen_tables
from tools.render import load
from tools.render.everything import Rendered
from tools.render.markdown import banner, provenance
from tools.states import state_of

EDITED = "edited by hand"
MEASURED, REPORTED = "nvidia-h200/warmup", "reported-a100-sxm4-40gb/warmup"
Edit = Callable[[dict[str, Any]], object]


def metrics(record: dict[str, Any]) -> dict[str, Any]:
    return record["rows"][0]["metrics"]


def config(record: dict[str, Any]) -> dict[str, Any]:
    return record["rows"][0]["config"]


def samples(change: Callable[[float], Any]) -> Edit:
    """All samples of the forward pass changed alike."""
    return lambda r: metrics(r).update(
        forward_ms=[change(t) for t in metrics(r)["forward_ms"]]
    )


def without_a_row(expected: int) -> Edit:
    return lambda r: r.update(rows=r["rows"][1:], expected_rows=expected)


def row(**fields: Any) -> Edit:
    return lambda r: r["rows"][0].update(fields)


def device(**fields: Any) -> Edit:
    return lambda r: r["device"].update(fields)


def in_all_rows(change: Callable[[dict[str, Any]], object]) -> Edit:
    return lambda r: [change(row["config"]) for row in r["rows"]]


# Of a record of four rows: one edit for each rule, and for each kind of field.
EDITS: dict[str, tuple[Edit, str]] = {
    "times ten": (samples(lambda t: t * 10), EDITED),
    "a nanosecond more": (samples(lambda t: round(t + 1e-6, 6)), EDITED),
    "negative": (samples(lambda t: -t), "no time in ms above 0"),
    "text": (samples(str), "no time in ms above 0"),
    "one sample less": (
        lambda r: metrics(r)["forward_ms"].pop(),
        "rows[0].metrics.forward_ms: has 9 samples, loss_ms 10",
    ),
    "a metric less": (lambda r: metrics(r).pop("loss_ms"), EDITED),
    "a metric more": (lambda r: metrics(r).update(extra=1), EDITED),
    "a row twice": (
        lambda r: r["rows"].append(r["rows"][0]),
        "has 5 rows, expected_rows is 4",
    ),
    "a row in the place of another": (
        lambda r: r["rows"].__setitem__(1, r["rows"][0]),
        "rows[1].config: is that of rows[0]",
    ),
    "a row removed": (without_a_row(4), "has 3 rows that did not fail"),
    "a row removed and counted": (without_a_row(3), EDITED),
    "rows in another order": (lambda r: r["rows"].reverse(), EDITED),
    "a foreign key": (in_all_rows(lambda c: c.update(x=1)), "'x' is no field of it"),
    "a key missing": (in_all_rows(lambda c: c.pop("size")), "'size' is missing"),
    "a number as text": (
        in_all_rows(lambda c: c.update(batch="4")),
        "rows[0].config.batch: is '4', not int",
    ),
    "a number as boolean": (
        in_all_rows(lambda c: c.update(batch=True)),
        "rows[0].config.batch: is True, not int",
    ),
    "another configuration": (in_all_rows(lambda c: c.update(batch=8)), EDITED),
    "failed": (row(status="failed", metrics={}, reason="x"), "has 3 rows that did not"),
    "out of memory": (row(status="out_of_memory", metrics={}, reason="x"), EDITED),
    "measured faster": (row(seconds=0.0), EDITED),
    "another stem": (
        lambda r: r.update(stem="attention"),
        "not this file's experiment",
    ),
    "another GPU's folder": (device(slug="nvidia-a100"), "misplaced here"),
    "another GPU's name": (device(name="NVIDIA A100"), EDITED),
    "the quick grid": (lambda r: r.update(grid="quick"), "misplaced here"),
    "another torch": (lambda r: r["software"].update(torch="9"), EDITED),
    "a clean tree": (lambda r: r["git"].update(dirty=not r["git"]["dirty"]), EDITED),
    "another day": (lambda r: r.update(started_utc=None), EDITED),
    "verified by hand": (lambda r: r.update(verified_hashes=["0" * 16]), EDITED),
    "no digest": (lambda r: r.pop("digest"), EDITED),
    "a digest that is none": (lambda r: r.update(digest=["x"]), EDITED),
    "called reported": (lambda r: r.update(kind="reported"), "source is None"),
}
# A reported record has less, which is checked as strictly.
REPORTED_EDITS: dict[str, tuple[Edit, str]] = {
    "times ten": (
        lambda r: metrics(r).update(mean_ms=metrics(r)["mean_ms"] * 10),
        EDITED,
    ),
    "negative": (lambda r: metrics(r).update(mean_ms=-1.0), "is -1.0, no time in ms"),
    "row removed": (lambda r: r["rows"].pop(), "that did not fail"),
    "another source": (lambda r: r.update(source="a friend"), EDITED),
    "called measured": (lambda r: r.update(kind="measured"), "no measured record has"),
}
ALL = [(MEASURED, name, *edit) for name, edit in EDITS.items()] + [
    (REPORTED, name, *edit) for name, edit in REPORTED_EDITS.items()
]


def content(which: str) -> dict[str, Any]:
    """Return the committed record as if it were of today's code: with the fields of its
    configurations, and the digest of what it holds.
    """
    data = json.loads((RESULTS / f"{which}.json").read_text())
    if data["kind"] == "measured":
        some = {"int": 1, "str": "", "bool": False, "float": 1.0}
        fields = load.config_fields(data["stem"]).items()
        for each in data["rows"]:
            given = each["config"]
            each["config"] = {k: given.get(k, some[kind]) for k, kind in fields}
    held = {key: data[key] for key in data if key not in ("schema", "digest")}
    return data | {"digest": store.digest_of(held)}


def written(results: Path, which: str, text: str) -> Path:
    path = results / f"{which}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("which", "edit", "found"),
    [(which, edit, found) for which, _, edit, found in ALL],
    ids=[f"{which.partition('-')[0]}: {name}" for which, name, *_ in ALL],
)
def test_an_edit_is_found(tmp_path, monkeypatch, which, edit, found):
    monkeypatch.setattr(load, "is_fresh", lambda record: True)
    data = content(which)
    assert not load.read(written(tmp_path, which, json.dumps(data))).edited
    edit(data)
    path = written(tmp_path, which, json.dumps(data))
    if found == EDITED:
        record = load.read(path)
        assert record.edited and state_of(path)[0] == EDITED
        assert banner(record)[0].startswith("**Edited by hand:**")
        assert EDITED in provenance(record)
    else:
        with pytest.raises(RecordError) as raised:
            load.read(path)
        message = str(raised.value)
        assert message.startswith(f"{path}: ") and found in message
        assert "\n" not in message


def test_no_committed_record_was_edited():
    for path in RECORDS:
        assert not load.read(path).edited, path


def test_another_layout_is_no_edit(tmp_path):
    data = content(MEASURED)
    shuffled = dict(sorted(data.items(), reverse=True))
    path = written(tmp_path, MEASURED, json.dumps(shuffled, indent=3))
    assert not load.read(path).edited


@pytest.mark.parametrize("edit", ["times ten", "negative"])
def test_list_names_the_record_and_ends_with_2(tmp_path, capsys, edit):
    """And it shows all others."""
    data = content(MEASURED)
    EDITS[edit][0](data)
    path = written(tmp_path, MEASURED, json.dumps(data))
    other = "nvidia-h200/method"
    written(tmp_path, other, (RESULTS / f"{other}.json").read_text())
    assert regen_tables.main(["--list", "--results", str(tmp_path)]) == 2
    shown, said = capsys.readouterr()
    assert str(path) in said and said.count("\n") == 1
    (line,) = (line for line in shown.splitlines() if "method" in line)
    assert " 8 " in line


def test_an_edit_fails_the_check_with_2(tmp_path, monkeypatch, capsys):
    data = content(MEASURED)
    EDITS["times ten"][0](data)
    written(tmp_path, MEASURED, json.dumps(data))
    nothing = Rendered({}, [])
    monkeypatch.setattr("tools.render.everything.render_all", lambda _: nothing)
    monkeypatch.setattr("tools.checks.pages.check_pages", lambda root: [])
    assert regen_tables.check_tree(tmp_path) == 2
    assert "nvidia-h200/warmup.json was edited by hand" in capsys.readouterr().out


def test_a_row_with_an_attention_that_is_none_is_named(tmp_path):
    which = "nvidia-h200/model_attention"
    data = content(which)
    for attention, message in (
        ("nosuch", "rows[0].config.attention: is 'nosuch', not one of eager, "),
        (["eager"], "rows[0].config.attention: is ['eager'], not one value"),
        (3, "rows[0].config.attention: is 3, not str"),
    ):
        config(data)["attention"] = attention
        path = written(tmp_path, which, json.dumps(data))
        with pytest.raises(RecordError) as raised:
            load.read(path)
        assert message in str(raised.value)


ODD = (None, True, -1, 0, 1e308, 10**30, "", "x" * 99, [], [[]], {}, {"": None}, "<b>")


def malformed(text: str, lot: random.Random) -> str:
    """Return a record with something else somewhere: a piece cut out, a character
    changed, or a value of another type.
    """
    how, start = lot.randrange(3), lot.randrange(len(text))
    if how == 0:
        return text[:start] + text[start + lot.randrange(1, 60) :]
    if how == 1:
        return text[:start] + lot.choice('{}[]",:0-eé\0') + text[start + 1 :]
    place = data = json.loads(text)
    while True:
        key = lot.choice([*(place if isinstance(place, dict) else range(len(place)))])
        inside = place[key]
        if not isinstance(inside, dict | list) or not inside or lot.random() < 0.2:
            break
        place = inside
    place[key] = lot.choice(ODD)
    return json.dumps(data)


def test_a_malformed_record_is_an_error_of_one_line_or_known_as_edited(tmp_path):
    lot, refused, edited = random.Random(7), 0, 0
    for which in (MEASURED, REPORTED) * 50:
        text = json.dumps(content(which))
        path = written(tmp_path, which, changed := malformed(text, lot))
        try:
            record = load.read(path)
        except RecordError as error:
            assert "\n" not in str(error) and str(error).startswith(f"{path}: ")
            refused += 1
        else:
            # What was cut out may have been layout.
            assert record.edited != (json.loads(changed) == json.loads(text)), changed
            edited += record.edited
    assert refused > 50 and edited > 5


def test_what_the_code_writes_again_is_no_edit(tmp_path):
    data = content(MEASURED)
    EDITS["times ten"][0](data)
    path = written(tmp_path, MEASURED, json.dumps(data))
    assert state_of(path)[0] == EDITED
    # Written again by the code, it is whole.
    store.write(store.read(path), path)
    assert state_of(path)[0] != EDITED

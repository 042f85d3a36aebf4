"""Render tables, figures and facts of records with missing rows."""

import random
import re
from importlib import import_module

import pytest
from msgspec.structs import replace

from systems.experiments import STEMS
from systems.formulas.memory_costs import Pass
from systems.formulas.memory_peak import bytes_at_peak
from systems.records import store
from systems.records.record import Record, Row
from tests.factories import RECORDS, RESULTS, make_gpu, read_record
from tools.render import everything, load
from tools.render.claims import list_claims, verdict
from tools.render.markdown import NOTHING_FITS, NOTHING_YET


def exceeds_a100(row: Row) -> bool:
    """Return whether a row needs Hopper, or over 40 GiB, measured or by formula."""
    c, peak = row.config, row.metrics.get("peak_allocated_bytes", 0)
    if "size" in c and not peak:
        more = c.get("mode", "step"), c.get("precision", "fp32")
        peak = sum(bytes_at_peak(Pass(c["size"], c["context"], *more)).values())
    return peak > 40 * 2**30 or "hopper" in c.values()


# Indices of the rows to remove.
LOST = {
    "all": lambda rows: range(len(rows)),
    "half": lambda rows: random.Random(0).sample(range(len(rows)), len(rows) // 2),
    "of no A100": lambda rows: [i for i, x in enumerate(rows) if exceeds_a100(x)],
}
STATUSES = (None, "out_of_memory")
# The files of an experiment that has no fragments of its own.
PREFIXES = {"flash_ablation": "ladder"}
NO_NUMBER = re.compile(r"\bnan\b|None")


def full_record(stem: str) -> Record:
    found = (path.parent.name for path in RESULTS.glob(f"*/{stem}.json"))
    return read_record(stem, min(found, key=lambda name: name != "nvidia-h200"))


def lose_rows(record: Record, pattern: str, status: str | None) -> Record:
    """Return a copy without these rows, or with rows of this status in their place."""
    lost = set(LOST[pattern](record.rows))
    rows = [
        row if i not in lost else replace(row, status=status, metrics={}, reason="why")
        for i, row in enumerate(record.rows)
        if status or i not in lost
    ]
    return replace(record, rows=rows, expected_rows=len(rows))


def move_to_unknown_gpu(record: Record) -> Record:
    """Return a copy as if measured on a GPU without a data sheet, without GPU times."""
    rows = []
    for row in record.rows:
        kept = {k: v for k, v in row.metrics.items() if not k.endswith("_gpu_ms")}
        if len(kept) < len(row.metrics):
            kept["no_gpu_time"] = "the driver forbids profiling"
        rows.append(replace(row, metrics=kept))
    return replace(record, rows=rows, device=make_gpu("X"))


@pytest.mark.parametrize("status", STATUSES)
@pytest.mark.parametrize("pattern", LOST)
@pytest.mark.parametrize("stem", STEMS)
def test_missing_rows_leave_no_nan_in_facts_and_claims(stem, pattern, status):
    builder = import_module(f"tools.render.stems.{stem}")
    smaller = lose_rows(full_record(stem), pattern, status)
    names = builder.facts(None).keys()
    for record in (smaller, move_to_unknown_gpu(smaller)):
        facts = builder.facts(record)
        verdicts = [verdict(claim, record)[1] for claim in list_claims(builder)]
        assert facts.keys() == names
        shown = "\n".join([*facts.values(), *verdicts])
        assert not NO_NUMBER.search(shown) and not re.search(": [;.]", shown)
        # In sentences, a predicted peak replaces one that ran out of memory.
        for name in filter(re.compile(r"\w+_peak|step_[bf]\w+").fullmatch, facts):
            assert "out of memory" not in facts[name], name
        if pattern == "all":
            assert all(said.startswith("**No data here:**") for said in verdicts)


@pytest.mark.slow
@pytest.mark.usefixtures("one_width")
@pytest.mark.parametrize(
    ("pattern", "status"), [("all", "out_of_memory"), ("all", None), ("half", None)]
)
@pytest.mark.parametrize("stem", [stem for stem in STEMS if stem not in PREFIXES])
def test_missing_rows_leave_no_nan_in_tables_and_figures(stem, pattern, status):
    full = full_record(stem)
    smaller = lose_rows(full, pattern, status)
    records = [smaller] if pattern == "all" else [full, move_to_unknown_gpu(smaller)]
    fragments = import_module(f"tools.render.stems.{stem}").fragments
    files = fragments(records)
    shown = "\n".join(text for name, text in files.items() if name.endswith(".md"))
    assert not NO_NUMBER.search(shown)
    # Each figure is drawn, and its caption is a sentence.
    assert shown.count('class="plot wide"') == shown.count('<figure class="plotted"')
    for finding in re.findall(r"<figcaption><strong>(.*?)</strong>", shown):
        assert finding.endswith(".") and finding[0] != " "
    assert status is None or "out of memory" in shown
    # Skip the meta device, whose records are the same on any GPU.
    if len(records) == 2 and full.device.slug != "meta":
        for name, text in (x for one in records for x in fragments([one]).items()):
            lines = {line.strip() for line in files[name].splitlines()}
            alone = () if text in (NOTHING_YET, NOTHING_FITS) else text.splitlines()
            assert {line.strip() for line in alone} <= lines, name


@pytest.mark.slow
@pytest.mark.usefixtures("few_figures")
def test_everything_is_rendered_with_missing_rows(tmp_path):
    """Each experiment lacks different rows, on one of two GPUs."""
    lot = random.Random(0)
    for stem in STEMS:
        full = full_record(stem)
        status = lot.choice((*STATUSES, "unsupported"))
        smaller = lose_rows(full, lot.choice([*LOST]), status)
        records = (full, move_to_unknown_gpu(smaller))
        if lot.random() < 0.5:
            records = (smaller, move_to_unknown_gpu(full))
        for record in records:
            store.write(record, tmp_path / record.device.slug / f"{stem}.json")
    files = everything.render(load.load_records(tmp_path))
    for stem in STEMS:
        begin = f"{PREFIXES.get(stem, stem)}-"
        texts = [text for name, text in files.items() if name.startswith(begin)]
        shown = "\n".join(text for text in texts if not text.startswith("<svg"))
        assert shown and not NO_NUMBER.search(shown), stem


@pytest.mark.slow
@pytest.mark.usefixtures("few_figures")
def test_rows_that_do_not_fit_are_out_of_memory(tmp_path):
    """No page says "not measured" more often than with all rows."""
    for path in RECORDS:
        record = store.read(path)
        if path.parent.name == "nvidia-h200":
            record = lose_rows(record, "of no A100", "out_of_memory")
        store.write(record, tmp_path / path.parent.name / path.name)
    files = everything.render(load.load_records(tmp_path))

    def list_increases(pattern: str) -> set[str]:
        count = {
            name: len(re.findall(pattern, (load.GENERATED / name).read_text("utf-8")))
            for name in files
        }
        return {x for x in files if len(re.findall(pattern, files[x])) > count[x]}

    assert not list_increases(r"(?i)not\s+measured|\bnan\b")
    stems = {name.partition("-")[0] for name in list_increases("out of memory|OOM")}
    assert stems >= {"end_to_end", "attention", "peak_memory", "kernel_profile"}

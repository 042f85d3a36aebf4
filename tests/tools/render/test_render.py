"""Builders of fragments: every fact always there, every GPU in a tab, the same bytes
each time.
"""

import copy
import re
from importlib import import_module

import pytest

from systems import ROOT
from systems.experiments import STEMS
from systems.records import store
from tests.factories import RESULTS
from tools.render import everything, load, markdown
from tools.render.spanning import envelope, explorer
from tools.render.stems import warmup
from tools.render.stems.end_to_end import rows


@pytest.fixture(scope="module")
def found():
    return load.load(RESULTS)


def test_every_experiment_has_been_measured(found):
    for stem in STEMS:
        assert any(record.kind == "measured" for record in found.get(stem, [])), stem


def measured(found, stem):
    return next(record for record in found[stem] if record.kind == "measured")


@pytest.mark.parametrize("stem", STEMS)
def test_every_fact_exists_without_a_record(found, stem):
    builder = import_module(f"tools.render.stems.{stem}")
    none = builder.facts(None)
    ours = builder.facts(measured(found, stem))
    assert ours.keys() == none.keys()
    assert all(
        isinstance(text, str) and "nan" not in text
        for text in [*ours.values(), *none.values()]
    )
    assert "not measured" in none.values()
    # A record from before a change of the code may lack what the change added.
    if load.is_fresh(measured(found, stem)):
        assert "not measured" not in ours.values()


def test_pages_use_only_facts_that_exist(found):
    """The build fails on an unknown fact; this names it in milliseconds, whatever GPU
    is primary.
    """
    known = {
        f"{stem}.{name}"
        for stem in STEMS
        for name in import_module(f"tools.render.stems.{stem}").facts(None)
    }
    known |= {
        f"{group}.{name}"
        for group in everything.WITH_FACTS
        for name in everything.spanning(group).facts({})
    }
    known |= {
        f"{group}.{name}"
        for group, of_group in envelope.facts({}).items()
        for name in of_group
    }
    used = set()
    for page in (ROOT / "docs").glob("*.md"):
        used |= set(
            re.findall(r"facts\.([a-z_]+\.\w+)", page.read_text(encoding="utf-8"))
        )
    assert used - known <= {"gpu.name"}


FIGURE = re.compile(
    r'<figure class="plotted" id="([^"]+)">\s*(<svg.*?</svg>)', re.DOTALL
)


def test_another_gpu_gets_a_tab_figures_and_its_own_peak(found):
    ours = measured(found, "end_to_end")
    other = copy.deepcopy(ours)
    other.device.name, other.device.slug = (
        "NVIDIA A100-SXM4-80GB",
        "nvidia-a100-sxm4-80gb",
    )
    files = import_module("tools.render.stems.end_to_end").fragments([ours, other])
    assert (
        '===! "NVIDIA H200"' in files["fp32.md"]
        and '=== "NVIDIA A100-SXM4-80GB"' in files["fp32.md"]
    )
    drawn = dict(FIGURE.findall(files["phases.md"] + files["shares.md"]))
    ours, theirs = "nvidia-h200", "nvidia-a100-sxm4-80gb"
    times, shares = (
        [
            # Ids differ.
            re.sub(r"p[0-9a-f]{8}-", "", drawn[f"end_to_end-{name}-{slug}"])
            for slug in (ours, theirs)
        ]
        for name in ("phases", "shares")
    )
    assert times[0] == times[1]
    # The same times are another share of another peak.
    assert shares[0] != shares[1]


def test_a_gpu_without_a_data_sheet_shows_times_and_no_shares(found):
    unknown = copy.deepcopy(measured(found, "end_to_end"))
    unknown.device.slug = "acme-gpu"
    builder = import_module("tools.render.stems.end_to_end")
    files = builder.fragments([unknown])
    assert "phases-acme-gpu" in files["phases.md"]
    assert "<svg" not in files["shares.md"]
    assert builder.facts(unknown)["share_2_7B_512_fp32"] == "not measured"


def test_out_of_memory_is_a_row_and_a_fact(found):
    smaller = copy.deepcopy(measured(found, "end_to_end"))
    for row in smaller.rows:
        if row.config["size"] == "2.7B":
            row.status, row.metrics, row.reason = (
                "out_of_memory",
                {},
                "CUDA out of memory",
            )
    builder = import_module("tools.render.stems.end_to_end")
    facts = builder.facts(smaller)
    assert facts["memory_2_7B_512_fp32"] == facts["growth_2_7B_fp32"] == "out of memory"
    files = builder.fragments([smaller])
    full = " out of memory |"
    assert f"| 2.7B | 512 |{3 * full}  |  |  |  |" in files["fp32.md"]
    drawn = files["shares.md"] + files["phases.md"]
    assert not re.search(r"\bnan\b", drawn)


def test_10b_stands_beside_its_prediction(found):
    record = copy.deepcopy(measured(found, "end_to_end"))
    builder = import_module("tools.render.stems.end_to_end")
    table = builder.ten_billion_table(record)
    assert re.search(r"\| bf16 \| step \| out of memory \|  \| 205.3 \|", table)
    facts = builder.facts(record)
    assert facts["runs_of_10B"] == "can run forward and backward, but no optimizer step"
    record.device.memory_bytes = 40 * 2**30
    assert builder.facts(record)["runs_of_10B"] == "can run none of its passes"


def test_columns_by_hand(found):
    record = copy.deepcopy(measured(found, "end_to_end"))
    place = {"size": "small", "context": 512, "batch": 4, "mode": "step"}
    for precision, ms in (("fp32", 300.0), ("bf16", 90.0)):
        row = record.find(**place, precision=precision)
        parts = {"forward": ms / 3, "loss": 1.0, "backward": 2 * ms / 3, "optimizer": 9}
        row.metrics |= {f"{phase}_ms": [took] * 3 for phase, took in parts.items()}
    x = rows.steps(record).one(**place, precision="bf16")
    assert (x["pass_gain"], x["backward_gain"]) == pytest.approx((301 / 91, 300 / 90))
    assert (x["gain"], x["backward_over_forward"]) == pytest.approx((310 / 100, 2))
    # PyTorch counts the forward pass, and backward has twice as many FLOPs.
    sizes = found["model_sizes"][0]
    counted = 3 * sizes.find(size="small", context=512).metrics["forward_flops"]
    assert x["tflop"] == pytest.approx(counted / 1e12)
    assert x["share"] == pytest.approx(counted / 0.1 / 989.5e12, rel=1e-3)
    assert x["pass_share"] == pytest.approx(counted / 0.091 / 989.5e12, rel=1e-3)
    short = rows.passes(record).one(**place | {"context": 128}, precision="bf16")
    growth = rows.passes(record).one(**place, precision="bf16")["growth"]
    assert growth == pytest.approx(100 / short["step_ms"])


def test_reported_figures_say_so_and_stand_last(found):
    files = import_module("tools.render.stems.end_to_end").fragments(
        found["end_to_end"]
    )
    labels = re.findall(r'^===!? "(.*)"', files["fp32.md"], re.MULTILINE)
    assert (
        labels[0] == "NVIDIA H200"
        and all(label.endswith(", reported") for label in labels[1:])
        and len(labels) > 2
    )
    assert files["fp32.md"].count("Reported, not measured here:") == len(labels) - 1
    assert "out of memory" in files["batches.md"]


def test_the_line_under_a_table_says_how_old_its_record_is(found, monkeypatch):
    record = measured(found, "warmup")
    said = {"fresh": "", "verified": "· verified ·", "stale": "· **stale**{ .old } ·"}
    for age in load.AGES:
        monkeypatch.setattr(markdown, "age", lambda record, told=age: told)
        table, line = markdown.per_device([record], lambda r: "| a |").split("\n\n")
        assert table == "| a |"
        assert said[age] in line
        assert (age in line) == (age != "fresh")


def test_what_a_reader_must_know_stands_once_on_a_page(found):
    record = copy.deepcopy(measured(found, "warmup"))
    record.notes = ["on 16 of 64 cores"]
    assert f" · {record.notes[0]} · " in markdown.conditions([record])
    assert record.notes[0] not in markdown.provenance(record)
    record.notes = []
    assert " ·  · " not in markdown.conditions([record])


def test_a_table_links_its_rows_in_the_explorer(found):
    record = measured(found, "warmup")
    link = "explorer.html#GPU=NVIDIA+H200&amp;stem=warmup"
    assert f'<a href="{link}">CSV</a>' in markdown.provenance(record)
    assert '"NVIDIA H200"' in explorer.fragments({"warmup": [record]})["explorer.js"]


def test_a_misplaced_record_is_refused(tmp_path, found):
    record = measured(found, "warmup")
    store.write(record, tmp_path / "nvidia-a100" / "warmup.json")
    with pytest.raises(store.RecordError, match="misplaced"):
        load.load(tmp_path)
    (tmp_path / "nvidia-a100" / "warmup.json").unlink()
    store.write(record, tmp_path / record.device.slug / "method.json")
    with pytest.raises(store.RecordError, match="of warmup on nvidia-h200, misplaced"):
        load.load(tmp_path)


def test_a_number_that_no_row_has_is_not_measured(found):
    """As in a record of older code."""
    record = copy.deepcopy(measured(found, "warmup"))
    for row in record.rows:
        del row.metrics["forward_ms"]
    files, facts = everything.build("warmup", [record])
    assert "not measured" in files["table.md"]
    assert facts["first_step"] == "not measured"


def test_an_error_of_a_builder_is_raised_and_names_its_records(found, monkeypatch):
    """It is a fault of ours, and no record is called damaged."""
    monkeypatch.setattr(warmup, "fragments", lambda records: 1 / 0)
    with pytest.raises(ZeroDivisionError) as raised:
        everything.build("warmup", [measured(found, "warmup")])
    (note,) = raised.value.__notes__
    assert note == "while rendering nvidia-h200/warmup.json"


def test_a_fact_stands_in_a_sentence_as_it_should():
    nbsp = "\N{NO-BREAK SPACE}"
    told = markdown.in_words("-0.5 % to -1.2 ms, 65.5 GiB on nvidia-h200 of 2 sizes")
    assert told == (
        f"−0.5{nbsp}% to −1.2{nbsp}ms, 65.5{nbsp}GiB on nvidia-h200 of 2 sizes"
    )

"""Test pages of several experiments: explorer, calculator, ladder, answers."""

import json
import re
from collections import defaultdict

import pytest
from msgspec.structs import replace

from systems.formulas.fit import peak_bytes
from systems.formulas.memory_costs import Pass
from systems.records.store import RecordError
from tests.factories import make_gpu, read_record
from tools.render import clocks, everything, load
from tools.render.rows import measured_records
from tools.render.spanning import calculator, envelope, explorer, glossary, gpu, ladder
from tools.render.spanning.writeup import answer_fragments, page_answer

FACTS = {"a": {"b": "1 ms"}}


def read_script(text: str) -> dict:
    return json.loads(text.partition(" = ")[2])


def test_explorer_has_the_median_of_each_metric(records):
    data = read_script(explorer.fragments(records)["explorer.js"])
    width, row, lines = len(explorer.TEXTS), [], []
    for same, *rest in data["rows"]:
        row = row[:same] + rest
        line = [data["texts"][n] for n in row[:width]] + row[width:]
        lines.append(dict(zip(data["columns"], line, strict=True)))
    metrics = {line["metric"] for line in lines}
    assert len(metrics) <= 40 and not any("_" in metric for metric in metrics)
    config = {"size": "2.7B", "context": 512, "precision": "bf16"}
    wanted = {"GPU": "NVIDIA H200", "stem": "end_to_end", "metric": "backward"}
    found = (x for x in lines if (wanted | config).items() <= x.items())
    (line,) = (x for x in found if "mode step" in x["configuration"])
    row = read_record("end_to_end").find(**config, mode="step")
    samples = sorted(row.metrics["backward_ms"])
    assert line["value"] == pytest.approx((samples[4] + samples[5]) / 2, rel=1e-5)
    assert (line["unit"], line["samples"]) == ("ms", 10)


def test_calculator_equals_measured_memory(records):
    data = read_script(calculator.fragments(records)["calculator.js"])
    assert len(data["memory"]) >= 15 and len(data["steps"]) >= 20
    for point in data["memory"]:
        names = ("size", "context", "precision", "attention", "checkpoint", "batch")
        p = Pass(mode="step", **{name: point[name] for name in names})
        assert peak_bytes(p) == pytest.approx(point["bytes"], rel=0.01)


def test_spanning_pages_without_records_say_not_measured(records):
    files, facts = ladder.fragments({}), envelope.facts({})
    assert {*ladder.facts({}).values()} == {"not measured"}
    assert calculator.facts({})["worst"] == "not measured"
    for name in ("ladder-needs.md", "ladder-bars.md"):
        assert "Not measured" in files[name]
    assert read_script(calculator.fragments({})["calculator.js"])["memory"] == []
    assert facts.keys() == envelope.facts(records).keys()
    assert facts["kernel_profile"]["softmax_bytes"] == "4.83 GB"
    assert facts["kernel_profile"]["softmax_over_floor"] == "not measured"
    assert "Not measured yet" in gpu.fragments({})["gpu-timelines.md"]


def test_ladder_shows_what_its_gpu_ran():
    ours, kernel = read_record("flash_ablation"), {"kernel": "dq_kernel", "warps": 4}
    kernel |= {"registers": 255, "stack_bytes": 8, "shared_bytes": 2048}
    more = {"kernels": [kernel | {"per_score": 6.25}] * 2}
    rows = [replace(r, metrics=r.metrics | more) for r in ours.rows]
    found = replace(ours, rows=rows)
    shown = ladder.resources_table(found)
    assert "| 255 / 255 | 8 / 8 | 2 / 2 | 2 × 4 / 2 × 4 | 6.2 / 6.2 |" in shown
    other = replace(found, device=replace(ours.device, capability="7.5"))
    assert "? × 4 / ? × 4" in ladder.resources_table(other)
    # Records of earlier versions have no kernels.
    for row in rows:
        del row.metrics["kernels"]
    assert ladder.resources_table(found) == ""
    # Steps for Hopper are left out where another kernel ran.
    rows = [replace(r, metrics={**r.metrics, "ran": "triton"}) for r in ours.rows]
    files = ladder.fragments({"flash_ablation": [replace(ours, rows=rows)]})
    assert "any shape" in files["ladder-forward.md"]
    for name in ("ladder-forward.md", "ladder-backward.md", "ladder-bars.md"):
        assert "specialization" not in files[name]


def test_bottleneck_examples_have_their_bottleneck(records):
    launches, softmax, products = envelope.bottleneck_examples(
        load.primary_record(records, "kernel_profile")
    )
    assert launches["each_us"] < launches["launch_us"]
    assert launches["launch_us"] < softmax["each_us"] < products["each_us"]
    assert softmax["of_memory"] > softmax["of_fp32"]
    assert products["of_fp32"] > products["of_memory"]


def test_experiments_agree_on_gpu_times(records):
    """GPU times of a phase differ by at most 5 %, one in twenty by more than 3 %."""
    groups = defaultdict(list)
    for stem in clocks.FIXED_SETTINGS:
        for record in filter(load.is_fresh, measured_records(records[stem])):
            groups[clocks.software_key(record)].append(record)
    for group in groups.values():
        times = clocks.gpu_times(group).values()
        ratios = [max(of_phase) / min(of_phase) for of_phase in times]
        assert max(ratios) <= 1.05
        differing = sum(ratio > 1.03 for ratio in ratios)
        assert differing <= sum(len(of_phase) > 1 for of_phase in times) / 20


def test_facts_exclude_records_of_other_gpus(monkeypatch):
    for module in (envelope, load):
        monkeypatch.setattr(module, "primary_gpu", lambda: "acme-gpu")
    other = replace(read_record("kernel_profile"), device=make_gpu("ACME GPU"))
    assert envelope.facts({"kernel_profile": [other]})["chip"]["sms"] == "not measured"


def test_glossary_terms_are_unique():
    files = glossary.fragments()
    forms = re.findall(r"^\*\[(.+?)\]: ", files["glossary-tooltips.md"], re.MULTILINE)
    assert len(forms) == len(set(forms)) and {"warps", "Warps", "TMA"} <= set(forms)
    terms = re.findall(r'<dt id="(.+?)">', files["glossary-terms.md"])
    assert len(terms) == len(set(terms)) >= 25


def test_copied_answer_has_facts_and_working_links(tmp_path):
    code = "\n```\n## Try it\n\nTime\n---\n```\n~~~py\n# 2\n## Try it\n~~~\n"
    answer = (
        "It takes {$ facts.a.b $}, see [there](#idea) and [b](b.md).\n[2]: #x\n"
        r" \(24{~}GB\) and \(40{~}GB\)."
        f'{{@ if facts.a.b == "2" @}} No.{{@ endif @}}\n\n# (a)\n{code}'
        "## Answer\n\nWhy\n===\n\n#####d\n## Try it in (b)"
    )
    for after in ("## Try it", "## Exercise { #exercise }", "## Exercises { #e }"):
        (tmp_path / "a.md").write_text(f"# T{code}\n## Answer\n\n{answer}\n\n{after}\n")
        filled = "It takes 1 ms, see [there](a.md#idea) and [b](b.md).\n[2]: a.md#x\n"
        filled += r" \(24{~}GB\) and \(40{~}GB\)."
        filled += f"\n\n### (a)\n{code}#### Answer\n\n#### Why\n\n"
        filled += "###### d\n#### Try it in (b)"
        assert page_answer("a", FACTS, tmp_path) == filled
    # Answers that are not measured are left out.
    (text,) = answer_fragments(FACTS, {"warmup": False}).values()
    assert "[start:warmup]" in text and "first step" not in text


def test_own_answer_needs_no_record(monkeypatch):
    writeup = everything.import_spanning("writeup")
    fact = "{$ facts.a.b $}"
    for text, known in (("Mine.", True), (fact, True), (writeup.SHIPPED + fact, False)):
        monkeypatch.setattr(writeup, "answer_section", lambda *_, text=text: text)
        assert writeup.answered_pages({})["warmup"] == known
    assert writeup.page_answer("warmup", FACTS) == "1 ms"


def test_answers_may_not_define_a_reference_differently(monkeypatch):
    texts = {"a": "[1]: x.md\n[b]: y", "c": "```\n[1]: y\n```\n[1]: x.md\n"}
    writeup = everything.import_spanning("writeup")
    monkeypatch.setattr(writeup, "page_answer", lambda page, _: texts[page])
    assert answer_fragments(FACTS, dict.fromkeys(texts, True))
    texts["c"] += "\n[B]: z"
    with pytest.raises(RecordError, match=r"^docs/a\.md and docs/c\.md define \[B\] "):
        answer_fragments(FACTS, dict.fromkeys(texts, True))


def test_missing_answer_or_fact_names_the_page(tmp_path):
    own, end = "\n## Answer\n", "\n## Try it\n"
    wrong = "", own + end, f"{own}Mine.\n", f"{own}Mine.\n{end}More.\n{end}"
    comments = f"{own}<!--guide-->\n<!-- later:\nmore -->\n{end}"
    for text in (*wrong, comments, f"{own}Mine.\n>>>>>>> b\n{end}"):
        (tmp_path / "a.md").write_text(f"# T\n{text}")
        with pytest.raises(RecordError, match=r"a\.md:3: write an answer between"):
            page_answer("a", FACTS, tmp_path)
    faults = {"{$ facts.a.c $}": "5: .*'c'", "```\n${$}\n```": "6: unexpected '}'"}
    faults |= {"{$ facts.x.c $}": "5: .*'x'", "{$ facts.a.b / 2 $}": "5: unsupported"}
    for text, fault in faults.items():
        (tmp_path / "a.md").write_text(f"# T\n## Answer\n\n\n{text}\n{end}")
        with pytest.raises(RecordError, match=rf"a\.md:{fault}"):
            page_answer("a", FACTS, tmp_path)

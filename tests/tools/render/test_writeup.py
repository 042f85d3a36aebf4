"""Test that problems, the write-up, claims and records agree."""

import copy
import re

import yaml
from msgspec.structs import replace

from systems import ROOT
from systems.experiments import STEMS
from systems.formulas.gpus import GPUS
from tools.render import load
from tools.render.markdown import NOTHING_YET
from tools.render.spanning import calculator, envelope, student, writeup

DOCS = ROOT / "docs"
PAGE = (DOCS / "writeup.md").read_text(encoding="utf-8")
PROBLEMS = writeup.load_problems()
ANSWERS = [answer for problem in PROBLEMS for answer in problem.answers]
# Experiments that no problem asks for, or no answer needs.
UNASKED = {"model_sizes", "method", "model_attention", "weighted_sum"}
UNASKED |= {"flash_peers", "flash_leaderboard", "flash_ablation"}


def test_writeup_page_lists_problems_in_order():
    assert sum(problem.points for problem in PROBLEMS) == 98 and len(PROBLEMS) == 11
    heading = r"^## (.+) \{ #(\w+) \}\n\n(.+)\n\{ \.tag \}$"
    tags = (
        f"NYU {p.section}" if p.section else f"CS336 {max(p.stanford)}"
        for p in PROBLEMS
    )
    assert re.findall(heading, PAGE, re.MULTILINE) == [
        (f"{n}. {p.title}", p.name, f"{tag} · `{p.name}`")
        for n, (p, tag) in enumerate(zip(PROBLEMS, tags, strict=True), start=1)
    ]
    pages = [answer.page for answer in ANSWERS]
    assert re.findall(r"writeup\.md:asked-(\w+)", PAGE) == pages
    assert re.findall(r"answers\.md:(\w+)", PAGE) == pages
    names = [problem.name for problem in PROBLEMS]
    assert re.findall(r"writeup\.md:claims-(\w+)", PAGE) == names


def test_answers_and_experiments_name_each_other():
    assert set(STEMS) - UNASKED == {stem for answer in ANSWERS for stem in answer.stems}
    assert set(STEMS) >= UNASKED
    for part in re.split(r"(?=answers\.md:)", PAGE)[1:]:
        answer = next(a for a in ANSWERS if f"answers.md:{a.page}" in part)
        evidence = part.split("generated/writeup.md")[0]
        shown = re.findall(r"generated/(\w+?)-[\w-]+\.md", evidence)
        assert set(answer.stems) & set(shown), f"no evidence follows {answer.page}"


def test_problems_and_claims_match(records):
    claimed = {problem.name: set() for problem in PROBLEMS}
    for claim in writeup.all_claims():
        claimed[claim.problem].add(claim.stem)
    for problem in PROBLEMS:
        stems = [set(answer.stems) for answer in problem.answers]
        assert claimed[problem.name] <= UNASKED.union(*stems)
        for answer, of in zip(problem.answers, stems, strict=True):
            measured = writeup.gpus_with_records(answer.stems, records)
            assert not measured or claimed[problem.name] & of, answer.page


def test_answers_need_all_records_of_the_primary_gpu(records):
    answer = next(a for a in ANSWERS if a.page == "mixed_precision")
    assert writeup.answered_pages(records)["mixed_precision"]
    assert "{ .status }" not in writeup.question_text(answer, True, records)
    assert "not measured yet" in writeup.question_text(answer, False, records)
    quick = {"end_to_end": [replace(records["end_to_end"][0], grid="quick")]}
    shown = writeup.question_text(answer, True, quick)
    assert "any other row: `python -m systems.experiments.end_to_end --help`" in shown
    # Reported records or some of the stems are not enough for an answer.
    reported = [r for r in records["end_to_end"] if r.kind == "reported"]
    less = records | {"end_to_end": reported}
    assert not writeup.answered_pages(less)["mixed_precision"]


def test_gpu_with_few_records_shows_only_its_own_numbers(records, monkeypatch):
    for module in (load, student):
        monkeypatch.setattr(module, "primary_gpu", lambda: "nvidia-h100-80gb-hbm3")
    few = dict.fromkeys(records, []) | {"peak_memory": records["peak_memory"]}
    files = student.fragments(few) | calculator.fragments(few)
    head, _, *rows = files["student-problems.md"].splitlines()
    (known,) = (row for row in rows if "not measured" not in row)
    assert "H100 80 GB, measured | A100 |" in head and "`peak_memory`" in known
    assert "NVIDIA H100 80GB HBM3, driver" in files["student-check.md"]
    assert files["student-measured.md"] == NOTHING_YET
    quick = [replace(r, grid="quick") for r in records["warmup"]]
    assert "--quick --only" in student.measuring_output({"warmup": quick})
    assert '"measured_on":"h100"' in files["calculator.js"]
    assert "H100" not in envelope.predict_by_gpu(lambda peak: 1.0)


def test_rows_predicted_out_of_memory_on_an_h100_were(records):
    for stem in ("gradient_checkpointing", "mixed_precision", "peak_memory"):
        h200, h100 = (r for r in records[stem] if r.kind == "measured")
        assert h100.device.name == "NVIDIA H100 80GB HBM3"
        lost = sum(row.status == "out_of_memory" for row in h100.rows)
        assert student.count_oom_rows([h200], GPUS["h100"].free_bytes) == str(lost)
        # Rows that ran out of memory there might fit on a larger GPU.
        assert student.count_oom_rows([h100], 2**40) == ("–" if lost else "0")


def test_records_of_the_meta_device_answer_a_problem(records):
    """Saved tensors follow from shapes, so no GPU has a record of them."""
    ours = [r for r in records["saved_tensors"] if r.kind == "measured"]
    assert [record.device.slug for record in ours] == ["meta"]
    assert writeup.answered_pages(records)["saved_tensors"]
    assert not writeup.answered_pages({**records, "saved_tensors": []})["saved_tensors"]


def test_meta_device_claims_have_no_tab(records):
    """Peak memory is measured on GPUs, saved bytes on the meta device."""
    (problem,) = (p for p in PROBLEMS if p.name == "memory_profiling")
    counted = next(c for c in writeup.all_claims() if c.stem == "saved_tensors")
    ours = next(r for r in records["peak_memory"] if r.kind == "measured")
    alone = writeup.claim_tabs(problem, {**records, "peak_memory": [ours]})
    assert "No data here" not in alone and "===" not in alone
    assert " 4 of 4)" in writeup.claim_tabs(problem, {"peak_memory": [ours]})
    other = copy.deepcopy(ours)
    other.device.name, other.device.slug = "NVIDIA X", "nvidia-x"
    text = writeup.claim_tabs(problem, {**records, "peak_memory": [ours, other]})
    assert re.findall(r' ===!? "(.+)"\n', text) == ["NVIDIA H200", "NVIDIA X"]
    holds = f"- **Holds:** {counted.sentence}"
    assert text.count(holds) == 2 and "No data here" not in text
    # Without records of GPUs, claims of the meta device are judged.
    alone = writeup.claim_tabs(problem, {**records, "peak_memory": []})
    assert alone.count(holds) == 1 and "===" not in alone


def test_pages_use_every_fact():
    """`--check` does not look for others: an own answer may use fewer facts."""
    facts = yaml.safe_load((DOCS / "generated/facts.yml").read_bytes())["facts"]
    names = {f"{stem}.{name}" for stem, texts in facts.items() for name in texts}
    pages = [ROOT / "README.md", *DOCS.glob("*.md")]
    text = "".join(page.read_text("utf-8") for page in pages)
    used = set(re.findall(r"\bfacts\.(\w+\.\w+)", text))
    assert not names - used, "delete them in tools/render"


def nav_pages(entries):
    for entry in entries:
        ((title, below),) = entry.items()
        if isinstance(below, list):
            yield from nav_pages(below)
        else:
            yield title, below


def test_navigation_lists_every_page_by_title():
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").split("\nnav:\n")[1]
    listed = yaml.safe_load(re.split(r"\n(?=\w)", nav)[0])
    shown = [(title, page) for title, page in nav_pages(listed) if page != "index.md"]
    for title, page in shown:
        text = (DOCS / page).read_text(encoding="utf-8")
        # JSON of notebooks escapes line ends.
        assert re.search(rf"# {re.escape(title)}(?:\n|\\n)", text), page
    sources = ("*.md", "api/*.md", "notebooks/*.ipynb")
    there = {p.relative_to(DOCS).as_posix() for s in sources for p in DOCS.glob(s)}
    assert {page for _, page in shown} == there - {"index.md"}

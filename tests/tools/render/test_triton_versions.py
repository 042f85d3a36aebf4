"""What each Triton makes of our kernels, from records that are made up."""

import pytest

from systems.experiments.triton_versions import VERSIONS, Config
from systems.records.record import Row
from tests.factories import make_gpu, make_record, make_row
from tools.render.stems import triton_versions

SHAPES = ((1, 16, 16384, 64, True), (4, 16, 4096, 128, False))
# By version how much longer than the first the same kernels take.
SLOWER = dict(zip(VERSIONS, (1.0, 0.9, 1.1, 1.2), strict=True))
# Kernels for Hopper run with the first two, and take half the time.
TESTED = VERSIONS[:2]


def row(version: str, name: str, shape: tuple, lost: str | None = None) -> Row:
    config = Config(version, name, *shape)
    ran = "hopper" if name == "ours" and version in TESTED else "triton"
    ms = SLOWER[version] * shape[2] / (2048 if ran == "hopper" else 1024)
    times = {"forward_ms": [ms], "backward_ms": [2 * ms], "both_ms": [3 * ms]}
    made = make_row(config, ran=ran, **times)
    return Row(made.config, "unsupported", reason=lost) if lost else made


def record(lost: dict[str, str] | None = None):
    rows = [
        row(version, name, shape, (lost or {}).get(version))
        for shape in SHAPES
        for name in ("ours", "ours_triton")
        for version in VERSIONS
    ]
    gpu = make_gpu("NVIDIA H200", capability="9.0")
    return make_record("triton_versions", *rows, device=gpu)


def lines_of(text: str, *words: str) -> list[str]:
    return [line for line in text.splitlines() if all(word in line for word in words)]


def test_a_line_for_each_version_says_what_ran_and_how_fast():
    shown = triton_versions.fragments([record()])["table.md"]
    for version in VERSIONS:
        (line,) = lines_of(shown, f"| {version} |")
        ran = "hopper" if version in TESTED else "triton"
        ours = SLOWER[version] * (1 if ran == "hopper" else 2)
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        same = f"{ours:.2f} ({ours:.2f})"
        plain = f"{SLOWER[version]:.2f} ({SLOWER[version]:.2f})"
        assert cells[1:4] == [ran, same, same]
        assert all(cell.startswith(plain) for cell in cells[4:]) and len(cells) == 6


def test_a_shape_names_the_kernels_where_others_ran():
    shown = triton_versions.fragments([record()])["shapes.md"]
    forward, both = lines_of(shown, "4k · d\N{NO-BREAK SPACE}128", "default")
    assert "| hopper | forward | 2.000 | 2.20, triton | 2.40, triton |" in forward
    assert "*3.7.1* 0.90" in shown
    assert "| forward + backward | 6.000 |" in both
    plain, _ = lines_of(shown, "4k · d\N{NO-BREAK SPACE}128", "any GPU")
    assert "| triton | forward | 4.000 | 1.10 | 1.20 |" in plain


def test_sentences_tell_the_same_kernels_from_others():
    assert triton_versions.facts(record()) == {
        "oldest": "3.6.0",
        "newest": "3.8.0 and 3.9.0",
        "chosen": "0.90",
        "plain": "0.90 to 1.20",
        "other": "2.20 to 2.40",
        "forward_64": "not measured",
        "forward_128": "not measured",
        "plain_forward": "0.90 to 1.20",
        "rounds_apart": "not measured",
        "rounds_apart_most": "not measured",
    }
    assert set(triton_versions.facts(None).values()) == {"not measured"}


def test_the_newest_versions_are_told_by_head_dimension():
    there = record()
    for row in there.rows:
        if row.config["implementation"] == "ours":
            row.metrics["ran"] = "triton"
            newest = row.config["triton"] in VERSIONS[2:]
            row.metrics["forward_ms"] = [row.config["d"] * (1.5 if newest else 1.0)]
    facts = triton_versions.facts(there)
    assert facts["forward_64"] == facts["forward_128"] == "1.50"


def test_versions_that_took_turns_are_compared_round_by_round():
    """In a round all meet the same clock."""
    there = record()
    for row in there.rows:
        slower = 1.1 if row.config["triton"] == "3.9.0" else 1.0
        row.metrics["ran"] = "triton"
        for of in ("forward", "both"):
            # The third round of 3.9 is quick; the clock of each round is another.
            rounds = [slower, 2 * slower, 3.0]
            row.metrics[f"{of}_rounds_ms"] = rounds
            row.metrics[f"{of}_ms"] = [9.0 if slower > 1 else 1.0]
    facts = triton_versions.facts(there)
    assert facts["chosen"] == facts["plain"] == "1.00 to 1.10"
    assert (facts["rounds_apart"], facts["rounds_apart_most"]) == ("0.00", "0.10")


def test_no_sentence_speaks_of_other_kernels_where_none_ran():
    there = record()
    there.rows = [row for row in there.rows if row.config["triton"] in TESTED]
    assert triton_versions.facts(there)["other"] == "none"


@pytest.mark.parametrize("version", VERSIONS)
def test_a_version_that_was_not_there_is_named_as_such(version):
    there = record({version: "not installed: Triton, found another"})
    files = triton_versions.fragments([there])
    (line,) = lines_of(files["table.md"], f"| {version} |")
    assert "not installed" in line
    others = [v for v in VERSIONS if v != version]
    for other in others:
        assert lines_of(files["table.md"], f"| {other} |")
    assert "not installed" in files["shapes.md"]
    # Without the oldest nothing is compared.
    compared = version != VERSIONS[0]
    assert (triton_versions.facts(there)["plain"] != "not measured") == compared


def test_without_a_record_the_tables_say_what_to_run():
    for shown in triton_versions.fragments([]).values():
        assert "python tools/regen_tables.py" in shown

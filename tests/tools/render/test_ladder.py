"""The ladder: what is said of a step follows from its time and what was compiled."""

from statistics import median

import pytest
from msgspec.structs import replace

from tests.factories import committed, make_record, make_row
from tools.render.spanning import ladder
from tools.render.spanning.ladder import Gain, Needs, evidence
from tools.render.stems.flash_ablation import BACKWARD, FORWARD, atomics_keep, ms
from tools.render.stems.flash_peers.rows import TEST

STEMS = ("flash_ablation", "flash_peers", "flash_leaderboard")
TEXT = ()
TWO = Needs(TEXT, (15.0,), 120, 8, 2)


def same(gained: float) -> Gain:
    """At any clock."""
    return Gain(gained, gained)


@pytest.fixture(scope="module")
def found():
    return {stem: [committed(stem)] for stem in STEMS}


def test_every_step_beside_another_has_a_cause_and_a_prediction():
    for steps in (FORWARD, BACKWARD):
        rest = [step for name, step in steps.items() if not name.startswith("first_")]
        assert all(step.cause for step in rest)
        assert all(float(step.factor) for step in rest[1:])
        assert all(
            float(steps[s].factor) for before, s in ladder.compared(steps) if before
        )


def test_without_records_nothing_is_measured_and_nothing_is_said():
    assert set(ladder.facts({}).values()) == {"not measured"}
    files = ladder.fragments({})
    assert files["ladder-why.md"] == "Not measured yet.\n"
    assert "Not compiled" in files["ladder-needs.md"]
    assert "Not measured" in files["ladder-bars.md"]


@pytest.mark.parametrize(
    ("name", "like"), [("forward", "tiles"), ("backward", "atomic_backward")]
)
def test_the_first_kernel_has_a_row_only_where_it_was_measured(found, name, like):
    (ours,) = found["flash_ablation"]
    first = f"first_{name}"
    rest = [row for row in ours.rows if row.config["step"] != first]
    measured = next(row for row in rest if row.config["step"] == like)
    measured = replace(measured, config={**measured.config, "step": first})
    for rows, there in ((rest, False), ([*rest, measured], True)):
        record = replace(ours, rows=rows)
        files = ladder.fragments({**found, "flash_ablation": [record]})
        assert ("| the first kernel |" in files[f"ladder-{name}.md"]) is there
        # What was compiled is not what was timed.
        assert "| the first kernel |" in files["ladder-needs.md"]


def test_the_first_step_measured_compares_with_nothing(found):
    table = ladder.fragments(found)["ladder-forward.md"]
    assert "not measured" not in table
    assert "not measured" not in ladder.facts(found).values()
    # Tiles are where the ladder begins: no gain, but beside the floor.
    (tiles,) = (line for line in table.splitlines() if line.startswith("| all tiles"))
    assert tiles.count("%") == 1 and tiles.split("|")[4].strip() == ""
    assert "*same bits in two calls* yes" in table


def test_cudnn_stands_beside_what_was_timed_in_turns_with_it(found):
    """At whatever clock the steps were: elsewhere a ratio would compare clocks."""
    (peers,), (ours,) = found["flash_peers"], found["flash_ablation"]
    for step, name, of in (
        ("plain_forward", "ours_triton", "forward"),
        ("backward", "ours", "backward"),
    ):
        mine, cudnn = (
            median(peers.find(**TEST, implementation=i).metrics[f"{of}_rounds_ms"])
            for i in (name, "sdpa_cudnn")
        )
        share = ladder.of_cudnn(found, ours, step)
        assert share == pytest.approx(cudnn / mine, rel=0.02)
    assert not ladder.of_cudnn(found, ours, "exp2")


@pytest.mark.parametrize(
    ("after", "gained", "said"),
    [
        (
            Needs(TEXT, (12.0,), 134, 8, 1),
            0.8,
            ["134 registers", "with 128", "one is"],
        ),
        (
            Needs(TEXT, (12.0,), 134, 8, 1),
            0.8,
            ["15.0 to 12.0", "It loses.", "nobody else computes"],
        ),
        (
            Needs(TEXT, (15.0,), 160, 4, 2),
            0.9,
            ["from 16 to 8", "It loses.", "fewer others are left"],
        ),
        (Needs(TEXT, (15.0,), 120, 8, 2), 0.9, ["It loses.", "the next experiment"]),
        (Needs(TEXT, (15.0,), 80, 8, 3), 1.5, ["from 16 to 24", "warps that hide"]),
    ],
)
def test_the_reason_follows_from_what_was_compiled(after, gained, said):
    told = " ".join(evidence(TWO, after, same(gained), predicted=1.1))
    assert [words for words in said if words not in told] == []


def test_nothing_is_said_where_nothing_changes_or_kernels_are_several():
    assert evidence(TWO, TWO, same(1.05), predicted=1.1) == []
    several = Needs(TEXT, (8.0, 7.0), None, 8, 1)
    assert evidence(TWO, several, same(0.5), predicted=0.7) == []


def test_a_step_that_falls_short_keeps_its_reason():
    several = Needs(TEXT, (8.0, 4.0), None, 8, 1)
    told = evidence(TWO, several, same(1.1), predicted=1.4, short="dQ travels.")
    assert told == [
        "The loops together went from 15.0 to 12.0 instructions for a score.",
        "**It saves 32 % of the time that it should.** dQ travels.",
    ]
    *_, told = evidence(TWO, several, Gain(1.1, 1.2), predicted=1.4, short="Why.")
    assert told == (
        "**It saves 32 % of the time that it should (58 % once the clock has "
        "fallen).** Why."
    )
    (told,) = evidence(TWO, TWO, same(1.01), predicted=1.1)
    assert told.startswith("**It gains nothing.** The compiled loop does not")
    # What takes longer saves no negative share.
    (told,) = evidence(TWO, TWO, Gain(0.99, 1.1), predicted=1.3)
    assert told.startswith(
        "**It gains nothing at first, and saves 39 % of the time that it should once "
    )
    fewer = Needs(TEXT, (15.0,), 120, 4, 2)
    *_, told = evidence(TWO, fewer, same(0.99), predicted=1.1)
    assert "fewer warps are left" in told
    # Where a factor below one was expected, nothing falls short.
    assert evidence(TWO, TWO, same(0.99), predicted=1.0) == []


def test_every_step_that_falls_short_on_the_page_says_why(found):
    """Those of the committed record: smaller tiles, and roles backward."""
    files = ladder.fragments(found)
    for name, steps in (("why", FORWARD), ("why-backward", BACKWARD)):
        lines = files[f"ladder-{name}.md"].splitlines()
        by_name = {line.partition(".** ")[0][5:].lower(): line for line in lines}
        for before, step in ladder.compared(steps):
            (ours,) = found["flash_ablation"]
            if before and steps[step].factor:
                gained = ladder.gain(ours, before, step)
                line = by_name[steps[step].name]
                assert f"measured {gained:.2f}" in line
                if ladder.falls_short(gained, float(steps[step].factor)):
                    assert (
                        "It gains nothing" in line
                        or "It saves" in line
                        or "It loses" in line
                    )


@pytest.mark.parametrize(
    ("gained", "said"),
    [(1.0, "lose all"), (7 / 6, "keep 50 % "), (7 / 5, "keep 100 % ")],
)
def test_the_verdict_on_atomics_follows_what_was_measured(gained, said):
    assert atomics_keep(gained).startswith(said)


def test_the_first_kernel_is_a_sibling_of_the_second_step(found):
    table = ladder.fragments(found)["ladder-forward.md"]
    lines = [line.split("|") for line in table.splitlines() if line.startswith("| ")]
    names = [line[1].strip() for line in lines]
    place = names.index("the first kernel")
    assert names[place - 1] == "stops at the diagonal"
    # It has no gain, and the step below is compared with the one above it.
    assert lines[place][4].strip() == ""
    assert ("skip", "split") in ladder.compared(FORWARD)
    assert ("first_backward", "atomic_backward") in ladder.compared(BACKWARD)


def test_a_warp_s_instructions_are_issued_one_a_cycle_by_each_of_four_schedulers(found):
    (ours,) = found["flash_ablation"]
    (clock,) = {max(ours.device.sm_clocks_mhz)}
    in_half = 16 * 16384**2 / 2 * 15 / (4 * 32 * 132 * clock * 1e6) * 1e3
    for step, expected in (("skip", in_half), ("tiles", 2 * in_half)):
        assert ladder.issued_ms(ours, step, TWO) == pytest.approx(expected, rel=1e-3)


def test_compiled_numbers_stand_beside_their_own_triton_and_gpu_alone(found):
    (ours,) = found["flash_ablation"]
    assert "134" in ladder.needs_table(ours)
    other = replace(ours, software={**ours.software, "triton": "0.0.1"})
    elsewhere = replace(ours, device=replace(ours.device, capability="8.0"))
    for measured in (other, elsewhere):
        assert ladder.needs(measured) == {}
        assert "Not compiled" in ladder.needs_table(measured)


def test_where_hopper_s_kernels_did_not_run_their_steps_are_left_out(found):
    (ours,) = found["flash_ablation"]
    rows = [replace(r, metrics={**r.metrics, "ran": "triton"}) for r in ours.rows]
    files = ladder.fragments({"flash_ablation": [replace(ours, rows=rows)]})
    assert "any shape" in files["ladder-forward.md"]
    for name in ("ladder-forward.md", "ladder-why.md", "ladder-bars.md"):
        assert "with roles" not in files[name]


def test_one_outlying_call_decides_no_step():
    row = make_row({"step": "forward"}, time_ms=[0.7, 1.1, 1.0, 1.2])
    assert ms(make_record("flash_ablation", row), "forward") == 1.0


def test_where_the_clock_fell_in_one_step_alone_both_gains_are_told(found):
    steps = {
        "two_passes_backward": [2.9] * 3 + [3.3] * 9,
        "backward": [2.7] * 12,
        "plain_backward": [3.4] * 12,
    }
    (ours,) = found["flash_ablation"]
    rows = [
        replace(
            row, metrics=row.metrics | {"time_ms": steps.get(row.config["step"], [5.0])}
        )
        for row in ours.rows
    ]
    files = ladder.fragments({"flash_ablation": [replace(ours, rows=rows)]})
    why = files["ladder-why-backward.md"]
    assert "measured 1.07, and 1.22 once the clock has fallen." in why
    assert "measured 1.17, and 1.03 once the clock has fallen." in why
    line = next(x for x in files["ladder-backward.md"].splitlines() if "in order" in x)
    assert [x.strip() for x in line.split("|")[4:6]] == ["1.07", "1.22"]

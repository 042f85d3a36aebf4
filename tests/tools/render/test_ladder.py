"""The ladder: each step's speedup and its share of the bound, and what was compiled."""

from statistics import median

import pytest
from msgspec.structs import replace

from tests.factories import committed, make_record, make_row
from tools.render.spanning import ladder
from tools.render.stems.flash_ablation import BACKWARD, FORWARD, ms
from tools.render.stems.flash_peers import TEST

STEMS = ("flash_ablation", "flash_peers", "flash_leaderboard")


@pytest.fixture(scope="module")
def found():
    return {stem: [committed(stem)] for stem in STEMS}


def test_without_records_nothing_is_measured_and_nothing_is_said():
    assert set(ladder.facts({}).values()) == {"not measured"}
    files = ladder.fragments({})
    assert "Not compiled" in files["ladder-needs.md"]
    assert "Not measured" in files["ladder-bars.md"]


def test_a_step_is_compared_with_the_one_above_it():
    """But the first kernel's forward pass with none."""
    times = {"tiles": 4.0, "skip": 2.0, "first_forward": 3.0, "split": 2.5}
    rows = [make_row({"step": s}, time_ms=[t], repeats=True) for s, t in times.items()]
    gpu = committed("flash_ablation").device
    record = make_record("flash_ablation", *rows, device=gpu)
    found = ladder.steps(record, FORWARD)
    assert found.column("step") == [*times]
    assert [x["speedup"] or None for x in found] == [None, 2.0, None, 0.8]
    # 2 matmuls of 128 FLOPs for half of 16 · 16384² scores, 4096 FLOPs a clock and SM.
    clock = 1e6 * max(gpu.sm_clocks_mhz)
    bound = 1e3 * 2 * 128 * 8 * 16384**2 / (4096 * 132 * clock)
    assert found[0]["of_bound"] == pytest.approx(bound / 4, rel=1e-3)
    table = ladder.steps_table(record, FORWARD)
    assert "| 2 | 2.00 | 2.00 |" in table and "*deterministic* yes" in table


def test_cudnn_stands_beside_what_was_interleaved_with_it(found):
    (peers,), (ours,) = found["flash_peers"], found["flash_ablation"]
    for of in ("forward", "backward"):
        mine, cudnn = (
            median(peers.find(**TEST, implementation=i).metrics[f"{of}_rounds_ms"])
            for i in ("ours", "sdpa_cudnn")
        )
        share = ladder.of_cudnn(found, ours, of)
        assert share == pytest.approx(cudnn / mine, rel=0.02)


def test_compiled_numbers_stand_beside_their_own_triton_and_gpu_alone(found):
    (ours,) = found["flash_ablation"]
    table = ladder.needs_table(ours)
    assert all(f"| {step.name} |" in table for step in (FORWARD | BACKWARD).values())
    other = replace(ours, software={**ours.software, "triton": "0.0.1"})
    elsewhere = replace(ours, device=replace(ours.device, capability="8.0"))
    for measured in (other, elsewhere):
        assert "Not compiled" in ladder.needs_table(measured)


def test_where_hopper_s_kernels_did_not_run_their_steps_are_left_out(found):
    (ours,) = found["flash_ablation"]
    rows = [replace(r, metrics={**r.metrics, "ran": "triton"}) for r in ours.rows]
    files = ladder.fragments({"flash_ablation": [replace(ours, rows=rows)]})
    assert "any shape" in files["ladder-forward.md"]
    for name in ("ladder-forward.md", "ladder-backward.md", "ladder-bars.md"):
        assert "specialization" not in files[name]


def test_one_outlying_call_decides_no_step():
    row = make_row({"step": "forward"}, time_ms=[0.7, 1.1, 1.0, 1.2])
    assert ms(make_record("flash_ablation", row), "forward") == 1.0

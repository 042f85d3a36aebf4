"""Test findings about GPU times that differ between records of the same cell."""

import pytest

from tests.factories import make_gpu, make_record, make_row
from tools.checks import same_cell
from tools.checks.same_cell import check_gpu_times

H200 = make_gpu("NVIDIA H200")
CELL = {"size": "medium", "context": 512, "batch": 4, "precision": "fp32"}


def phase_times(instrument="", forward=17.0, optimizer=10.0, loss=0.07):
    phases = {"forward": forward, "optimizer": optimizer, "loss": loss}
    return {
        f"{instrument}{phase}_gpu_busy_ms": [0.9 * ms, ms, 2 * ms]
        for phase, ms in phases.items()
    }


def profile_record(device=H200, **changed):
    config = {**CELL, "mode": "step", "profiler": "torch"}
    row = make_row(config, **phase_times(**changed))
    return make_record("kernel_profile", row, device=device)


def nsys_record(**changed):
    times = phase_times("torch_") | phase_times("nsys_", **changed)
    return make_record("nsys", make_row(CELL, **times), device=H200)


def step_record(stem, **config):
    row = make_row({**CELL, **config}, forward_ms=[50.0], forward_gpu_ms=[18.0])
    return make_record(stem, row, device=H200)


def check_times(*records):
    return [*check_gpu_times({record.stem: [record] for record in records})]


@pytest.fixture(autouse=True)
def stale_stems(monkeypatch):
    stems: set[str] = set()
    monkeypatch.setattr(same_cell, "is_fresh", lambda record: record.stem not in stems)
    return stems


def test_differences_above_3_percent_are_reported():
    assert check_times(profile_record(forward=17.5), nsys_record(forward=17.2)) == []
    assert check_times(profile_record(forward=17.6), nsys_record()) == [
        "nvidia-h200: GPU time of forward of medium 512 4 fp32 step eager differs: "
        "17.000 ms in nsys, 17.600 ms in kernel_profile; measure kernel_profile again "
        "by `regen_tables.py --only kernel_profile --force`"
    ]
    (line,) = check_times(profile_record(), nsys_record(optimizer=10.4))
    assert "optimizer" in line and line.endswith("--only nsys --force`")


@pytest.mark.parametrize(
    ("cells", "ms", "named"), [(9, 17.6, 1), (10, 17.6, 0), (10, 18, 1)]
)
def test_gpu_times_may_differ_in_one_phase_in_twenty(cells, ms, named):
    times = phase_times("torch_") | phase_times("nsys_")
    rows = [make_row({**CELL, "context": 64 * i}, **times) for i in range(cells)]
    rows[0].metrics |= phase_times("nsys_", forward=ms)
    record = make_record("nsys", *rows, device=H200)
    assert len(check_times(record)) == named


def test_experiments_with_equal_passes_are_compared():
    clock = step_record("end_to_end", mode="step", attention="eager")
    (line,) = check_times(clock, profile_record())
    assert "17.000 ms in kernel_profile, 18.000 ms in end_to_end" in line
    eager, fused = (step_record("compile", execution=x) for x in ("eager", "compiled"))
    assert len(check_times(eager, nsys_record())) == 1
    assert check_times(fused, nsys_record()) == []
    assert check_times(clock, step_record("model_attention", attention="flash")) == []


def test_stale_records_other_gpus_and_other_passes_are_not_compared(stale_stems):
    other = profile_record(device=make_gpu("NVIDIA A100"), forward=20.0)
    assert check_times(other, nsys_record()) == []
    assert check_times(profile_record(loss=0.09), nsys_record()) == []
    other = profile_record(forward=20.0)
    other.rows[0].config["context"] = 1024
    assert check_times(other, nsys_record()) == []
    gone = profile_record(forward=20.0)
    gone.rows[0].status, gone.rows[0].metrics = "out_of_memory", {}
    assert check_times(gone, nsys_record()) == []
    stale_stems.add("kernel_profile")
    assert check_times(profile_record(forward=20.0), nsys_record()) == []

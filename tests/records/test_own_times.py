"""Which times are shown to be the GPU's own, and by what."""

import pytest

from systems.records.own_times import (
    launched_in_a_loop,
    own_times,
    sums_of,
    touched,
)

WALL = {"forward_ms": [10.0, 11.0], "loss_ms": [1.0], "backward_ms": [20.0]}
KERNELS = {"forward": 10.0, "loss": 0.1, "backward": 19.5}


def own(metrics, events=False, kernels=None, launching=None):
    return own_times(metrics, events, kernels or {}, launching or {})


def is_touched(metrics, *names, **known):
    return touched(metrics, own(metrics, **known), names)


def test_without_any_evidence_a_wall_time_is_not_shown_however_alike_its_samples():
    assert own({"forward_ms": [9.0] * 10}) == {"forward": 0.0}
    assert own({"forward_error": [1e-3], "forward_kernels": 8}) == {}


def test_kernels_show_what_they_take_and_phases_count_together():
    assert is_touched(WALL, "loss", kernels=KERNELS)
    # A launch more or less is no tenth of the step.
    assert not is_touched(WALL, "forward", "loss", "backward", kernels=KERNELS)
    less = KERNELS | {"backward": 15.0}
    assert is_touched(WALL, "forward", "loss", "backward", kernels=less)
    assert not is_touched(WALL, "forward", kernels=less)


def test_a_row_s_own_kernels_come_first_and_are_those_of_a_profiled_pass_too():
    row = {
        "torch_forward_ms": [10.0],
        "torch_profiled_forward_ms": [16.0],
        "torch_forward_gpu_busy_ms": [9.5],
    }
    shown = {"torch_forward": 9.5, "torch_profiled_forward": 9.5}
    assert own(row, kernels={"forward": 12.0}) == shown
    span = {"forward_gpu_span_ms": [12.0], "forward_gpu_busy_ms": [9.5]}
    assert own(span) == {"forward_gpu_span": 9.5}


@pytest.mark.parametrize(
    ("samples", "launching", "shown"),
    [
        ([10.0, 10.0, 10.0], 9.0, True),
        ([10.0, 10.0, 10.0], 9.2, False),
        # The host changed while it ran, so probes may have missed how slow it was.
        ([10.0, 10.0, 10.5], 9.0, False),
        ([10.0, 10.0, 11.0], 4.9, True),
        ([10.0, 10.0, 11.0], 5.1, False),
    ],
)
def test_what_takes_longer_than_launching_can_is_the_gpu_s(samples, launching, shown):
    row = {"forward_ms": samples, "profiled_forward_ms": samples}
    found = own(row, launching={"forward": launching})
    assert found["forward"] == (10.0 if shown else 0.0)
    # A profiler makes launching longer, nobody knows by how much.
    assert found["profiled_forward"] == 0.0
    # Kernels that somebody timed are the better witness.
    both = own(row, kernels={"forward": 6.0}, launching={"forward": launching})
    assert both["forward"] == 6.0


def test_events_see_the_host_where_their_samples_differ():
    row = {
        "forward_ms": [0.040, 0.040, 0.041],
        "both_ms": [0.1, 0.12, 0.2, 0.3],
        # Two µs are what a timer leaves.
        "backward_ms": [0.010, 0.010, 0.0115, 0.0118],
    }
    found = own(row, events=True)
    assert found["forward"] == 0.040 and found["both"] == 0.0 < found["backward"]
    assert sorted(sums_of(found, events=True)) == [["backward"], ["both"], ["forward"]]


def test_passes_that_take_longer_in_a_row_than_one_by_one_waited():
    """However alike their samples are."""
    alone = {"forward_ms": [0.040] * 3, "backward_ms": [0.060] * 3}
    close, late = ([ms] * 3 for ms in (0.109, 0.111))
    assert own(alone | {"both_ms": close}, events=True)["both"] == 0.109
    assert own(alone | {"both_ms": late}, events=True)["both"] == 0.0
    assert own({"both_ms": late}, events=True)["both"] == 0.111


def test_what_a_loop_on_the_host_launches_is_never_the_gpu_s():
    """One sample agrees with itself."""
    row = {"forward_ms": [475.6], "call_ms": [1.0]}
    assert own(row, events=True)["forward"] == 475.6
    looped = launched_in_a_loop({"implementation": "tiles"})
    assert own_times(row, True, {}, {}, looped)["forward"] == 0.0
    assert not launched_in_a_loop({"implementation": "ours"})
    assert not launched_in_a_loop({"size": "small"})


def test_what_only_a_host_does_is_never_the_gpu_s():
    row = {"setup_ms": [5.0], "call_ms": [0.1], "warmup_forward_ms": [9e3]}
    found = own(row, events=True, kernels={"forward": 9e3})
    assert found == dict.fromkeys(("setup", "call", "warmup_forward"), 0.0)
    # Compiling has its own price, and says nothing of the passes.
    assert list(sums_of(found, events=False)) == [["setup"], ["call"]]


def test_times_of_kernels_and_graphs_are_the_gpu_s():
    row = {"graph_forward_ms": [1.0], "both_kernels_ms": [1.0], "matmul_ops_ms": [1.0]}
    assert own(row) == {} and not touched(row, {}, ["graph_forward"])


def test_medians_of_rounds_are_no_times_of_their_own():
    """One odd round of five says nothing that the samples of all don't say."""
    row = {"both_ms": [1.0] * 50, "both_rounds_ms": [1.0, 1.0, 1.0, 1.0, 1.6]}
    assert own(row, events=True) == {"both": 1.0}

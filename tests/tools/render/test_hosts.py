"""Which rows a slow host may have touched, by what other records show; and the
evidence: times of one cell that differ.
"""

from itertools import combinations, product
from statistics import median

import pytest

from systems.records.host import Probe
from systems.records.own_times import PHASES, touched
from systems.records.record import Record, Row
from tests.factories import RESULTS, make_gpu, make_record, make_row
from tools.render import hosts, load

CELL = {"size": "small", "context": 512, "precision": "bf16"}
GPU = make_gpu("NVIDIA H200")
SLOW, QUIET = [Probe(2.0)], [Probe(1.0)]
BUSY, WAITED = ({"forward_gpu_busy_ms": [ms] * 3} for ms in (18.5, 5.0))


def judge_hosts(records) -> None:
    """Beside a record of a quiet host."""
    quiet = record("warmup", row({"warmup": 0}, host=QUIET))
    hosts.judge_hosts([*records, quiet])


def row(config, host=SLOW, metrics=None, **ms):
    times = {f"{name}_ms": [value] * 3 for name, value in ms.items()}
    found = make_row(config, **times, **(metrics or {}))
    found.host = host
    return found


def record(stem: str, *rows: Row, **fields) -> Record:
    return make_record(stem, *rows, device=GPU, **fields)


def clock(*rows: Row) -> Record:
    """`end_to_end`."""
    return record("end_to_end", *rows)


def end_to_end(context=128, mode="step", **ms):
    cell = CELL | {"context": context, "mode": mode, "attention": "eager"}
    return row(cell, host=QUIET, **ms)


def profile(context=512, mode="step", **busy):
    config = CELL | {"context": context, "mode": mode}
    metrics = {f"{phase}_gpu_busy_ms": [ms] * 3 for phase, ms in busy.items()}
    metrics |= {f"{phase}_ms": [2 * ms] * 3 for phase, ms in busy.items()}
    return record("kernel_profile", row(config, metrics=metrics))


def step(stem="model_attention", config=None, **ms):
    return record(stem, row(CELL | (config or {"attention": "eager"}), **ms))


def test_what_waits_for_launches_is_unsteady_on_a_slow_host_alone():
    slow, quick = step(forward=20.0), step(forward=20.0)
    quick.rows[0].host = QUIET
    judge_hosts([slow, quick])
    assert slow.rows[0].unsteady and not quick.rows[0].unsteady
    assert slow.rows[0].unsteady_in("forward") and not quick.rows[0].unsteady_in("loss")


@pytest.mark.parametrize(
    ("config", "forward_ms", "doubted"),
    [
        # Now fast, now slow, between two probes that saw neither.
        (CELL, [15.0, 15.1, 15.0, 26.0, 27.0], True),
        (CELL, [15.0, 15.1, 15.0, 15.2, 15.1], False),
        # One slow step of ten is no other host.
        (CELL, [15.0] * 9 + [40.0], False),
        # Nor are the first steps of all.
        (CELL | {"warmup": 0}, [15.0, 15.1, 15.0, 26.0, 27.0], False),
        # A hundred passes of attention are over before a host changes.
        ({"d": 64, "n": 256}, [0.2, 0.2, 0.2, 0.4, 0.4], False),
    ],
)
def test_steps_far_apart_are_unsteady_whatever_probes_say(config, forward_ms, doubted):
    metrics = {"forward_ms": forward_ms, "backward_ms": [20.0] * len(forward_ms)}
    found = record("end_to_end", row(config, host=QUIET, metrics=metrics))
    judge_hosts([found])
    assert found.rows[0].unsteady is doubted
    assert found.rows[0].unsteady_in("forward", "backward") is doubted
    # Not where kernels fill them: then the GPU's clock is what moves.
    busy = {f"{phase}_gpu_busy_ms": [26.0] for phase in ("forward", "backward")}
    found.rows[0].metrics |= busy
    judge_hosts([found])
    assert not found.rows[0].unsteady


def test_kernels_of_the_same_cell_show_a_step_to_be_the_gpu_s():
    for busy, unsteady in ((19.0, False), (17.0, True)):
        eager = step(forward=20.0)
        judge_hosts([eager, clock(), profile(forward=busy)])
        # The profile's own host was as slow, its times twice its kernels.
        assert eager.rows[0].unsteady == unsteady
    # Another driver runs other kernels; without gradients, too.
    other = profile(forward=19.0)
    other.device = make_gpu("NVIDIA H200", driver="2")
    for elsewhere in (other, profile(context=256, forward=19.0)):
        judge_hosts([eager := step(forward=20.0), clock(end_to_end()), elsewhere])
        assert eager.rows[0].unsteady
    judge_hosts([eager := step(forward=20.0), clock(), profile(mode="forward")])
    assert eager.rows[0].unsteady


def test_adamw_s_kernels_are_the_same_whatever_the_model_does():
    for config in ({"attention": "flash"}, {"execution": "compiled", "vocab": 10_000}):
        stem = "compile" if "execution" in config else "model_attention"
        other = step(stem, config, optimizer=10.0)
        judge_hosts([other, clock(), profile(context=128, optimizer=9.5)])
        assert not other.rows[0].unsteady
        other = step(stem, config | {"optimizer": True}, optimizer=10.0)
        judge_hosts([other, clock(), profile(context=128, optimizer=9.5)])
        assert other.rows[0].unsteady
    # Its forward pass is another one.
    fused = step(config={"attention": "flash"}, forward=10.0)
    judge_hosts([fused, clock(), profile(forward=9.5)])
    assert fused.rows[0].unsteady


def test_a_graph_of_the_same_kernels_shows_them_too():
    eager = row(CELL | {"execution": "eager"}, forward=10.0)
    graph = row(CELL | {"execution": "graph"}, forward=9.5)
    judge_hosts([record("compile", eager, graph), clock(end_to_end())])
    assert not eager.unsteady and not graph.unsteady


def test_the_shortest_context_bounds_what_launching_takes_at_every_other():
    """Twice over, times the slowness of the host."""
    references = [end_to_end(256, forward=4.0), end_to_end(128, forward=5.0)]
    for took, unsteady in ((16.5, False), (15.5, True)):
        fused = step(config={"attention": "flash"}, forward=took)
        fused.rows[0].metrics["forward_ms"] = [took, took, 1.1 * took]
        judge_hosts([fused, clock(*references)])
        assert fused.rows[0].unsteady == unsteady
    # A pass of another precision, or without gradients, launches other kernels.
    for other in (
        end_to_end(mode="forward", forward=4.0),
        row(CELL | {"mode": "step", "attention": "eager", "precision": "fp32"}),
    ):
        fused = step(config={"attention": "flash"}, forward=99.0)
        judge_hosts([fused, clock(other)])
        assert fused.rows[0].unsteady


def test_how_slow_the_clock_s_own_host_was_makes_its_bound_lower():
    fused = step(config={"attention": "flash"}, forward=11.0)
    reference = end_to_end(128, forward=9.5)
    for host, unsteady in ((QUIET, True), (SLOW, False)):
        reference.host = host
        judge_hosts([fused, clock(reference)])
        assert fused.rows[0].unsteady == unsteady


def test_what_is_computed_again_is_launched_in_the_backward_pass():
    reference = end_to_end(128, forward=2.0, backward=4.0)
    again = {"strategy": "runs", "attention": "flash"}
    for strategy, took, unsteady in (
        ("none", 18.0, False),
        ("runs", 18.0, True),
        ("runs", 26.0, False),
        ("chain", 26.0, True),
    ):
        config = again | {"strategy": strategy}
        found = step("gradient_checkpointing", config, backward=took)
        found.rows[0].metrics["backward_ms"] = [took, took, 1.1 * took]
        judge_hosts([found, clock(reference)])
        assert found.rows[0].unsteady == unsteady, strategy


@pytest.mark.parametrize(
    ("mode", "backward", "kernels", "unsteady"),
    [
        ("step", 45.0, 20.0, True),
        ("step", 31.0, 20.0, False),
        # The kernels fill it.
        ("step", 45.0, 44.0, False),
        # Without gradients the pass is another.
        ("forward", 45.0, 20.0, False),
    ],
)
def test_a_row_that_the_one_beside_it_outdoes_had_a_slow_host(
    mode, backward, kernels, unsteady
):
    """With or without the optimizer, forward and backward are the same."""
    long = end_to_end(512, mode, forward=15.0, backward=backward)
    long.metrics["backward_gpu_busy_ms"] = [kernels] * 3
    short = end_to_end(512, "forward_backward", forward=15.0, backward=30.0)
    judge_hosts([clock(long, short)])
    assert (long.unsteady, short.unsteady) == (unsteady, False)
    # A record that times in another way says nothing.
    other = record("peak_memory", long, short)
    judge_hosts([other])
    assert not long.unsteady


def timed_elsewhere(config=None, **ms):
    """A step of the same cell in another record, on a host that probes call quiet."""
    return row(CELL | {"mode": "step"} | (config or {}), host=QUIET, **ms)


def test_a_row_that_another_record_outdoes_had_a_slow_host():
    times = {"forward": 10.0, "backward": 20.0, "optimizer": 5.0}
    for phase in times:
        short = end_to_end(512, **times)
        busy = {f"{name}_gpu_busy_ms": [ms / 2] * 3 for name, ms in times.items()}
        long = timed_elsewhere(metrics=busy, **times | {phase: 1.2 * times[phase]})
        judge_hosts([clock(short), record("kernel_profile", long)])
        assert long.unsteady_in(phase) and not short.unsteady_in(*times)
        # The optimizer is short beside the passes, and says nothing of them.
        passes = phase != "optimizer"
        assert long.unsteady is long.unsteady_in("forward", "backward") is passes
        assert long.unsteady_in(*times) is passes
        assert long.in_doubt and not short.in_doubt
    for elsewhere in (
        # What differs by less.
        record("kernel_profile", timed_elsewhere(forward=10.9)),
        # Kernels, which no host makes longer.
        record("kernel_profile", timed_elsewhere(metrics=BUSY, forward=19.0)),
        # A process that was cold.
        record("warmup", timed_elsewhere({"warmup": 0}, metrics=WAITED, forward=19.0)),
    ):
        judge_hosts([short := clock(end_to_end(512, forward=10.0)), elsewhere])
        assert not elsewhere.rows[0].unsteady and not short.rows[0].unsteady
    # Kernels that are launched at once.
    graph = timed_elsewhere({"execution": "graph"}, forward=5.0)
    judge_hosts(
        [eager := clock(end_to_end(512, forward=10.0)), record("compile", graph)]
    )
    assert not eager.rows[0].unsteady
    # Older code may have had less to do; what is slow of its own is still told.
    older = clock(end_to_end(512, forward=10.0))
    long = record("kernel_profile", timed_elsewhere(metrics=WAITED, forward=12.0))
    for stale in ([older], [older, long], []):
        hosts.judge_hosts(
            [older, long], lambda record, stale=stale: record not in stale
        )
        assert long.rows[0].unsteady is (older not in stale)
    # Another driver, or other software, may launch in more time.
    other = record("kernel_profile", timed_elsewhere(forward=19.0))
    other.device = make_gpu("NVIDIA H200", driver="2")
    judge_hosts([clock(end_to_end(512, forward=10.0)), other])
    assert not other.rows[0].unsteady


def test_a_row_that_counts_its_kernels_needs_no_other():
    config = {"d": 64, "n": 4096, "execution": "compiled"}
    for count, unsteady in ((100, False), (1000, True)):
        found = row(config, forward=10.0, metrics={"forward_kernels": count})
        judge_hosts([record("attention", found), clock(end_to_end())])
        assert found.unsteady == unsteady
    # To call what was compiled takes a host longer than to issue a few kernels.
    for execution, unsteady in (("compiled", True), ("eager", False)):
        few = {"forward_kernels": 3}
        found = row(config | {"execution": execution}, forward=0.6, metrics=few)
        judge_hosts([record("attention", found), clock(end_to_end())])
        assert found.unsteady == unsteady
    # Nor does the longest of those that differ in their length alone.
    short, long = (row(config | {"n": n}, forward=ms) for n, ms in ((1, 2.0), (2, 9.0)))
    judge_hosts([record("attention", short, long), clock(end_to_end())])
    assert short.unsteady and not long.unsteady


# Evidence -----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found():
    return load.load(RESULTS)


def test_of_two_times_of_one_cell_the_longer_by_a_tenth_is_not_the_gpu_s(found):
    """Whatever the probes said: no host made the GPU slower."""
    timed: dict = {}
    for stem in hosts.CELLS:
        for one in found[stem]:
            for each in one.rows if one.kind == "measured" else []:
                config = hosts.full(one, each)
                cell = hosts.cell_of(config)
                usual = config.get("warmup", 5) == 5 and hosts.is_plain(config)
                if not (cell and usual and each.status == "ok"):
                    continue
                for who in ("", "torch_", "nsys_"):
                    names = [f"{who}{phase}" for phase in PHASES]
                    if all(f"{name}_ms" in each.metrics for name in names):
                        at = (cell, config["execution"], one.device)
                        timed.setdefault(str(at), []).append((one.stem, each, names))
    differing = 0
    for (_, a, of_a), (stem, b, of_b) in (
        pair for same in timed.values() for pair in combinations(same, 2)
    ):
        times = [
            (sum(median(r.metrics[f"{n}_ms"]) for n in names), r, names)
            for r, names in ((a, of_a), (b, of_b))
        ]
        (less, *_), (more, longer, names) = sorted(times, key=lambda time: time[0])
        if more > 1.1 * less:
            differing += 1
            assert touched(longer.metrics, longer.own, names), (stem, longer.config)
    assert differing > 0


def test_passes_that_waited_are_not_the_gpu_s(found):
    """Both passes together longer than one and then the other."""
    waited = 0
    for one, each in (
        (one, each)
        for one, each in product(found["flash_benchmarking"], range(10_000))
        if one.kind == "measured" and each < len(one.rows)
    ):
        metrics = one.rows[each].metrics
        parts = [metrics.get(f"{of}_ms") for of in ("forward", "backward", "both")]
        if all(parts):
            forward, backward, both = map(median, parts)
            if both > 1.1 * (forward + backward):
                waited += 1
                assert one.rows[each].own["both"] == 0.0
    assert waited > 0


def test_most_rows_of_slow_hosts_are_the_gpu_s_own(found):
    """Or the mark would say nothing."""
    slow = [
        row
        for of_stem in found.values()
        for one in of_stem
        for row in one.rows
        if row.slow and row.timed
    ]
    unsteady = [row for row in slow if row.unsteady]
    assert len(unsteady) < len(slow) / 2

"""Rows that a slow host may have touched are measured again when it is quiet."""

import time
from contextlib import nullcontext
from datetime import UTC, datetime

import pytest

from systems.records import neighbours, store
from systems.records.host import Probe
from systems.records.outcome import Unsupported
from systems.running import again, measure
from systems.running.cores import Cores, quick_cores
from systems.running.resuming import partial_path
from systems.running.software import versions
from tests import fake_stem
from tests.factories import make_gpu, make_record, make_row
from tests.running.conftest import probing

pytestmark = pytest.mark.usefixtures("fake_on_gpu")
ALL = [6, 5, 4, 3, 2, 1]


@pytest.fixture(autouse=True)
def no_patience(monkeypatch):
    """A host is looked at once more, and not waited for longer."""
    for name in ("PATIENCE", "PATIENCE_LATER", "PAUSE"):
        monkeypatch.setattr(again, name, 0)


@pytest.fixture
def measured(monkeypatch):
    """The rows in the order in which they are measured. By the clock, a row takes as
    many seconds as its number.
    """
    seen, real = [], fake_stem.run

    def noting(config):
        seen.append(config.index)
        return real(config)

    monkeypatch.setattr(fake_stem, "run", noting)
    monkeypatch.setattr(time, "monotonic", lambda: float(sum(seen)))
    return seen


@pytest.fixture
def record_file(tmp_path):
    return tmp_path / "a-gpu" / "fake.json"


def slowest(record_file) -> list[float]:
    rows = store.read(record_file).rows
    assert [row.config["index"] for row in rows] == ALL
    return [max(probe.python_ms for probe in row.host) for row in rows]


def test_rows_of_a_slow_host_are_measured_again_and_the_quieter_stays(
    run, record_file, monkeypatch, measured
):
    # Slow after rows 5 and 2, so before 4 and 1 too; 2 needs a third try.
    first = [1, 1, 3, 1, 1, 2, 1]
    shortest_first = [1, 1, *(1, 3), *(1, 1), *(1, 1.2)]
    probing(monkeypatch, *first, *shortest_first, *(1, 1.1))
    outcome = run()
    assert outcome.code == 0 and outcome.measured == ALL
    assert measured == [*ALL, 1, 2, 4, 5, 2]
    assert [e["event"] for e in outcome.events].count("again") == 5
    assert slowest(record_file) == [1, 1.2, 1, 1, 1.1, 1]


def test_a_quiet_moment_is_waited_for(run, record_file, monkeypatch, measured):
    monkeypatch.setattr(again, "PATIENCE", 60)
    probing(monkeypatch, *[1, 1, 1, 1, 1, 1, 3], *[3, 2, 1.1, 1])
    run()
    assert measured == [*ALL, 1] and slowest(record_file)[-1] == 1.1


def test_a_run_leaves_cores_that_became_slow(run, record_file, monkeypatch, measured):
    """Before its first row, after the third, and to find a quiet moment at the end."""
    monkeypatch.setattr(again, "PATIENCE", 60)
    probing(monkeypatch, *[3, 1, 1, 1, 3, 1, 1, 1, 1], *[3, 1, 1])
    monkeypatch.setattr(measure, "quick_cores", quick_cores)
    moved = []
    monkeypatch.setattr(Cores, "move", lambda self: moved.append(len(measured)))
    assert run().code == 0 and moved == [0, 3, 6] and measured == [*ALL, 4]
    assert slowest(record_file) == [1] * 6


def test_a_host_that_stays_slow_is_not_measured_on(
    run, record_file, monkeypatch, measured
):
    probing(monkeypatch, *[1, 1, 1, 1, 1, 1, 3], *[3] * 10)
    assert run().code == 0 and measured == ALL
    assert slowest(record_file)[-1] == 3


def test_there_is_a_limit_to_what_it_may_take(run, monkeypatch, measured):
    monkeypatch.setattr(again, "SECONDS_AGAIN", 0)
    probing(monkeypatch, 1, 1, 3)
    assert run().code == 0 and measured == ALL


def test_what_is_quiet_other_records_of_the_machine_know(
    run, record_file, monkeypatch, measured
):
    """A host that is slow all the time is as usual to itself."""
    row = make_row({"i": 1}, work_ms=[1.0])
    row.host = [Probe(1.0)]
    for stem, software in (
        ("warmup", versions()),
        ("nsys", versions() | {"python": "3.0"}),
    ):
        row.host = [Probe(1.0 if stem == "warmup" else 0.1)]
        other = make_record(stem, row, device=make_gpu(), software=software)
        store.write(other, record_file.with_name(f"{stem}.json"))
    record_file.with_name("broken.json").write_text("{")
    probing(monkeypatch, *[2.0] * 7)
    run()
    assert measured == [*ALL, *sorted(ALL)] and slowest(record_file) == [1] * 6


def test_a_slow_host_is_no_reason_where_nothing_is_timed(run, monkeypatch):
    monkeypatch.setattr(fake_stem, "run", lambda config: {"count": config.index})
    probing(monkeypatch, 1, 1, 3)
    outcome = run()
    assert outcome.code == 0 and "again" not in [e["event"] for e in outcome.events]


@pytest.mark.parametrize("times", [[1.0, 1.0, 1.0], [1.0, 1.0, 1.5]], ids=str)
def test_nor_where_events_show_that_the_gpu_never_waited(
    run, monkeypatch, measured, times
):
    clock = {"clock": "triton.testing.do_bench, 5 ms of warm-up"}
    monkeypatch.setattr(fake_stem, "PROTOCOL", clock)
    noting = fake_stem.run
    monkeypatch.setattr(fake_stem, "run", lambda c: noting(c) | {"work_ms": times})
    probing(monkeypatch, 1, 1, 1, 1, 1, 1, 3)
    run()
    assert measured == ALL + ([] if times[-1] == 1.0 else [1])


@pytest.mark.parametrize(
    "error",
    [Unsupported("not here"), MemoryError(), RuntimeError("CUDA error: no address")],
)
def test_a_row_that_has_no_numbers_when_measured_again_stays_as_it_was(
    run, record_file, monkeypatch, error
):
    """And what all tries took is what the row took, where the GPU still works."""
    probing(monkeypatch, 1, 1, 1, 1, 1, 1, 3)
    real, measured = fake_stem.run, []

    def once(config):
        measured.append(config.index)
        if measured.count(config.index) > 1:
            time.sleep(0.2)
            raise error
        return real(config)

    monkeypatch.setattr(fake_stem, "run", once)
    broken = isinstance(error, RuntimeError)
    assert run().code == 0 and measured == [*ALL, 1, *([] if broken else [1])]
    record = store.read(record_file)
    assert record.complete and record.rows[-1].status == "ok"
    assert broken or (record.rows[-1].seconds or 0) >= 0.4


def test_a_record_is_there_before_rows_are_measured_again(
    run, record_file, monkeypatch
):
    probing(monkeypatch, 1, 1, 1, 1, 1, 1, 3)
    real, measured = fake_stem.run, []

    def killed(config):
        measured.append(config.index)
        if measured.count(config.index) > 1:
            raise KeyboardInterrupt
        return real(config)

    monkeypatch.setattr(fake_stem, "run", killed)
    with pytest.raises(KeyboardInterrupt):
        run()
    assert store.read(record_file).complete


# Later: --again -----------------------------------------------------------------------


@pytest.fixture
def slow(run, record_file, monkeypatch, measured):
    """A record whose rows 4 and 3 had a slow host that did not become quiet."""
    probing(monkeypatch, *[1, 1, 1, 3, 1, 1, 1], 3)
    run()
    assert slowest(record_file) == [1, 1, 3, 3, 1, 1]
    measured.clear()
    return store.read(record_file)


def test_the_rows_that_are_named_are_measured_again(
    run, record_file, monkeypatch, measured, slow
):
    probing(monkeypatch, 1, 1.2, 1, 1.1)
    outcome = run(again="2,3")
    assert outcome.code == 0 and outcome.events[-1]["event"] == "complete"
    assert measured == [3, 4] and slowest(record_file) == [1, 1, 1.1, 1.2, 1, 1]
    now = store.read(record_file)
    assert now.rows[0] == slow.rows[0] and now.started_utc == slow.started_utc


def test_of_old_rows_and_new_ones_the_quieter_stay(
    run, record_file, monkeypatch, measured, slow
):
    monkeypatch.setattr(again, "TIMES_LATER", 1)
    probing(monkeypatch, 1, 4, 1, 2)
    outcome = run(again="2,3")
    assert measured == [3, 4] and slowest(record_file) == [1, 1, 2, 3, 1, 1]
    assert outcome.events[-1] == {"event": "left", "rows": 2}


def test_what_is_still_touched_is_tried_again_until_it_is_not(
    run, record_file, monkeypatch, measured, slow
):
    probing(monkeypatch, *[1, 2], *[1, 1], *[1, 4], *[1, 1.1])
    outcome = run(again="2,3")
    assert measured == [3, 4, 3, 3] and slowest(record_file)[2:4] == [1, 1.1]
    settled = [e["done"] for e in outcome.events if e["event"] == "settled"]
    assert settled == [1, 2] and outcome.events[-1]["event"] == "complete"


def test_a_record_says_until_when_rows_were_measured_again(
    run, record_file, monkeypatch, measured, slow
):
    """Once; not where the old ones stay, nor of the day and the commit that it names
    anyway.
    """

    def notes() -> list[str]:
        # Other tests may measure meanwhile.
        return [n for n in store.read(record_file).notes if n != neighbours.NOTE]

    today, start = f"{datetime.now(UTC):%Y-%m-%d}", "some rows measured again until"
    monkeypatch.setattr(again, "TIMES_LATER", 1)
    slow.notes, slow.started_utc = ["seen", f"{start} 2026-01-01"], "2026-01-01 10:00"
    store.write(slow, record_file)
    probing(monkeypatch, 1, 5)
    run(again="2")
    assert notes() == slow.notes
    probing(monkeypatch)
    run(again="2")
    assert notes() == ["seen", f"{start} {today}"]
    monkeypatch.setenv("GIT_COMMIT", "0123456789abcdef")
    run(again="3")
    told = f"{start} {today}, commit 0123456789"
    assert notes() == ["seen", told]
    slow.notes, slow.started_utc = [], f"{today} 00:00"
    store.write(slow, record_file)
    monkeypatch.setenv("GIT_COMMIT", slow.git.commit)
    run(again="2")
    assert notes() == []


def test_it_says_how_the_host_was_shared_and_who_was_there_once_a_new_row_stays(
    run, record_file, monkeypatch, measured, slow
):
    monkeypatch.setattr(again, "TIMES_LATER", 1)
    monkeypatch.setattr(measure, "on_cores", lambda cores: "on 4 of 16 cores")
    monkeypatch.setattr(measure, "measuring", lambda: nullcontext(lambda: True))
    slow.notes = []
    store.write(slow, record_file)
    probing(monkeypatch, 1, 5)
    run(again="2", cores="0,1,2,3")
    assert store.read(record_file).notes == []
    probing(monkeypatch)
    run(again="2", cores="0,1,2,3")
    run(again="3", cores="0,1,2,3")
    assert store.read(record_file).notes == [neighbours.NOTE, "on 4 of 16 cores"]


def test_each_try_is_on_the_cores_that_are_quick_then(run, monkeypatch, measured, slow):
    probing(monkeypatch, *[1, 2], *[1, 1], *[1, 1])
    moved: list[int] = []
    monkeypatch.setattr(Cores, "move", lambda self: moved.append(len(measured)))
    assert run(again="2,3").code == 0
    assert measured == [3, 4, 3] and moved == [0, 1, 2]


def test_but_not_for_ever(run, monkeypatch, measured, slow):
    monkeypatch.setattr(again, "TIMES_LATER", 3)
    probing(monkeypatch, *[1, 2] * 9)
    outcome = run(again="2,3")
    assert measured == [3, 4] * 3
    assert outcome.events[-1] == {"event": "left", "rows": 2}


def test_what_a_host_that_does_not_become_quiet_leaves_is_said(
    run, record_file, monkeypatch, measured, slow
):
    probing(monkeypatch, 1, 1, *[3] * 9)
    outcome = run(again="2,3")
    assert outcome.code == 0 and outcome.events[-1] == {"event": "left", "rows": 1}
    assert measured == [3] and slowest(record_file) == [1, 1, 3, 1, 1, 1]


def test_stopped_it_keeps_what_was_measured_and_work_in_progress(
    run, record_file, monkeypatch, slow
):
    """Work in progress is that of measuring all of it anew."""
    progress = partial_path(record_file)
    progress.write_text("of another run")

    def killed(config):
        if config.index == 4:
            raise KeyboardInterrupt
        return {"work_ms": [2.0]}

    monkeypatch.setattr(fake_stem, "run", killed)
    with pytest.raises(KeyboardInterrupt):
        run(again="2,3")
    record = store.read(record_file)
    assert record.complete and record.rows[3].metrics == {"work_ms": [2.0]}
    assert record.rows[2] == slow.rows[2]
    assert progress.read_text() == "of another run"


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"source_hash": "of older code"}, "was measured with other code, versions or"),
        ({"software": {"python": "3.0"}}, "was measured with other code, versions or"),
        ({"expected_rows": 7}, "was measured with other code, versions or"),
    ],
    ids=str,
)
def test_a_record_of_another_code_is_not_added_to(
    run, record_file, measured, slow, changed, said
):
    for name, value in changed.items():
        setattr(slow, name, value)
    store.write(slow, record_file)
    assert said in run(again="2").error and measured == []


def test_a_verified_record_is_as_good(run, record_file, measured, slow):
    slow.verified_hashes, slow.source_hash = [slow.source_hash], "of older code"
    store.write(slow, record_file)
    assert run(again="2").code == 0 and measured == [4]
    record_file.unlink()
    assert "does not exist: measure it first" in run(again="2").error


def test_there_is_a_time_limit(run, measured, slow):
    outcome = run(again="2,3", deadline=time.time() - 1)
    assert outcome.events[-1] == {"event": "out_of_time", "rows": 2} and measured == []


def test_steps_far_apart_are_unrest_though_no_probe_saw_a_slow_host():
    record = make_record("end_to_end")
    steps = {"steady": [15.0, 15.1, 15.2], "apart": [15.0, 15.1, 30.0]}
    rows = {
        name: [make_row({"size": "small"}, forward_ms=ms)] for name, ms in steps.items()
    }
    for (row,) in rows.values():
        row.host = [Probe(1.0)]
    quiet = {"python_ms": 1.0}
    assert again.unrest(record, rows["steady"], quiet) == (0, 1.0)
    assert again.unrest(record, rows["apart"], quiet) == (1, 1.0)


@pytest.mark.parametrize(
    ("steps", "kept"), [([15.2] * 3, True), ([16.0] * 3, False), ([9.0] * 3, True)]
)
def test_a_quiet_probe_does_not_excuse_rows_that_took_longer(steps, kept):
    """What a host adds it never takes away."""
    config = {"size": "small"}
    old = make_row(config, forward_ms=[15.0, 15.0, 15.0], setup_ms=[1.0])
    new = make_row(config, forward_ms=steps, setup_ms=[900.0])
    old.host, new.host = [Probe(2.0)], [Probe(1.0)]
    old.seconds, new.seconds = 5.0, 3.0
    record = make_record("end_to_end", old)
    again.keep_quieter(record, [new], {"python_ms": 1.0}, counts=kept)
    assert record.rows[0].metrics == (new if kept else old).metrics
    assert record.rows[0].seconds == (8.0 if kept else 5.0)


@pytest.mark.parametrize(
    ("optimizer", "loss", "kept"),
    [(6.5, 0.2, True), (10.0, 0.2, False), (6.5, 0.4, True)],
)
def test_no_time_alone_may_be_clearly_longer(optimizer, loss, kept):
    """A sum that a quicker forward pass makes shorter would hide it; of what is hardly
    a share of a step it says nothing.
    """
    config = {"size": "small"}
    old = make_row(config, forward_ms=[30.0], loss_ms=[0.2], optimizer_ms=[6.0])
    times = {"forward_ms": [20.0], "loss_ms": [loss], "optimizer_ms": [optimizer]}
    new = make_row(config, **times)
    old.host, new.host = [Probe(2.0)], [Probe(1.0)]
    record = make_record("end_to_end", old)
    assert again.keep_quieter(record, [new], {"python_ms": 1.0}) == kept
    assert record.rows[0].metrics == (new if kept else old).metrics


@pytest.mark.parametrize(
    ("probe", "steps", "kept"),
    [
        (1.2, 14.0, True),
        (1.2, 14.9, False),
        (1.0, 14.9, True),
        (1.3, 14.0, False),
    ],
    ids=str,
)
def test_of_steady_rows_the_one_to_which_a_host_added_less_stays(probe, steps, kept):
    """Shorter by more than the GPU's clock changes, on a host that is not slow; or as
    long on a quieter one.
    """
    old = make_row({"size": "small"}, forward_ms=[15.0] * 3)
    new = make_row({"size": "small"}, forward_ms=[steps] * 3)
    old.host, new.host = [Probe(1.1)], [Probe(probe)]
    record = make_record("end_to_end", old)
    again.keep_quieter(record, [new], {"python_ms": 1.0})
    assert record.rows[0].metrics == (new if kept else old).metrics


def test_a_group_stays_where_as_many_of_its_rows_would_be_unsteady():
    """Measured in turns they are kept or dropped together."""
    ways = [{"size": "small", "way": way} for way in "abc"]
    apart, steady = [15.0, 15.1, 30.0], [15.0] * 3

    def group(*samples):
        rows = zip(ways, samples, strict=True)
        return [make_row(way, forward_ms=ms) for way, ms in rows]

    record = make_record("end_to_end", *group(apart, apart, steady))
    for row in record.rows:
        row.host = [Probe(1.1)]
    for samples, kept in (
        ((apart, apart, apart), False),
        ((apart, steady, steady), True),
    ):
        rows = group(*samples)
        for row in rows:
            row.host = [Probe(1.0)]
        again.keep_quieter(record, rows, {"python_ms": 1.0})
        assert (record.rows == rows) is kept

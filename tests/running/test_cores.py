"""A run leaves slow cores with all of its threads, and has them back afterwards."""

import os
import threading

import pytest

from systems.records.host import Probe
from systems.running import cores
from systems.running.cores import Cores, quick, quick_cores, times_of

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity"), reason="the system chooses the cores alone"
)


def test_those_near_the_quickest_are_kept_and_never_too_few():
    slow = {core: 12.0 for core in range(8)}
    assert quick(slow | dict.fromkeys((1, 3, 5, 6, 7), 6.9)) == {1, 3, 5, 6, 7}
    assert quick(slow) == set(range(8))
    assert quick(slow | {5: 6.9, 2: 8.0}) >= {5, 2}
    assert len(quick(slow | {5: 6.9, 2: 8.0})) == cores.LEAST
    assert quick({0: 1.0, 1: 9.0}) == {0, 1}


def test_each_core_is_timed_on_itself():
    mine, seen = os.sched_getaffinity(0), []
    original = cores.milliseconds
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            cores,
            "milliseconds",
            lambda work: seen.append(os.sched_getaffinity(0)) or original(work),
        )
        # One that this process may not use is no core to time.
        times = times_of(mine | {10_000})
    os.sched_setaffinity(0, mine)
    assert set(times) == mine and all(0 < ms < 1000 for ms in times.values())
    assert seen == [{core} for core in times for _ in range(cores.LOOPS)]


def affinities() -> list[set[int]]:
    return [os.sched_getaffinity(int(task.name)) for task in cores.TASKS.iterdir()]


def test_all_threads_move_and_come_back_whatever_happens(monkeypatch):
    mine, ends = os.sched_getaffinity(0), threading.Event()
    one = min(mine)
    monkeypatch.setattr(cores, "quick", lambda times: {one})
    before = threading.Thread(target=ends.wait)
    before.start()
    with pytest.raises(KeyboardInterrupt), quick_cores(True) as found:
        found.move()
        started = threading.Thread(target=ends.wait)
        started.start()
        assert all(on == {one} for on in affinities())
        raise KeyboardInterrupt
    assert all(on == mine for on in affinities())
    ends.set()
    before.join()
    started.join()


def test_where_nobody_wants_it_nothing_moves(monkeypatch):
    monkeypatch.setattr(cores, "keep_on", lambda cores: pytest.fail("moved"))
    with quick_cores(False) as found:
        probes = [Probe(7.0)]
        assert found.settle(probes, lambda: pytest.fail("looked")) is probes
        found.move()


def test_it_moves_at_first_and_when_the_host_became_slow(monkeypatch):
    moved: list[int] = []
    monkeypatch.setattr(Cores, "move", lambda self: moved.append(1))
    found = Cores({0})

    def settle(*ms: float) -> float:
        probes = iter([[Probe(each)] for each in ms])
        (probe,) = found.settle(next(probes), lambda: next(probes))
        assert next(probes, None) is None
        return probe.python_ms

    assert settle(12.0, 7.0) == 7.0 and len(moved) == 1
    assert settle(7.5) == 7.5 and settle(8.7) == 8.7 and len(moved) == 1
    assert settle(11.0, 7.2) == 7.2 and len(moved) == 2
    # All are slow now: it is measured all the same, and looked for anew each time.
    assert settle(11.0, 11.5) == 11.5 and settle(11.2, 7.0) == 7.0 and len(moved) == 4
    assert found.settle([], lambda: pytest.fail("looked")) == []


def test_one_core_is_the_quickest_and_a_shared_host_is_known_all_the_same(monkeypatch):
    kept: list[set[int]] = []
    monkeypatch.setattr(cores, "keep_on", kept.append)
    alike = dict.fromkeys(range(8), 7.0)
    found = Cores(set(range(8)), one=True)
    for times, shared in ((alike | {3: 6.9}, False), (alike | {1: 12, 5: 6.5}, True)):
        monkeypatch.setattr(cores, "times_of", lambda allowed, times=times: times)
        found.move()
        assert found.shared is shared
    assert kept == [{3}, {5}]


def test_of_a_shared_host_cores_are_chosen_anew_each_time(monkeypatch):
    """A probe of a quick core says nothing of the one beside it."""
    kept: list[set[int]] = []
    monkeypatch.setattr(cores, "keep_on", kept.append)
    alike, odd = dict.fromkeys(range(8), 7.0), dict.fromkeys((2, 5), 12.0)
    found, there, seen = Cores(set(range(8))), [Probe(7.0)], [Probe(7.1)]

    def settle(times: dict[int, float], probes: list[Probe]) -> list[Probe]:
        monkeypatch.setattr(cores, "times_of", lambda allowed: times)
        return found.settle(probes, lambda: seen)

    # Alone until it met slow cores beside quick ones; after that it can't be sure.
    assert settle(alike, there) is seen and settle(alike | odd, there) is there
    assert kept == [set(range(8))] and not found.shared
    assert settle(alike | odd, [Probe(12.0)]) is seen and found.shared
    assert settle(alike, there) is seen
    assert kept[1:] == [set(range(8)) - {2, 5}, set(range(8))]

"""Test groups of rows whose measurements are interleaved."""

import pytest

from systems.records import store
from tests import fake_stem


@pytest.fixture
def order(monkeypatch):
    """Interleave the rows of the fake experiment; list the order of their numbers."""
    seen = []

    def run(config):
        for turn in range(3):
            seen.append(config.index)
            if config.index == 4 and turn == 1:
                raise RuntimeError("no such kernel")
            yield
        return {"count": config.index}

    monkeypatch.setattr(fake_stem, "IN_TURNS", "index", raising=False)
    monkeypatch.setattr(fake_stem, "run", run)
    return seen


def test_interleaved_rows_are_measured_in_rounds(run, order, partial_file):
    assert run().code == 1
    assert order == [6, 5, 4, 3, 2, 1] * 2 + [6, 5, 3, 2, 1]
    rows = store.read(partial_file).rows
    assert [row.status for row in rows] == ["ok", "ok", "failed", "ok", "ok", "ok"]
    assert [row.metrics.get("count") for row in rows] == [6, 5, None, 3, 2, 1]
    # The time of a group of rows counts once.
    assert [row.seconds for row in rows[1:]] == [0, 0, 0, 0, 0]


def test_incomplete_groups_are_measured_again(run, order, partial_file):
    run()
    order.clear()
    assert run().events[0] == {"event": "start", "total": 6, "done": 0}
    assert order[:6] == [6, 5, 4, 3, 2, 1] and len(store.read(partial_file).rows) == 6

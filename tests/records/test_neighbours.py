"""Whether something else is measured on the host, as records note it."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import typer

from systems import ROOT
from systems.records import neighbours, store
from systems.records.neighbours import NOTE, measuring
from systems.running import measure
from tests import fake_stem


@pytest.fixture(autouse=True)
def a_host_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setattr(neighbours.tempfile, "gettempdir", lambda: str(tmp_path))


def test_who_measures_sees_who_is_there_and_who_came_even_if_gone():
    with measuring() as others:
        assert not others()
        with measuring() as others_too:
            assert others() and others_too()
        assert others() and others_too()
    with measuring() as others:
        assert not others()


def test_who_was_killed_is_not_there(tmp_path):
    code = (
        "import os; from systems.records.neighbours import measuring\n"
        "with measuring(): os._exit(9)"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, "-c", code]
    assert subprocess.run(command, cwd=ROOT, env=environment).returncode == 9
    assert list(tmp_path.iterdir())
    with measuring() as others:
        assert not others()


def test_many_who_start_at_once_all_see_that_they_are_not_alone():
    inside = threading.Barrier(8)

    def one() -> bool:
        inside.wait()
        with measuring() as others:
            inside.wait()
            return others()

    for _ in range(20):
        with ThreadPoolExecutor(8) as threads:
            assert all(
                [answer.result() for answer in [threads.submit(one) for _ in range(8)]]
            )


@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.usefixtures("fake_on_gpu")
def test_others_see_who_measures_and_who_measures_again(verify, monkeypatch, tmp_path):
    if verify:
        with pytest.raises(typer.Exit):
            measure.main("fake", tmp_path)
    seen, real = [], fake_stem.run
    with measuring() as others:
        monkeypatch.setattr(
            fake_stem, "run", lambda config: seen.append(others()) or real(config)
        )
        with pytest.raises(typer.Exit):
            measure.main("fake", tmp_path, verify=verify)
    assert seen and all(seen)


@pytest.mark.parametrize("neighbour", [nullcontext, measuring])
@pytest.mark.usefixtures("fake_on_gpu")
def test_a_record_notes_once_that_something_else_ran(neighbour, tmp_path):
    with neighbour(), pytest.raises(typer.Exit):
        measure.main("fake", tmp_path)
    record = store.read(tmp_path / "a-gpu" / "fake.json")
    assert len(record.rows) == len(fake_stem.configs())
    assert record.notes == ([NOTE] if neighbour is measuring else [])


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "another user's"])
@pytest.mark.usefixtures("fake_on_gpu")
def test_what_others_put_in_the_place_of_the_lock_is_refused(
    kind, monkeypatch, tmp_path, capsys
):
    """At once, with the way out, and nothing behind a link is touched."""
    lock = tmp_path / f"transformer-systems-{os.getuid()}.lock"
    other = tmp_path / "other"
    other.write_text("not ours")
    before = other.stat().st_mtime_ns
    {
        "link": lambda: lock.symlink_to(other),
        "fifo": lambda: os.mkfifo(lock),
        "folder": lock.mkdir,
        "another user's": lock.touch,
    }[kind]()
    if kind == "another user's":
        monkeypatch.setattr(neighbours.os, "getuid", lambda: os.geteuid() + 1)
        lock.rename(lock.with_name(f"transformer-systems-{os.getuid()}.lock"))
    with pytest.raises(typer.Exit) as ended:
        measure.main("fake", tmp_path / "results")
    said = capsys.readouterr().out
    assert ended.value.exit_code == 2 and "; remove it" in said
    assert other.stat().st_mtime_ns == before

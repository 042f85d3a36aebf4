"""Test the folder of compiled kernels, and the error if it is not writable."""

import os

import pytest

from systems.experiments import STEMS
from systems.records import device
from systems.running import machine, measure
from systems.running.machine import triton_cache_folder, why_unwritable
from tests import fake_stem
from tests.factories import fake_stem_entry, make_gpu
from tools import regen_tables

VARIABLES = ("TRITON_CACHE_DIR", "TRITON_HOME", "HOME")


@pytest.fixture
def set_environment(monkeypatch):
    """Return a function that sets variables and unsets all others that name folders."""

    def set_variables(**variables: str) -> None:
        for name in VARIABLES:
            # Set the variable first, so that monkeypatch restores it.
            monkeypatch.setenv(name, "")
            monkeypatch.delenv(name)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_variables


def test_cache_folder_equals_that_of_triton(set_environment):
    from triton import knobs

    # Triton's import reads HOME.
    home = os.environ["HOME"]
    for given in ({}, {"TRITON_HOME": "/b"}, {"TRITON_CACHE_DIR": "/c"}):
        set_environment(HOME=home, **given)
        assert str(triton_cache_folder()) == knobs.cache.dir


@pytest.mark.parametrize("name", ["HOME", "TRITON_CACHE_DIR"])
def test_unwritable_cache_folder_gives_a_remedy(
    name, set_environment, monkeypatch, tmp_path, capsys, run
):
    set_environment(**{"HOME": str(tmp_path), name: "/dev/null/x"})
    text = why_unwritable(triton_cache_folder())
    assert text.startswith("can't keep compiled kernels in /dev/null/")
    assert text.endswith("set TRITON_CACHE_DIR to a folder on a disk of this machine")
    gpu = make_gpu()
    monkeypatch.setitem(STEMS, "fake", fake_stem_entry("cuda"))
    monkeypatch.setattr(machine, "find_gpu", lambda: gpu)
    monkeypatch.setattr(device, "find_gpu", lambda: gpu)
    # Measuring reports the error; regen_tables reports it before it measures.
    assert run().error == text
    with pytest.raises(SystemExit) as ended:
        regen_tables.measure(["fake"], tmp_path)
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {text}\n"


@pytest.mark.usefixtures("pretend_gpu")
def test_rows_use_the_cache_of_precompiled_kernels(run, set_environment, monkeypatch):
    """By default PyTorch's compiler would use another folder."""
    seen, real = [], fake_stem.run

    def record_cache_folder(config):
        seen.append(os.environ.get("TRITON_CACHE_DIR"))
        return real(config)

    monkeypatch.setattr(fake_stem, "run", record_cache_folder)
    set_environment(HOME=os.environ["HOME"])
    assert run().code == 0 and set(seen) == {str(triton_cache_folder())}
    set_environment(TRITON_CACHE_DIR="/of/mine")
    monkeypatch.setattr(machine, "why_unwritable", lambda folder: "")
    assert run().code == 0 and seen[-1] == "/of/mine"
    monkeypatch.setattr(measure, "is_gpu_shared", lambda: True)
    assert run().events[0] == {"event": "shared"}

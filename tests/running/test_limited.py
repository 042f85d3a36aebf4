"""A smaller GPU simulated on a larger one: its record says so, and is never one of the
guide's.
"""

import pytest
import torch

from systems.experiments import STEMS
from systems.records import store
from systems.running import limited, machine, measure, verify
from systems.running.reports import CannotStart
from systems.running.resuming import record_path
from tests.factories import RESULTS, fake_stem_on, make_gpu, make_record
from tools import regen_tables
from tools.render import load

H200 = make_gpu("NVIDIA H200", capability="9.0", memory_bytes=141 * 2**30)


@pytest.fixture
def of_40(monkeypatch):
    """40 GiB are simulated on an H200 that is not here."""
    monkeypatch.setenv(limited.VARIABLE, "40")
    monkeypatch.setattr(machine, "find_gpu", lambda: H200)


def test_its_name_says_so(of_40):
    device = machine.device_for(("cuda",))
    assert device is not None and device.is_simulated and not H200.is_simulated
    assert device.slug == "nvidia-h200-limited-to-40-gib"
    assert device.memory_bytes == 40 * 2**30 and device.capability == "9.0"


def test_without_the_variable_a_gpu_is_what_it_is(monkeypatch):
    monkeypatch.delenv(limited.VARIABLE, raising=False)
    assert limited.as_simulated(H200) is H200


def test_the_allocator_gets_that_share(of_40, monkeypatch):
    shares = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(
        torch.cuda,
        "get_device_properties",
        lambda _: type("Properties", (), {"total_memory": 160 * 2**30}),
    )
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", shares.append)
    limited.limit_memory()
    assert shares == [0.25]


def test_rows_measured_again_have_no_more(of_40, monkeypatch, tmp_path):
    monkeypatch.setitem(STEMS, "fake", fake_stem_on("cuda"))
    monkeypatch.setattr(machine, "check_torch", lambda _: None)
    limits = []
    monkeypatch.setattr(verify, "limit_memory", lambda: limits.append("40 GiB"))
    path = record_path(tmp_path, machine.device_for(("cuda",)), "fake", "full")
    path.parent.mkdir()
    path.write_text("no record")
    with pytest.raises(store.RecordError):
        verify.verify_stem("fake", tmp_path)
    assert limits


def test_it_is_never_measured_into_the_guides_records(of_40):
    with pytest.raises(CannotStart, match="never published: give another"):
        measure.measure_stem("warmup", RESULTS, "full", 1e18)


def test_a_record_that_was_put_there_is_refused(tmp_path, monkeypatch):
    device = make_gpu("NVIDIA H200 limited to 40 GiB", memory_bytes=40 * 2**30)
    record = make_record("warmup", device=device)
    record.expected_rows = 0
    monkeypatch.setattr(limited, "ROOT", tmp_path)
    for results, published in (("docs/results", True), ("rehearsal", False)):
        path = tmp_path / results / device.slug / "warmup.json"
        store.write(record, path)
        if published:
            with pytest.raises(store.RecordError, match="of a simulated GPU"):
                load.read(path)
        else:
            assert load.read(path).device == device


@pytest.mark.parametrize("text", ["40GB", "0", "-1", "", "²"])
def test_no_number_of_gib_is_one_line(text, monkeypatch, capsys):
    monkeypatch.setenv(limited.VARIABLE, text)
    with pytest.raises(SystemExit) as ended:
        regen_tables.main(["--list"])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"error: {limited.VARIABLE} must be a number of GiB, got {text!r}"


def test_torch_uses_the_larger_one(of_40, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: H200.name)
    device = machine.device_for(("cuda",))
    assert device is not None
    machine.check_torch(device)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA A100")
    with pytest.raises(CannotStart, match="would use NVIDIA A100"):
        machine.check_torch(device)

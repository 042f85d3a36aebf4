"""A GPU that torch can't use gives one line with the reason and a remedy."""

import pytest
import torch

from systems import check_setup
from systems.running import machine
from systems.running.reports import CannotStart
from tests.factories import make_gpu

A100 = make_gpu("NVIDIA A100-SXM4-80GB", driver="535.54")


@pytest.fixture
def set_cuda(monkeypatch):
    """Return a function that sets torch's CUDA version and the driver's newest one."""

    def set_versions(built: str | None, runs: tuple[int, int] | None) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        monkeypatch.setattr(torch.version, "cuda", built)
        monkeypatch.setattr(machine, "newest_cuda", lambda: runs)

    return set_versions


WHY = {
    (None, (12, 2)): "install a CUDA build of torch",
    ("13.0", (12, 2)): "it is built for CUDA 13.0, and driver 535.54 runs CUDA 12.2 at "
    "most: update the driver, or install a torch for CUDA 12",
    # A driver supports later CUDA versions of its own major version.
    ("12.8", (12, 2)): "though it is built for CUDA 12.8: torch.cuda.init() says why",
    ("13.0", None): "though it is built for CUDA 13.0: torch.cuda.init() says why",
}


@pytest.mark.parametrize(("built", "runs"), WHY)
def test_unusable_gpu_gives_the_reason(built, runs, set_cuda, monkeypatch, capsys):
    set_cuda(built, runs)
    with pytest.raises(CannotStart) as refused:
        machine.check_torch(A100)
    line = str(refused.value)
    assert line.startswith(f"torch {torch.__version__} can't use the {A100.name}")
    assert line.endswith(WHY[built, runs]) and "\n" not in line
    monkeypatch.setattr(check_setup, "find_gpu", lambda: A100)
    monkeypatch.setattr(check_setup, "default_device", lambda: "cpu")
    with pytest.raises(SystemExit) as ended:
        check_setup.main()
    assert ended.value.code == 2 and capsys.readouterr().out.endswith(f"\n{line}\n")


KINDS = {"NVIDIA A100-SXM4-80GB MIG 3g.40gb": "MIG device", "NVIDIA H200": "GPU"}


@pytest.mark.parametrize(("used", "kind"), KINDS.items())
def test_unexpected_gpu_gives_a_remedy(used, kind, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: used)
    with pytest.raises(CannotStart, match=f"would use {used}, not {A100.name}: ") as no:
        machine.check_torch(A100)
    remedy = f"set CUDA_VISIBLE_DEVICES to the UUID of the {kind}, which nvidia-smi -L"
    assert f"{remedy} lists" in str(no.value)

"""A stripped export keeps the profile and no secret; a real export is read right."""

import lzma
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing

import pytest

from systems import ROOT
from systems.experiments.kernel_profile import MARKS
from systems.profiling import nsys
from systems.profiling.digest import gpu_metrics
from systems.profiling.kernel_names import MATMUL, is_split_k_sum, kernel_category
from systems.profiling.marks import LAYER
from systems.profiling.strip import strip
from systems.profiling.trace import TraceError

REAL = ROOT / "docs" / "assets" / "step-small-512.sqlite.xz"
SECRET = "AWS_TOKEN=hunter2"


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    path = tmp_path_factory.mktemp("nsys") / "step.sqlite"
    path.write_bytes(lzma.decompress(REAL.read_bytes()))
    return path


@pytest.fixture(scope="module")
def kernels(export):
    return nsys.read_export(export, MARKS)


def test_every_kernel_of_a_real_step_is_in_the_phase_that_launched_it(kernels):
    phases = Counter(kernel.path[1] for kernel in kernels)
    assert phases == {"forward": 704, "loss": 2, "backward": 1470, "optimizer": 888}
    assert all(kernel.path[0] == "step" for kernel in kernels)
    # Twelve layers of 58 kernels, each in its own.
    of_layers = Counter(m for k in kernels for m in k.marks if m.name == LAYER)
    assert sorted(of_layers.values()) == [58] * 12
    softmax = [k for k in kernels if k.path[-1] == "attention softmax"]
    assert len(softmax) == 12 * 5


def test_a_real_forward_pass_multiplies_nine_times_a_layer_and_once(kernels):
    products = Counter(
        kernel.path[1]
        for kernel in kernels
        if kernel_category(kernel.name) == MATMUL and not is_split_k_sum(kernel.name)
    )
    # Each product has two in the backward pass.
    assert products["forward"] == 9 * 12 + 1
    assert products["backward"] == 2 * (9 * 12 + 1)
    sums = Counter(k.path[1] for k in kernels if is_split_k_sum(k.name))
    assert sums == {"backward": 4 * 12}


def test_a_real_step_has_times_that_add_up(kernels):
    metrics = gpu_metrics(kernels, 1)
    # Counts of a pass are whole numbers where they can be.
    assert {type(k["calls"]) for k in metrics["kernels"]} == {int}
    for phase in ("forward", "loss", "backward", "optimizer"):
        (busy,), (span,) = (metrics[f"{phase}_gpu_{of}_ms"] for of in ("busy", "span"))
        rows = [k for k in metrics["kernels"] if k["phase"].split("/")[0] == phase]
        assert sum(k["total_ms"] for k in rows) == pytest.approx(busy, rel=1e-4)
        assert 0 < busy <= span


def test_the_export_that_the_site_offers_names_nothing_of_its_machine(export):
    with closing(sqlite3.connect(export)) as database:
        tables = {
            name for (name,) in database.execute("SELECT name FROM sqlite_master")
        }
        strings = [v for (v,) in database.execute("SELECT value FROM StringIds")]
    assert tables == {*strip_tables(), "StringIds"}
    odd = [s for s in strings if not s.startswith(("_Z", "void ", "cu", "sm80_"))]
    # Short names of kernels, and none of a process or a path.
    assert all(s.replace("_", "").replace("::", "").isalnum() for s in odd)
    text = export.read_bytes().lower()
    assert not [w for w in (b"/home", b"/root", b"path=", b"user") if w in text]


def strip_tables():
    kinds = ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME")
    return [*(f"CUPTI_ACTIVITY_KIND_{kind}" for kind in kinds), "NVTX_EVENTS"]


def with_secrets(export, path):
    """The same export with what a raw one has besides."""
    path.write_bytes(export.read_bytes())
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name, value)")
        database.execute(
            "INSERT INTO TARGET_INFO_SYSTEM_ENV VALUES ('env', ?)", (SECRET,)
        )
        database.execute("INSERT INTO StringIds VALUES (999999, ?)", (SECRET,))
    assert SECRET.encode() in path.read_bytes()
    return path


def test_a_copy_reads_the_same_and_holds_no_secret(export, kernels, tmp_path):
    raw, copy = with_secrets(export, tmp_path / "raw.sqlite"), tmp_path / "copy.sqlite"
    strip(raw, copy)
    assert nsys.read_export(copy, MARKS) == kernels
    assert SECRET.encode() not in copy.read_bytes()


def test_the_command_says_what_it_wrote_and_what_is_wrong(export, tmp_path):
    copy = tmp_path / "copy.sqlite"
    command = [sys.executable, "-m", "systems.profiling.strip"]

    def run(*files):
        given = [*command, *map(str, files)]
        return subprocess.run(given, capture_output=True, text=True, cwd=ROOT)

    done = run(export, copy)
    assert (
        done.returncode == 0
        and f"copy.sqlite: {copy.stat().st_size / 2**20:.1f} MiB" in done.stdout
    )
    again = run(export, copy)
    assert again.returncode == 2 and "exists: give another name" in again.stderr
    assert run(tmp_path / "no.sqlite", tmp_path / "x").returncode == 2
    nowhere = run(export, tmp_path / "no folder" / "x")
    assert nowhere.returncode == 2 and "can't be written" in nowhere.stderr


@pytest.mark.parametrize("content", [b"not sqlite", b""])
def test_what_is_no_export_leaves_no_file(tmp_path, content):
    broken, into = tmp_path / "broken.sqlite", tmp_path / "into.sqlite"
    broken.write_bytes(content)
    with pytest.raises(TraceError, match="broken.sqlite"):
        strip(broken, into)
    assert not into.exists()

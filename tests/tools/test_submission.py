"""What is handed in: the archive holds the sources and no results of others, and the
PDF holds the write-up.
"""

import subprocess
import sys
import unicodedata
import zipfile
from pathlib import Path

import pytest
from pypdf import PdfReader

from systems import ROOT
from tools import submission
from tools.render.spanning.writeup import load_problems


def test_the_archive_holds_sources_and_tests_and_no_results_of_others(tmp_path):
    submission.write_zip(tmp_path / "code.zip", "nvidia-h200")
    names = set(zipfile.ZipFile(tmp_path / "code.zip").namelist())
    assert {
        "code/systems/model/transformer.py",
        "code/tests/adapters.py",
        "code/Makefile",
        "code/docs/writeup.md",
    } <= names
    folders = {
        Path(name).parts[3] for name in names if name.startswith("code/docs/results/")
    }
    assert folders == {"nvidia-h200", "meta"}
    assert not any(
        name.startswith(("code/docs/generated", "code/site/index")) for name in names
    )
    first = (tmp_path / "code.zip").read_bytes()
    submission.write_zip(tmp_path / "code.zip", "nvidia-h200")
    assert (tmp_path / "code.zip").read_bytes() == first


def test_without_chromium_the_archive_is_written_and_the_message_says_what_to_install(
    tmp_path, monkeypatch, capsys
):
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setattr(submission.shutil, "which", lambda name: None)
    assert submission.main(["--into", str(tmp_path)]) == 2
    assert (tmp_path / "code.zip").is_file() and not (tmp_path / "writeup.pdf").exists()
    assert capsys.readouterr().err.startswith(
        "error: no Chromium to print with: install it"
    )


def test_a_gpu_without_records_is_refused_by_name():
    with pytest.raises(
        submission.Missing,
        match=r"no record is of the GPU 'nope'; there are: .*nvidia-h200",
    ):
        submission.gpu_name("nope")


@pytest.mark.browser
@pytest.mark.parametrize("gpu", [None, "nvidia-h200"])
def test_the_pdf_has_every_problem_its_pages_are_numbered_and_tabs_are_chosen(
    tmp_path, gpu, chromium
):
    # In a process of its own, as a user prints: this one may already drive a browser.
    line = [
        sys.executable,
        "tools/submission.py",
        "--into",
        tmp_path,
        *(["--gpu", gpu] if gpu else []),
    ]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    data = (tmp_path / "writeup.pdf").read_bytes()
    assert data.startswith(b"%PDF") and len(data) > 100_000
    # No path of the machine that printed it.
    assert b"file:" not in data and str(ROOT).encode() not in data
    # Normalised: the font prints "fi" and "fl" as one character.
    pages = [
        unicodedata.normalize("NFKC", page.extract_text())
        for page in PdfReader(tmp_path / "writeup.pdf").pages
    ]
    printed = [" ".join(page.split()) for page in pages]
    text = " ".join(printed)
    assert all(problem.name in text for problem in load_problems())
    assert all(
        f"{number} / {len(printed)}" in page
        for number, page in enumerate(printed, start=1)
    )
    assert ("A100-SXM4-40GB, reported" in text) == (gpu is None)

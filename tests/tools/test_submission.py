"""What is handed in: the archive holds what git tracks, the PDF holds the write-up, and
what goes wrong costs neither.
"""

import errno
import re
import subprocess
import sys
import unicodedata
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from pypdf import PdfReader

from systems import ROOT
from tests.needed import needs_git
from tools import submission
from tools.render.spanning.writeup import load_problems

PRINT = """
import sys
from pathlib import Path
from tools.submission import records_of, told_of, write_pdf

folder, site = map(Path, sys.argv[1:])
write_pdf(folder / "writeup.pdf", None, told_of(records_of(None)), site)
"""
DAY = r"\d{4}-\d\d-\d\d"
# An unpacked archive has none.
in_a_repository = pytest.mark.skipif(
    not (ROOT / ".git").exists(), reason="the archive holds what git tracks"
)


@in_a_repository
def test_the_archive_holds_what_git_tracks(tmp_path):
    submission.write_zip(tmp_path / "code.zip")
    names = set(zipfile.ZipFile(tmp_path / "code.zip").namelist())
    tracked = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True)
    assert names == {f"code/{name}" for name in tracked.splitlines()}
    # What its site is built from without a GPU, torch or git.
    assert {"code/docs/generated/facts.yml", "code/Makefile"} <= names
    first = (tmp_path / "code.zip").read_bytes()
    submission.write_zip(tmp_path / "code.zip")
    assert (tmp_path / "code.zip").read_bytes() == first


@in_a_repository
@pytest.mark.slow
def test_where_the_archive_is_unpacked_its_commands_work_without_git(tmp_path):
    """Those that ask for a commit, and tests that would look for one. A test in a
    browser builds its site.
    """
    submission.write_zip(tmp_path / "code.zip")
    zipfile.ZipFile(tmp_path / "code.zip").extractall(tmp_path)
    (tmp_path / "programs").mkdir()
    without = {"PATH": str(tmp_path / "programs"), "HOME": str(tmp_path)}
    names = "running/test_measure.py", "tools/test_submission.py", "test_workflows.py"
    tests = [f"tests/{name}" for name in names]
    for command in (
        ["tools/regen_tables.py", "--list"],
        ["-m", "pytest", "--quick", "-q", "-p", "no:xdist", *tests],
    ):
        done = subprocess.run(
            [sys.executable, *command],
            cwd=tmp_path / "code",
            env=without,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "fresh" in done.stdout or " passed" in done.stdout


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """The command in this process, on a machine without Chromium."""
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setattr(submission.shutil, "which", lambda name: None)

    def run(*options: str) -> tuple[int, str]:
        code = submission.main(["--into", str(tmp_path), *options])
        return code, capsys.readouterr().err

    return run


@in_a_repository
def test_without_chromium_the_archive_is_written_and_the_message_says_what_to_install(
    run, tmp_path
):
    code, said = run()
    assert code == 2 and "error: no Chromium to print with: install it" in said
    assert (tmp_path / "code.zip").is_file() and not (tmp_path / "writeup.pdf").exists()


def test_a_mistyped_gpu_or_folder_leaves_the_archive_as_it_was(run, tmp_path):
    (tmp_path / "code.zip").write_text("a good one")
    code, said = run("--gpu", "nope")
    assert code == 2 and said.count("\n") == 1
    assert said.startswith("error: no record is of the GPU 'nope'; there are: ")
    assert "nvidia-h200" in said
    code, said = run("--into", str(tmp_path / "nowhere"))
    assert (code, said) == (
        2,
        f"error: --into {tmp_path / 'nowhere'}: no such folder\n",
    )
    assert [path.name for path in tmp_path.iterdir()] == ["code.zip"]
    assert (tmp_path / "code.zip").read_text() == "a good one"


@in_a_repository
def test_a_disk_that_fills_leaves_the_archive_as_it_was(run, tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "code.zip").write_text("a good one")
    monkeypatch.setattr(zipfile.ZipFile, "writestr", full)
    message = f"error: can't write {tmp_path}: No space left on device\n"
    assert run() == (2, message)
    assert [path.name for path in tmp_path.iterdir()] == ["code.zip"]
    assert (tmp_path / "code.zip").read_text() == "a good one"


@pytest.fixture
def repository(tmp_path, monkeypatch) -> Path:
    """A repository of one tracked and one untracked file."""
    needs_git()
    root = tmp_path / "repository"
    root.mkdir()
    for name in ("tracked", "forgotten"):
        (root / name).touch()
    for command in ("init -q", "add tracked"):
        subprocess.run(["git", *command.split()], cwd=root, check=True)
    monkeypatch.setattr(submission, "ROOT", root)
    return root


def test_files_that_git_does_not_track_are_named(run, repository, tmp_path):
    _, said = run()
    assert said.startswith("not in it, for git does not track it: forgotten\nerror: ")
    names = zipfile.ZipFile(tmp_path / "code.zip").namelist()
    assert names == ["code/tracked"]


def test_without_a_repository_it_is_one_line(run, tmp_path, monkeypatch):
    monkeypatch.setattr(submission, "ROOT", tmp_path)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    code, said = run()
    assert code == 2 and said.startswith("error: code.zip holds what git tracks, and ")
    assert said.count("\n") == 1 and not any(tmp_path.iterdir())


def test_a_browser_that_does_not_start_is_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CHROMIUM", "/nonexistent/chromium")
    monkeypatch.setattr(submission, "write_zip", lambda target: None)
    monkeypatch.setattr(submission, "listed", lambda *_: [])
    built = SimpleNamespace(returncode=0)
    monkeypatch.setattr(submission.subprocess, "run", lambda *_, **__: built)
    assert submission.main(["--into", str(tmp_path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: /nonexistent/chromium does not start: ")
    assert said.count("\n") == 1 and not any(tmp_path.iterdir())


@in_a_repository
@pytest.mark.browser
@pytest.mark.parametrize("gpu", [None, "nvidia-h200"])
def test_the_pdf_says_what_it_is_and_its_pages_can_be_read(
    tmp_path, gpu, chromium, request
):
    # In a process of its own, as a user prints: this one may already drive a browser.
    if gpu:
        command = ["tools/submission.py", "--into", tmp_path, "--gpu", gpu]
    else:
        # Of the site that other tests look at: that the command builds one is seen.
        command = ["-c", PRINT, tmp_path, request.getfixturevalue("site")]
    line = [sys.executable, *command]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    data = (tmp_path / "writeup.pdf").read_bytes()
    assert data.startswith(b"%PDF") and len(data) > 100_000
    # No path of the machine that printed it.
    assert b"file:" not in data and str(ROOT).encode() not in data
    pdf = PdfReader(tmp_path / "writeup.pdf")
    # Normalised: the font prints "fi" and "fl" as one character.
    pages = [
        unicodedata.normalize("NFKC", page.extract_text()).replace("\xa0", " ")
        for page in pdf.pages
    ]
    printed = [" ".join(page.split()) for page in pages]
    text = " ".join(printed)
    assert len(pages) <= 28
    # Of which GPU, and when: at the top, on each page, in the properties.
    told = f"NVIDIA H200 · {pdf.metadata.subject.removeprefix('NVIDIA H200 · ')}"
    assert re.fullmatch(rf"NVIDIA H200 · {DAY}( to {DAY})?", told)
    assert pdf.metadata.title == submission.TITLE and told in printed[0]
    assert all(
        f"{told} · {number} / {len(printed)}" in page
        for number, page in enumerate(printed, start=1)
    )
    problems = [f"{n}. {p.title}" for n, p in enumerate(load_problems(), start=1)]
    assert [entry.title for entry in pdf.outline[1]] == problems
    assert ("A100-SXM4-40GB, reported" in text) == (gpu is None)
    # A long table has its head on each of its pages.
    assert sum("plain, backward, ms" in page for page in printed) >= 2
    for page in pages:
        lines = re.split(rf"\s*{re.escape(told)}", page)[0].strip().splitlines()
        last, first = lines[-1], lines[0].strip()
        assert not re.match(r"Table \d|Figure \d|Stale:|Status:|Asked|.*:$", last), last
        # No heading, with or without the name of the task below it, ends a page.
        assert not {line.strip() for line in lines[-2:]} & {*problems}, lines[-2:]
        # What says where a table is from stands with the table.
        assert not re.match(r"NVIDIA H200 · .*record$|In each line:|Blank is", first)
        assert not re.search(r"\d\n+(%|±)", page)

"""Test what is handed in: the archive of committed files and the write-up's PDF."""

import os
import re
import subprocess
import sys
import time
import unicodedata
import zipfile
from typing import Any

import pytest
from pypdf import PdfReader

from systems import ROOT
from tests.factories import RESULTS
from tests.needed import require_git, run_python
from tools import submission
from tools.render.spanning.writeup import load_problems

PRINT = """
import sys
from pathlib import Path
from tools.submission import gpu_records, describe_records, write_pdf

folder, site = map(Path, sys.argv[1:])
subject = describe_records(gpu_records(None))
write_pdf(folder / "writeup.pdf", "NVIDIA H200", True, subject, site)
"""
DAY = r"\d{4}-\d\d-\d\d"
# An unpacked archive is no repository.
in_a_repository = pytest.mark.skipif(
    not (ROOT / ".git").exists(), reason="the archive holds what is committed"
)


@in_a_repository
@pytest.mark.slow
def test_unpacked_archive_works_without_git(tmp_path):
    archive = tmp_path / "code.zip"
    submission.write_zip(archive)
    first = archive.read_bytes()
    submission.write_zip(archive)
    assert archive.read_bytes() == first
    zipfile.ZipFile(archive).extractall(tmp_path)
    (tmp_path / "programs").mkdir()
    without = {"PATH": str(tmp_path / "programs"), "HOME": str(tmp_path)}
    names = "running/test_measure.py", "tools/test_submission.py", "test_folders.py"
    tests = [f"tests/{name}" for name in names]
    for command in (
        ["tools/regen_tables.py", "--list"],
        ["-m", "pytest", "--quick", "-q", "-p", "no:xdist", *tests],
    ):
        place: Any = {"cwd": tmp_path / "code", "env": without}
        line = [sys.executable, *command]
        done = subprocess.run(line, capture_output=True, text=True, **place)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "fresh" in done.stdout or " passed" in done.stdout


@pytest.fixture
def run_main(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.setattr(submission.shutil, "which", lambda name: None)

    def run_main(gpu=None, into=tmp_path, results=RESULTS):
        with pytest.raises(SystemExit) as ended:
            submission.main(gpu, into=into, results=results)
        return ended.value.code, capsys.readouterr().err

    return run_main


@pytest.mark.slow
def test_errors_keep_the_old_archive(run_main, tmp_path, monkeypatch):
    (tmp_path / "code.zip").write_text("a good one")
    code, text = run_main("nope")
    assert code == 2 and text.count("\n") == 1
    assert text.startswith(f"error: no record in {RESULTS} is of the GPU 'nope'; there")
    assert "nvidia-h200" in text and "set primary_gpu" in run_main("meta")[1]
    nowhere = tmp_path / "nowhere"
    assert run_main(results=nowhere)[1].endswith("'nvidia-h200'; there are: none\n")
    assert run_main(into=nowhere) == (2, f"error: --into {nowhere}: no such folder\n")
    # Outside of a repository, the command fails and keeps the old archive.
    monkeypatch.setattr(submission, "ROOT", tmp_path)
    monkeypatch.setattr(submission, "gpu_records", lambda *_: [])
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    code, text = run_main()
    assert code == 2 and text.count("\n") == 1
    assert text.startswith("error: code.zip holds what is committed (without a")
    assert [path.name for path in tmp_path.iterdir()] == ["code.zip"]
    assert (tmp_path / "code.zip").read_text() == "a good one"


def test_run_command_decodes_output_and_reports_errors(capsys, monkeypatch):
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    script = "import sys; print(sys.flags.safe_path)"
    assert submission.run_command("", sys.executable, "-c", script) == "False\n"
    script = "import sys; sys.stdout.buffer.write(b'\\xe9')"
    assert submission.run_command("", sys.executable, "-c", script) == "\ufffd"
    script = "import sys; sys.exit('WARNING - no nav:\\n- a.md\\nINFO - copied')"
    ends = {script: "WARNING - no nav: - a.md", "import os; os.abort()": "ABRT: 6>."}
    for script, end in ends.items():
        with pytest.raises(SystemExit):
            submission.run_command("no site", sys.executable, "-c", script)
        assert re.search(f"error: no site: .*{end}\n$", capsys.readouterr().err)


def test_uncommitted_files_and_no_browser_are_reported(run_main, tmp_path, monkeypatch):
    require_git()
    (root := tmp_path / "repository").mkdir()
    (root / "tracked").touch()
    author = "-c user.name=a -c user.email=b commit --no-gpg-sign -nqm c"
    (tmp_path / "skip").write_text("forgotten")
    settings = "config status.showUntrackedFiles no", "config core.excludesFile ../skip"
    nested = f"update-index --add --cacheinfo 160000,{'1' * 40},nested"
    for command in ("init -q", *settings, "add tracked", nested, author):
        subprocess.run(["git", *command.split()], cwd=root, check=True)
    (root / "forgotten").touch()
    monkeypatch.setenv("GIT_DIR", str(ROOT / ".git"))
    monkeypatch.setattr(submission, "ROOT", root)
    monkeypatch.setattr(submission, "gpu_records", lambda *_: [])
    monkeypatch.chdir(tmp_path)
    code, text = run_main(into=tmp_path.relative_to(tmp_path))
    lacking, *changes, _ = text.splitlines()
    assert lacking == "git repository not in code.zip: nested"
    assert "change not in code.zip, not committed: ?? forgotten" in changes
    assert code == 2 and "error: no Chromium to print with: install it" in text
    names = zipfile.ZipFile(tmp_path / "code.zip").namelist()
    assert names == ["code/", "code/nested/", "code/tracked"]
    assert not (tmp_path / "writeup.pdf").exists()
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert re.search("dubious ownership .*safe.directory", run_main(into=tmp_path)[1])


@in_a_repository
def test_records_must_be_rendered_before_printing(run_main, monkeypatch):
    monkeypatch.setattr(submission, "find_chromium", lambda: "chromium")
    monkeypatch.setattr(submission, "gpu_records", lambda *_: [])
    monkeypatch.setattr(submission, "render_texts", lambda _: {"facts.yml": "new"})
    code, text = run_main()
    assert code == 2 and "error: docs/generated isn't what the records of" in text
    monkeypatch.setattr(submission, "load_records", lambda _: {})
    text = run_main(results=RESULTS / "my")[1]
    assert "docs/results/my --generated docs/generated" in text


@pytest.mark.slow
def test_sigterm_ends_child_processes(tmp_path, monkeypatch):
    git, pid = tmp_path / "git", tmp_path / "pid"
    git.write_text(f'#!/bin/sh\necho $$ > "{pid}"\nPATH={os.defpath} exec sleep 60\n')
    git.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with subprocess.Popen([sys.executable, submission.__file__]) as child:
        while not (pid.exists() and pid.read_text()):
            time.sleep(0.05)
        child.terminate()
    assert child.returncode == 143
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_failing_browser_is_reported(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("CHROMIUM", "/nonexistent/chromium")
    with pytest.raises(SystemExit):
        submission.write_pdf(tmp_path / "writeup.pdf", "", True, "", tmp_path)
    (line,) = capsys.readouterr().err.splitlines()
    assert "/nonexistent/chromium does not print: " in line
    assert not any(tmp_path.iterdir())


@in_a_repository
@pytest.mark.browser
@pytest.mark.parametrize("gpu", [None, "nvidia-h200"])
def test_pdf_has_title_outline_and_readable_pages(tmp_path, gpu, chromium, request):
    # Run in a new process, because this one may already use a browser.
    if gpu:
        command = ["tools/submission.py", "--into", tmp_path, "--gpu", gpu]
    else:
        # Print the site of other tests; the command with a GPU builds its own.
        command = ["-c", PRINT, tmp_path, request.getfixturevalue("site")]
    done = run_python(*command, env=os.environ | {"SITE_URL": "https://a.b/c/"})
    assert done.returncode == 0, done.stderr
    data = (tmp_path / "writeup.pdf").read_bytes()
    assert data.startswith(b"%PDF") and len(data) > 100_000
    # The PDF contains no path of this machine.
    assert b"file:" not in data and str(ROOT).encode() not in data
    pdf = PdfReader(tmp_path / "writeup.pdf")
    # Normalize ligatures such as "fi".
    pages = [
        unicodedata.normalize("NFKC", page.extract_text()).replace("\xa0", " ")
        for page in pdf.pages
    ]
    printed = [" ".join(page.split()) for page in pages]
    text = " ".join(printed)
    # Folds are open.
    assert 15 < len(pages) <= 20
    # The GPU and dates are at the top and on each page.
    told = re.search(rf"NVIDIA H200 · {DAY}( to {DAY})?", printed[0])[0]
    assert pdf.metadata.title == submission.TITLE
    assert all(
        f"{told} · {number} / {len(printed)}" in page
        for number, page in enumerate(printed, start=1)
    )
    problems = [f"{n}. {p.title}" for n, p in enumerate(load_problems(), start=1)]
    assert [entry.title for entry in pdf.outline[1]] == problems
    assert ("A100-SXM4-40GB, reported" in text) == (gpu is None)
    assert "H200, driver" in text and "H100 80GB HBM3, driver" not in text
    # A long table repeats its head.
    heads = ("wall, step, ms", "plain GPU, bwd", "both, speedup, wall")
    assert any(sum(head in page for page in printed) > 1 for head in heads)
    for page in pages:
        lines = re.split(rf"\s*{re.escape(told)}", page)[0].strip().splitlines()
        last, first = lines[-1], lines[0].strip()
        assert not re.match(r"Table \d|Figure \d|Stale:|Status:|Asked|.*:$", last), last
        # No heading is the last line of a page.
        assert not {line.strip() for line in lines[-2:]} & {*problems}, lines[-2:]
        # Provenance is on the same page as its table.
        assert not re.match(r"NVIDIA H200 · .*record$|In all rows|Blank is", first)
        assert not re.search(r"\d\n+(%|±)", page)

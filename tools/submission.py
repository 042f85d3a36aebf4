"""Write the files to hand in: code.zip with all committed files, and docs/writeup.md as
writeup.pdf.

    python tools/submission.py --gpu nvidia-h200

or `make submission GPU=nvidia-h200` builds the site and prints the page with Chromium,
without the numbers that others reported. Existing files are replaced only by complete
ones.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# The line above makes imports work without installation.
from systems import ROOT, git_environment, require, run_cli  # noqa: E402

if __name__ == "__main__":
    require("msgspec", "typer", "matplotlib", "rich")

import typer  # noqa: E402

from systems.records.record import Record  # noqa: E402
from systems.running.reports import exit_when_terminated  # noqa: E402
from tools.render.load import GENERATED, load_records, primary_gpu  # noqa: E402
from tools.rendering import fail, read_texts, render_texts, report_errors  # noqa: E402

RESULTS = ROOT / "docs" / "results"
TITLE = "Transformers on a GPU, measured: the write-up"
FOOTER = (
    '<div style="font: 8pt sans-serif; width: 100%; text-align: center; '
    'color: #57606a">{subject} · <span class="pageNumber"></span> / '
    '<span class="totalPages"></span></div>'
)
# JavaScript that leaves in the page what is printed.
PREPARE_PAGE = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
PAGE: dict[str, Any] = {
    "format": "A4",
    "scale": 0.8,
    "margin": {"top": "14mm", "bottom": "16mm", "left": "14mm", "right": "14mm"},
    "print_background": True,
    "outline": True,
    "tagged": True,
    "display_header_footer": True,
    "header_template": "<i></i>",
}


def gpu_records(slug: str | None, results: Path = RESULTS) -> list[Record]:
    """Return the primary GPU's records. Exit if it has none, or for another `slug`."""
    records = [r for rs in load_records(results).values() for r in rs]
    primary, slugs = primary_gpu(), sorted({r.device.slug for r in records})
    if (wanted := slug or primary) not in slugs:
        there = ", ".join(slugs) or "none"
        fail(f"no record in {results} is of the GPU {wanted!r}; there are: {there}")
    if wanted != primary:
        fail(f"answers are of {primary}: set primary_gpu in mkdocs.yml, render")
    return [r for r in records if r.device.slug == wanted]


def describe_records(records: list[Record]) -> str:
    """Return one line with the GPU and the first and last day of measuring."""
    days = sorted({r.started_utc.split()[0] for r in records if r.started_utc})
    names = {r.device.name: "" for r in records}
    return " · ".join([*names, " to ".join(dict.fromkeys(days[:1] + days[-1:]))])


def find_chromium() -> str:
    names = ("chromium", "chromium-browser", "google-chrome")
    installed = (path for name in names if (path := shutil.which(name)))
    if path := os.environ.get("CHROMIUM") or next(installed, None):
        return path
    fail("no Chromium to print with: install it (Debian: chromium) or set CHROMIUM")


@contextmanager
def replace_when_complete(target: Path) -> Iterator[Path]:
    """Yield an absolute path; at the end, move the file written there to `target`."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".writing-") as folder:
        yield (path := Path(folder).resolve() / target.name)
        os.replace(path, target)


def run_command(failure: str, *command: str) -> str:
    """Return a command's output. If it fails, exit with `failure` and the reason."""
    try:
        environment = git_environment() | {"PYTHONSAFEPATH": "", "SITE_URL": ""}
        options: Any = {"env": environment, "stderr": subprocess.PIPE}
        return subprocess.check_output(command, cwd=ROOT, errors="replace", **options)
    except FileNotFoundError:
        fail(f"{failure}: {command[0]} is not installed")
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().splitlines() or [str(error)]
        # mkdocs prints more after the warning that made it fail, which may end in ":".
        starts = [i for i, x in enumerate(lines) if x.startswith(("WARNING", "ERROR"))]
        last = max(starts, default=len(lines) - 1)
        if command[0] != "git":  # git's remedy follows its reason.
            lines = lines[last : last + 1 + lines[last].endswith(":")]
        fail(f"{failure}: {' '.join(' '.join(lines).split())}")


def write_pdf(target: Path, gpu: str, reported: bool, subject: str, site: Path) -> None:
    """Print the write-up in the folder `site` to a PDF: the tabs of a GPU, `subject` in
    the footer, and if `reported` the numbers that others reported.
    """
    chromium = find_chromium()
    try:
        from playwright.sync_api import Error, sync_playwright
        from pypdf import PdfWriter
        from pypdf.generic import NameObject, TextStringObject
    except ImportError as error:
        fail(f"{error.name} is not installed: run `make .venv/all`")
    with replace_when_complete(target) as path:
        try:
            with sync_playwright() as p:
                options = {"executable_path": chromium, "args": ["--no-sandbox"]}
                browser = p.chromium.launch(**options)
                page = browser.new_page(color_scheme="light", offline=True)
                page.goto((site / "writeup.html").as_uri())
                asked = [gpu, reported, TITLE, subject]
                missing, images = page.evaluate(PREPARE_PAGE, asked)
                footer = FOOTER.format(subject=escape(subject))
                page.pdf(path=path, footer_template=footer, **PAGE)
                browser.close()
        except Error as error:
            first = error.message.strip().splitlines()[0]
            fail(f"{chromium} does not print: {first}")
        if images:
            fail(f"writeup.html lacks images: use files below docs/: {images}")
        for name in missing:
            text = "left out, because its records are missing: the answer of docs/"
            print(f"{text}{name.replace('.html', '.md')}", file=sys.stderr)
        pdf = PdfWriter(clone_from=path)
        for entry in flatten_outline(pdf.outline):
            # Chromium repeats the title of a heading that it moved to the next page.
            half = entry.title[: len(entry.title) // 2]
            if entry.title == 2 * half:
                entry.node[NameObject("/Title")] = TextStringObject(half)
        pdf.write(path)


def flatten_outline(outline: list[Any]) -> Iterator[Any]:
    """Yield the entries of a nested outline in order."""
    for entry in outline:
        yield from flatten_outline(entry) if isinstance(entry, list) else [entry]


def write_zip(target: Path) -> None:
    with replace_when_complete(target) as path:
        run_git("archive", "--format=zip", "--prefix=code/", f"--output={path}", "HEAD")


def run_git(*options: str) -> str:
    remedy = "without a repository: git init && git add -A && git commit -m Start"
    return run_command(f"code.zip holds what is committed ({remedy})", "git", *options)


def main(
    gpu: str | None = typer.Option(
        None,
        help="Print no reported numbers; the folder that primary_gpu names.",
    ),
    results: Path = typer.Option(
        RESULTS,
        show_default="docs/results",
        help="Folder of the records on the pages: docs/results or its folder quick.",
    ),
    into: Path = typer.Option(ROOT, show_default=False, help="Folder to write to."),
) -> None:
    with report_errors("; every file already written is complete"):
        # Check the arguments before anything is written.
        records = gpu_records(gpu, results)
        if not into.is_dir():
            fail(f"--into {into}: no such folder")
        # Also list files that a global gitignore hides from `git add -A`.
        options = "-c core.excludesFile= -c core.quotePath=off status --porcelain"
        changes = run_git(*options.split(), "-unormal").splitlines()
        write_zip(into / "code.zip")
        print("wrote code.zip")
        for entry in run_git("ls-tree", "-r", "HEAD").splitlines():
            if entry.startswith("160000 "):
                name = entry.partition("\t")[2]
                print(f"git repository not in code.zip: {name}", file=sys.stderr)
        for change in changes:
            print(f"change not in code.zip, not committed: {change}", file=sys.stderr)
        find_chromium()
        if render_texts(load_records(results)) != read_texts(GENERATED):
            given = f" --results {results} --generated docs/generated"
            remedy = f"run tools/regen_tables.py --render{given * (results != RESULTS)}"
            fail(f"docs/generated isn't what the records of {results} give: {remedy}")
        with tempfile.TemporaryDirectory() as site:
            build = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", site]
            run_command("the site does not build, see make build", *build)
            name, subject = records[0].device.name, describe_records(records)
            write_pdf(into / "writeup.pdf", name, not gpu, subject, Path(site))
        slug = records[0].device.slug
        print(f"wrote writeup.pdf with the numbers of {slug}; each table names its GPU")


if __name__ == "__main__":
    exit_when_terminated()
    run_cli(main, __doc__)

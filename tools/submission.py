"""Write what is handed in: code.zip, all that is committed, and writeup.pdf, a print of
docs/writeup.md.

    python tools/submission.py --gpu nvidia-h200

or `make submission GPU=nvidia-h200`. The PDF needs Chromium, which prints the page of a
site built for it: every tab, or those of one GPU. Each file replaces an older one only
when it is whole.
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

# The line above makes these importable from a plain source tree.
from systems import ROOT, need, run_as_command  # noqa: E402

if __name__ == "__main__":
    need("msgspec", "typer")

import typer  # noqa: E402

from systems.records.record import Record  # noqa: E402
from systems.records.store import RecordError  # noqa: E402
from tools.render.load import load, primary_gpu  # noqa: E402
from tools.rendering import stop  # noqa: E402

TITLE = "Transformers on a GPU, measured: the write-up"
FOOTER = (
    '<div style="font: 8pt sans-serif; width: 100%; text-align: center; '
    'color: #57606a">{subject} · <span class="pageNumber"></span> / '
    '<span class="totalPages"></span></div>'
)
# Of each set of tabs that has one of this GPU, only that one stays. Links to other
# pages would print as paths of this machine, so they become text. The title is followed
# by what was measured, and when.
PREPARE = """([gpu, title, subject]) => {
    document.title = title
    const line = document.createElement("p")
    line.className = "status"
    line.textContent = subject
    document.querySelector("article h1").after(line)
    const isOurs = label => label.textContent.trim() === gpu
    for (const set of document.querySelectorAll(".tabbed-set")) {
        const every = selector => [...set.querySelectorAll(`:scope > ${selector}`)]
        const labels = every(".tabbed-labels > label")
        const blocks = every(".tabbed-content > .tabbed-block")
        if (!labels.some(isOurs)) continue
        labels.forEach((label, i) => {
            if (!isOurs(label)) blocks[i].remove()
        })
        set.querySelector(":scope > .tabbed-labels").remove()
    }
    for (const link of document.querySelectorAll("a[href]"))
        if (!link.matches('[href^="#"]')) link.replaceWith(...link.childNodes)
}"""
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


def records_of(slug: str | None) -> list[Record]:
    """Return the records of this GPU, or of the one that the site's sentences name."""
    records = [r for rs in load(ROOT / "docs" / "results").values() for r in rs]
    slugs = {r.device.slug for r in records}
    if slug is not None and slug not in slugs:
        there = ", ".join(sorted(slugs))
        stop(f"no record is of the GPU {slug!r}; there are: {there}")
    return [r for r in records if r.device.slug == (slug or primary_gpu())]


def subject_of(records: list[Record]) -> str:
    """Name the GPU, and the days on which it was measured."""
    days = sorted({r.started_utc.split()[0] for r in records if r.started_utc})
    names = {r.device.name: "" for r in records}
    return " · ".join([*names, " to ".join(dict.fromkeys(days[:1] + days[-1:]))])


def find_chromium() -> str:
    names = ("chromium", "chromium-browser", "google-chrome")
    installed = (path for name in names if (path := shutil.which(name)))
    if path := os.environ.get("CHROMIUM") or next(installed, None):
        return path
    stop(
        "no Chromium to print with: install it (Debian: apt-get install chromium) "
        "or set CHROMIUM"
    )


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A file beside the target, which takes its place once it is whole."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".writing-") as folder:
        yield (written := Path(folder) / target.name)
        os.replace(written, target)


def output_of(what: str, *command: str) -> str:
    """Return what a command prints; where it fails, exit with its last line."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True
        )
        return done.stdout
    except FileNotFoundError:
        stop(f"{what}: {command[0]} is not installed")
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no message"])[-1]
        stop(f"{what}: {last}")


def write_pdf(target: Path, label: str | None, subject: str, site: Path) -> None:
    """Print the write-up of this site: the tabs of this label, or all."""
    chromium = find_chromium()
    try:
        from playwright.sync_api import Error, sync_playwright
        from pypdf import PdfWriter
        from pypdf.generic import NameObject, TextStringObject
    except ImportError as error:
        stop(f"{error.name} is not installed: run `make .venv/all`")
    with replacing(target) as written:
        try:
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=chromium, args=["--no-sandbox"]
                )
                page = browser.new_page(color_scheme="light", offline=True)
                page.goto((site / "writeup.html").as_uri())
                page.evaluate(PREPARE, [label, TITLE, subject])
                footer = FOOTER.format(subject=escape(subject))
                page.pdf(path=written, footer_template=footer, **PAGE)
                browser.close()
        except Error as error:
            first = error.message.strip().splitlines()[0]
            stop(f"{chromium} does not print: {first}")
        whole = PdfWriter(clone_from=written)
        for entry in flattened(whole.outline):
            # Chromium writes a heading twice that it first tried at the end of a page.
            half = entry.title[: len(entry.title) // 2]
            if entry.title == 2 * half:
                entry.node[NameObject("/Title")] = TextStringObject(half)
        whole.add_metadata({"/Title": TITLE, "/Subject": subject})
        whole.write(written)


def flattened(outline: list[Any]) -> Iterator[Any]:
    for entry in outline:
        yield from flattened(entry) if isinstance(entry, list) else [entry]


def write_zip(target: Path) -> None:
    """Write what is committed; the same bytes each time."""
    with replacing(target) as written:
        archive = ["archive", "--format=zip", "--prefix=code/", f"--output={written}"]
        git(*archive, "HEAD")


def git(*options: str) -> str:
    return output_of("code.zip holds what is committed", "git", *options)


def main(
    gpu: str | None = typer.Option(
        None, help="Print the tabs of this GPU alone (a folder of docs/results)."
    ),
    into: Path = typer.Option(ROOT, show_default=False, help="Folder to write to."),
) -> None:
    try:
        # What may be wrong is looked at before anything is written.
        records = records_of(gpu)
        label = records[0].device.name if gpu else None
        if not into.is_dir():
            stop(f"--into {into}: no such folder")
        changes = git("status", "--porcelain").splitlines()
        write_zip(into / "code.zip")
        print("wrote code.zip")
        for change in changes:
            print(f"not in it, for it is not committed: {change[3:]}", file=sys.stderr)
        find_chromium()
        with tempfile.TemporaryDirectory() as site:
            build = [sys.executable, "-m", "mkdocs", "build", "--strict", "-d", site]
            output_of("the site does not build, see make build", *build)
            pdf = into / "writeup.pdf"
            write_pdf(pdf, label, subject_of(records), Path(site))
        print("wrote writeup.pdf")
    except RecordError as error:
        stop(str(error))
    except OSError as error:
        stop(f"can't write {error.filename or into}: {error.strerror}")
    except KeyboardInterrupt:
        stop("stopped; what was written is whole")


if __name__ == "__main__":
    run_as_command(main, __doc__)

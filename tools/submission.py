"""What is handed in: writeup.pdf, a print of docs/writeup.md with its figures, and
code.zip, the sources and the tests.

    python tools/submission.py [--gpu nvidia-h200]

or `make submission GPU=nvidia-h200`.

The PDF needs Chromium, which prints the page of a site built for it. Every tab is
printed, or those of one GPU alone. The archive holds what git tracks, so that every
command of its README works where it is unpacked. Each replaces an older one only when
it is whole.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from html import escape
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# The line above makes these importable from a plain source tree.
from systems import ROOT, need  # noqa: E402

if __name__ == "__main__":
    need("msgspec")

from systems.records.record import Record  # noqa: E402
from systems.records.store import RecordError  # noqa: E402
from tools.render.load import load, primary_gpu  # noqa: E402

TITLE = "Transformers on a GPU, measured: the write-up"
FOOTER = (
    '<div style="font: 8pt sans-serif; width: 100%; text-align: center; '
    'color: #57606a">{told} · <span class="pageNumber"></span> / '
    '<span class="totalPages"></span></div>'
)
# Of each set of tabs that has one of this GPU, only that one stays. Links to other
# pages would print as paths of this machine, so they become text; those within the page
# go on working. The title is followed by what was measured, and when.
PREPARE = """([gpu, title, told]) => {
    document.title = title
    const line = document.createElement("p")
    line.className = "status"
    line.textContent = told
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
        if (!link.getAttribute("href").startsWith("#")) link.removeAttribute("href")
}"""


class Missing(RuntimeError):
    """What keeps it from being written, and what to do about it."""


def records_of(slug: str | None) -> list[Record]:
    """Measured on this GPU, or on the one that the site's sentences are about."""
    records = [r for rs in load(ROOT / "docs" / "results").values() for r in rs]
    slugs = {r.device.slug for r in records}
    if slug is not None and slug not in slugs:
        raise Missing(
            f"no record is of the GPU {slug!r}; there are: {', '.join(sorted(slugs))}"
        )
    return [r for r in records if r.device.slug == (slug or primary_gpu())]


def told_of(records: list[Record]) -> str:
    """The GPU, and on which days it was measured."""
    days = sorted({r.started_utc.split()[0] for r in records if r.started_utc})
    names = {r.device.name: "" for r in records}
    return " · ".join([*names, " to ".join(dict.fromkeys(days[:1] + days[-1:]))])


def find_chromium() -> str:
    names = ("chromium", "chromium-browser", "google-chrome")
    installed = (path for name in names if (path := shutil.which(name)))
    path = os.environ.get("CHROMIUM") or next(installed, None)
    if path is None:
        raise Missing(
            "no Chromium to print with: install it (Debian: apt-get install chromium) "
            "or set CHROMIUM"
        )
    return path


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """A file beside the target, which takes its place once it is whole."""
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".writing-") as folder:
        yield (written := Path(folder) / target.name)
        os.replace(written, target)


@contextmanager
def built_site() -> Iterator[Path]:
    """The site, apart from site/."""
    with tempfile.TemporaryDirectory() as folder:
        mkdocs = [sys.executable, "-m", "mkdocs"]
        command = [*mkdocs, "build", "--strict", "--site-dir", folder]
        built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if built.returncode:
            last = (built.stderr.strip().splitlines() or ["no message"])[-1]
            raise Missing(f"the site does not build, see make build: {last}")
        yield Path(folder)


def write_pdf(
    target: Path, label: str | None, told: str, site: Path | None = None
) -> None:
    """Print the page of the write-up, of a site built for it or of this one: the tabs
    of this label, or all.
    """
    chromium = find_chromium()
    try:
        from playwright.sync_api import Error, sync_playwright
        from pypdf import PdfWriter
        from pypdf.generic import NameObject, TextStringObject
    except ImportError as error:
        raise Missing(
            f"{error.name} is not installed: make test installs what prints"
        ) from error
    with (
        nullcontext(site) if site else built_site() as folder,
        replacing(target) as written,
        sync_playwright() as playwright,
    ):
        try:
            browser = playwright.chromium.launch(
                executable_path=chromium, args=["--no-sandbox"]
            )
        except Error as error:
            last = error.message.strip().splitlines()[0]
            raise Missing(f"{chromium} does not start: {last}") from error
        try:
            printed(browser, folder / "writeup.html", written, label, told)
        except Error as error:
            last = error.message.strip().splitlines()[0]
            raise Missing(f"{chromium} does not print: {last}") from error
        browser.close()
        # Chromium keeps the title and the bookmarks, and has no place for the rest.
        whole = PdfWriter(clone_from=written)
        for entry in flattened(whole.outline):
            # It says a heading twice that it first tried at the end of a page.
            half = entry.title[: len(entry.title) // 2]
            if entry.title == 2 * half:
                entry.node[NameObject("/Title")] = TextStringObject(half)
        whole.add_metadata({"/Title": TITLE, "/Subject": told})
        whole.write(written)


def printed(
    browser: Any, page_file: Path, target: Path, label: str | None, told: str
) -> None:
    """The page of the write-up, as Chromium prints it."""
    page = browser.new_page(color_scheme="light", offline=True)
    page.goto(page_file.as_uri())
    page.evaluate(PREPARE, [label, TITLE, told])
    margin = {"top": "14mm", "bottom": "16mm", "left": "14mm", "right": "14mm"}
    options = {
        "format": "A4",
        "scale": 0.8,
        "margin": margin,
        "print_background": True,
        "outline": True,
        "tagged": True,
    }
    page.pdf(
        path=target,
        display_header_footer=True,
        header_template="<i></i>",
        footer_template=FOOTER.format(told=escape(told)),
        **options,
    )


def flattened(outline: list[Any]) -> Iterator[Any]:
    for entry in outline:
        yield from flattened(entry) if isinstance(entry, list) else [entry]


def listed(*options: str) -> list[Path]:
    """Files of the repository that git lists."""
    try:
        command = ("git", "ls-files", "-z", *options)
        names = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True
        )
    except FileNotFoundError:
        raise Missing(
            "code.zip holds what git tracks, and git is not installed"
        ) from None
    except (OSError, subprocess.CalledProcessError) as error:
        said = (getattr(error, "stderr", None) or str(error)).strip().splitlines()[0]
        raise Missing(
            f"code.zip holds what git tracks, and git lists nothing here: {said}"
        ) from error
    return [Path(name) for name in sorted(names.stdout.split("\0")) if name]


def write_zip(target: Path) -> None:
    """What git tracks; the same bytes each time."""
    paths = [path for path in listed() if (ROOT / path).is_file()]
    with replacing(target) as written, zipfile.ZipFile(written, "w") as archive:
        for path in paths:
            entry = zipfile.ZipInfo(f"code/{path.as_posix()}")
            entry.external_attr = (ROOT / path).stat().st_mode << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, (ROOT / path).read_bytes())


def main(arguments: list[str] | None = None) -> int:
    """Write both. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Write code.zip and writeup.pdf.")
    parser.add_argument(
        "--gpu", help="print the tabs of this GPU alone (a folder of docs/results)"
    )
    parser.add_argument(
        "--into",
        type=Path,
        default=ROOT,
        help="folder to write to (default: the repository)",
    )
    options = parser.parse_args(arguments)
    try:
        # What may be wrong is looked at before anything is written.
        records = records_of(options.gpu)
        label = records[0].device.name if options.gpu else None
        if not options.into.is_dir():
            raise Missing(f"--into {options.into}: no such folder")
        untracked = listed("--others", "--exclude-standard")
        write_zip(options.into / "code.zip")
        print("wrote code.zip")
        for path in untracked:
            print(f"not in it, for git does not track it: {path}", file=sys.stderr)
        write_pdf(options.into / "writeup.pdf", label, told_of(records))
        print("wrote writeup.pdf")
    except (Missing, RecordError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        file = error.filename or options.into
        print(f"error: can't write {file}: {error.strerror}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("error: stopped; what was written is whole", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

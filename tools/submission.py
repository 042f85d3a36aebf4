"""What is handed in: writeup.pdf, a print of docs/writeup.md with its figures, and
code.zip, the sources and the tests.

    python tools/submission.py [--gpu nvidia-h200]

or `make submission GPU=nvidia-h200`.

The PDF needs Chromium, which prints the page of a site built for it. Every tab is
printed, or those of one GPU alone. The archive holds what git tracks, without generated
files and without the results of others.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from systems import ROOT  # noqa: E402
from tools.render.load import load, primary_gpu  # noqa: E402 (the line above makes it importable from a plain source tree)

FOOTER = (
    '<div style="font: 8pt sans-serif; width: 100%; text-align: center; '
    'color: #57606a"><span class="pageNumber"></span> / '
    '<span class="totalPages"></span></div>'
)
# Of each set of tabs that has one of this GPU, only that one stays, open. Links to
# other pages would print as paths of this machine, so they become text; those within
# the page go on working.
PREPARE = """gpu => {
    const isOurs = label => label.textContent.trim() === gpu
    for (const set of document.querySelectorAll(".tabbed-set")) {
        const every = selector => [...set.querySelectorAll(`:scope > ${selector}`)]
        const labels = every(".tabbed-labels > label")
        const blocks = every(".tabbed-content > .tabbed-block")
        if (!labels.some(isOurs)) continue
        labels.forEach((label, i) => {
            if (!isOurs(label)) [label, blocks[i]].forEach(part => part.remove())
        })
    }
    for (const link of document.querySelectorAll("a[href]"))
        if (!link.getAttribute("href").startsWith("#")) link.removeAttribute("href")
}"""


class Missing(RuntimeError):
    """Something that this machine lacks; the message says what to install."""


def gpu_name(slug: str) -> str:
    """The tab's label of this GPU."""
    names = {
        r.device.slug: r.device.name
        for rs in load(ROOT / "docs" / "results").values()
        for r in rs
    }
    if slug not in names:
        raise Missing(
            f"no record is of the GPU {slug!r}; there are: {', '.join(sorted(names))}"
        )
    return names[slug]


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


def write_pdf(target: Path, gpu: str | None) -> None:
    """Build the site apart from site/, and print its page of the write-up."""
    chromium, label = find_chromium(), gpu_name(gpu) if gpu else None
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise Missing(
            "playwright is not installed, which drives Chromium: make test installs it"
        ) from error
    with tempfile.TemporaryDirectory() as folder:
        mkdocs = [sys.executable, "-m", "mkdocs"]
        command = [*mkdocs, "build", "--strict", "--site-dir", folder]
        built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if built.returncode:
            raise Missing(f"the site does not build:\n{built.stderr}")
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(
                executable_path=chromium, args=["--no-sandbox"]
            )
            page = browser.new_page(color_scheme="light", offline=True)
            page.goto((Path(folder) / "writeup.html").as_uri())
            page.evaluate(PREPARE, label)
            margin = {"top": "16mm", "bottom": "18mm", "left": "14mm", "right": "14mm"}
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
                footer_template=FOOTER,
                **options,
            )
            browser.close()


def code_files(gpu: str) -> list[Path]:
    """What git tracks, without what is generated and without results but those of this
    GPU (and of none).
    """
    try:
        command = ("git", "ls-files", "-z")
        listed = subprocess.check_output(command, cwd=ROOT, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise Missing(
            "code.zip holds what git tracks, and this is no git repository"
        ) from error
    paths = [Path(name) for name in sorted(listed.split("\0")) if name]
    return [path for path in paths if (ROOT / path).is_file() and is_ours(path, gpu)]


def is_ours(path: Path, gpu: str) -> bool:
    """Whether it is neither generated nor a result of another GPU."""
    folder = path.parts[:2]
    if folder == ("docs", "generated"):
        return False
    return folder != ("docs", "results") or path.parts[2] in (gpu, "meta")


def write_zip(target: Path, gpu: str) -> None:
    """The same bytes each time."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in code_files(gpu):
            entry = zipfile.ZipInfo(f"code/{path.as_posix()}")
            entry.external_attr = (ROOT / path).stat().st_mode << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, (ROOT / path).read_bytes())


def main(arguments: list[str] | None = None) -> int:
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
        write_zip(options.into / "code.zip", options.gpu or primary_gpu())
        print("wrote code.zip")
        write_pdf(options.into / "writeup.pdf", options.gpu)
        print("wrote writeup.pdf")
    except Missing as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())

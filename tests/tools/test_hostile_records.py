"""Records from a stranger, with a payload in every text of every experiment: rendered,
built and opened in a browser. None of it may run, load or be published.

Their digests are right and their types too: a stranger can see to that.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from lzma import decompress
from pathlib import Path

import pytest

from systems import ROOT
from systems.experiments import STEMS
from systems.records import store
from systems.records.record import Record
from tests.factories import RESULTS
from tests.tools.browser.looking import Browser, Page
from tests.tools.render.test_any_rows import with_hostile_text
from tools.render.load import primary_gpu

pytestmark = [pytest.mark.browser, pytest.mark.slow]

# What lies where a site is built, and no page may show; what a page's macros would
# make of 123456 * 7.
SECRET, COMPUTED = "a-token-of-the-builder", "864192"
# The folder of a GPU whose rows are hostile, too.
STRANGER = "evil"
# What a line could begin with: each text of a record begins with another of these.
BEGINNINGS = (
    '--8<-- ".git/config"',
    '=== "tab"',
    "::: systems.records",
    "# heading",
    "- item",
    '!!! note "x"',
    "![x](x){ onerror=window.hit=1 }",
    "*[GPU]: x",
    "    indented",
    '--8<-- "generated/answer-warmup.md"',
    "{@ set x = 1 @}",
    "\\(x\\)",
    "```",
)
# What lives anywhere in a line.
INSIDE = (
    "[x](javascript:window.hit=1) ![x](x){ onerror=window.hit=1 } {: onclick=hit=1 } "
    "{$ 123456*7 $} {{ 123456*7 }} `b` ` **c** | \\| \"q\" 'r' onload=window.hit=1 "
    "&lt;img src=x onerror=window.hit=1&gt; "
    "&#60;script&#62;window.hit=1&#60;/script&#62;"
)
# And where lines and markup are not refused on reading.
MARKUP = (
    "<img src=x onerror=window.hit=1><script>window.hit=1</script>"
    '<svg onload="window.hit=1"><a href="javascript:window.hit=1">x</a>'
    '</td></table></code></pre>"><iframe srcdoc="<script>parent.hit=1</script>">'
    '\n\n--8<-- ".git/config"\n\n<script>window.hit=1</script>\n\n=== "tab"\n'
)


class Payloads:
    """One after the other, so that each text of a tree begins otherwise."""

    def __init__(self) -> None:
        self.count = 0

    def line(self) -> str:
        """A text that reading lets through where it refuses markup and lines."""
        self.count += 1
        # Some end where their beginning does: a snippet is a line of its own.
        beginning = BEGINNINGS[self.count % len(BEGINNINGS)]
        text = beginning if self.count % 3 == 0 else f"{beginning} {INSIDE}"
        text = re.sub("[<>]", "", text) if self.count % 5 else f"x {INSIDE}"
        return re.sub(r"[<>\n\r]", " ", text)[:2000]

    def text(self) -> str:
        self.count += 1
        beginning = BEGINNINGS[self.count % len(BEGINNINGS)]
        return f"{beginning}\n{INSIDE}\n{MARKUP} {self.count}"


def hostile_around_rows(record: Record, payloads: Payloads) -> None:
    """Put a payload in every text beside the rows."""
    line = payloads.line
    record.device.name = record.device.driver = line()
    record.software = {line(): line(), "torch": line(), "python": line()}
    record.protocol = {line(): line()} | {key: line() for key in record.protocol}
    record.notes = [line(), line()]
    record.started_utc, record.command = line(), line()
    record.source_hash, record.verified_hashes = line(), [line()]
    if record.kind == "reported":
        record.source = line()


def hostile_inside_rows(record: Record, payloads: Payloads) -> None:
    """Put payloads in reasons, in names of metrics and in what others named."""
    for i, row in enumerate(record.rows[:24]):
        if i % 2 and row.status == "ok":
            row.metrics = with_hostile_text(row.metrics, payloads.text)
            # Of autocast each metric is an operation, at four dtypes.
            row.metrics[payloads.text()] = [payloads.text()] * 4
        if i % 6 == 2:
            row.status, row.metrics, row.reason = "unsupported", {}, payloads.text()


@pytest.fixture(scope="module")
def tree(tmp_path_factory) -> Path:
    """The guide with hostile records: of the GPU of the sentences, of another, and
    reported ones.
    """
    root = tmp_path_factory.mktemp("tree")
    ignored = shutil.ignore_patterns("__pycache__", "generated", "quick")
    for folder in ("systems", "tools", "docs", "tests"):
        shutil.copytree(ROOT / folder, root / folder, ignore=ignored)
    for name in ("mkdocs.yml", "pyproject.toml", "README.md", "CONTRIBUTING.md"):
        shutil.copy(ROOT / name, root)
    (root / ".git").mkdir()
    (root / ".git" / "config").write_text(f"[http]\n  extraHeader = {SECRET}\n")
    payloads, results = Payloads(), root / "docs" / "results"
    for path in sorted(RESULTS.glob("*/*.json")):
        record = store.read(path)
        hostile_around_rows(record, payloads)
        if record.kind == "reported":
            for row in record.rows:
                row.reason = payloads.text()
        store.write(record, results / path.parent.name / path.name)
        if path.parent.name == primary_gpu():
            record.device.slug = STRANGER
            hostile_inside_rows(record, payloads)
            store.write(record, results / STRANGER / path.name)
    # A folder is named in the words for a record that can't be read.
    odd = results / "`<img src=x onerror=window.hit=1>{$ 123456*7 $}`"
    odd.mkdir()
    (odd / "warmup.json").write_text("no record")
    assert payloads.count > 1000
    return root


@pytest.fixture(scope="module")
def site(tree) -> Path:
    """It builds, whatever the records say."""
    line = [sys.executable, "tools/regen_tables.py", "--render"]
    done = subprocess.run(line, cwd=tree, capture_output=True, text=True)
    # The broken record is named in a line; nothing else is wrong.
    assert done.returncode == 2, done.stderr
    (named,) = done.stderr.splitlines()
    assert "warmup.json: is not JSON" in named
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    line = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    done = subprocess.run(
        line, cwd=tree, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return tree / "site"


def test_nothing_of_the_builder_is_published_and_nothing_is_computed(site):
    shown = [path for path in site.rglob("*") if path.suffix in (".html", ".js")]
    assert len(shown) > len(STEMS)
    for path in shown:
        text = path.read_text(encoding="utf-8")
        assert SECRET not in text and COMPUTED not in text, path


LIVE = """() => {
    const live = []
    for (const element of document.querySelectorAll("*")) {
        for (const { name, value } of element.attributes) {
            if (name.startsWith("on")) live.push(`${element.localName} ${name}`)
            if (/^\\s*javascript:/i.test(value)) live.push(`${name}=${value}`)
            if (value.includes("window.hit") && ["src", "srcdoc"].includes(name))
                live.push(`${name}=${value}`)
        }
        const code = element.localName === "script" && element.textContent
        if (code && code.includes("window.hit")) live.push("script")
    }
    if (window.hit) live.push("it ran")
    return live
}"""


@pytest.fixture(scope="module")
def page(browser: Browser) -> Iterator[Page]:
    with browser.new_context() as context:
        yield context.new_page()


def test_no_payload_runs_on_any_page(site, page):
    seen = 0
    page.on("dialog", lambda dialog: pytest.fail(f"an alert on {page.url}"))
    for path in sorted(site.rglob("*.html")):
        page.goto(path.as_uri())
        assert page.evaluate(LIVE) == [], path
        seen += page.locator("body").inner_text().count("123456*7")
    # They are there, as text.
    assert seen > 100


def test_no_payload_runs_in_the_explorer(site, page):
    """Which writes its table by a script."""
    seen = 0
    page.goto((site / "explorer.html").as_uri() + "#all")
    shown = page.locator("#explorer select[name=stem] option").all_inner_texts()[1:]
    # All but those whose records hold curves alone.
    measured = {path.stem for path in RESULTS.glob("*/*.json")} & STEMS.keys()
    assert len(shown) >= len(measured) - 1
    for stem in shown:
        page.locator("#explorer select[name=stem]").select_option(stem)
        page.locator("#explorer tbody tr").first.wait_for()
        seen += page.locator("#explorer tbody").inner_text().count("window.hit")
        assert page.evaluate(LIVE) == [], stem
    assert seen > 100


def test_records_are_published_as_json_alone(site):
    published = [p for p in (site / "results" / STRANGER).rglob("*") if p.is_file()]
    assert published
    for path in published:
        content = path.read_bytes()
        assert path.name.removesuffix(".xz").endswith(".json")
        assert json.loads(decompress(content) if path.suffix == ".xz" else content)

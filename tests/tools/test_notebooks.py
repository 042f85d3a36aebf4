"""The committed notebooks say what a fresh run of them says, and their pages are pages
of this site.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nbformat
import pytest
from mkdocs.exceptions import PluginError
from mkdocs_jupyter.convert import nb2html
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools import run_notebooks
from tools.hooks import notebooks

NOTEBOOKS = sorted(run_notebooks.NOTEBOOKS.glob("*.ipynb"))
DRAWING = '<svg xmlns="http://www.w3.org/2000/svg">{}<path d="M0 0"/></svg>'
PROSE = """# A title

Costs `$5` and $a < b_c$.

$$
x
$$

## A section"""


def test_help_runs_no_notebook() -> None:
    line = [sys.executable, run_notebooks.__file__, "--help"]
    done = subprocess.run(line, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and "usage" in done.stdout
    assert ".ipynb" not in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_a_fresh_run_gives_what_is_committed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without the start-up files of whoever runs this, and where there is no home to
    # write into.
    for variable in ("IPYTHONDIR", "JUPYTER_RUNTIME_DIR"):
        monkeypatch.setenv(variable, str(tmp_path / variable.lower()))
    committed, fresh = path.read_text(encoding="utf-8"), run_notebooks.executed(path)
    remedy = "run `python tools/run_notebooks.py` and look at what changed"
    assert committed == fresh, f"{path.name} is stale: {remedy}"


def page(folder: Path, *outputs: Any) -> str:
    """The page of a notebook of one text cell and one code cell, as mkdocs-jupyter and
    the hook make it.
    """
    path = folder / "note.ipynb"
    code = new_code_cell(
        "if a < b:\n    print(a)", outputs=list(outputs), execution_count=1
    )
    nbformat.write(new_notebook(cells=[new_markdown_cell(PROSE), code]), path)
    section = SimpleNamespace(id="a-section", children=[])
    title = SimpleNamespace(id="a-title", children=[section])
    page: Any = SimpleNamespace(
        file=SimpleNamespace(src_uri="notebooks/note.ipynb"), toc=[title]
    )
    return notebooks.on_page_content(nb2html(str(path)), page)


def test_a_notebook_is_written_as_the_other_pages_are(tmp_path: Path) -> None:
    svg = new_output(
        "display_data",
        {"image/svg+xml": DRAWING.format("<title>It grows &amp; grows.</title>")},
    )
    built = page(tmp_path, new_output("stream", text="1 < 2\n"), svg)
    assert built.startswith(
        '<h1 id="a-title">A title<a class="headerlink" href="#a-title"'
    )
    assert '<h2 id="a-section">' in built
    assert '<a href="note.ipynb" download>' in built
    assert (
        r'<code>$5</code> and <span class="arithmatex">\(a &lt; b_c\)</span>.</p>'
        in built
    )
    assert '<div class="arithmatex">\\[\nx\n\\]</div>' in built
    assert (
        '<div class="notebook-output no-copy"><pre><code>1 &lt; 2</code></pre></div>'
        in built
    )
    assert '<img alt="It grows &amp; grows." src="data:image/svg+xml;base64,' in built
    # Nothing of JupyterLab's own page.
    assert not re.search(
        r"<script|<style|<button|jp-|mathjax|In&nbsp;", built, re.IGNORECASE
    )


@pytest.mark.parametrize(
    ("output", "finding"),
    [
        (
            new_output("display_data", {"image/svg+xml": DRAWING.format("")}),
            "a drawing needs a <title>",
        ),
        (
            new_output("display_data", {"image/png": "aGVsbG8="}),
            "an output of type unknown",
        ),
        (
            new_output("display_data", {"text/html": "<b>x</b>"}),
            "an output of type text/html",
        ),
        (
            new_output("stream", name="stderr", text="a warning"),
            "an output of type application/vnd.jupyter.stderr",
        ),
        (
            new_output("error", ename="E", evalue="x", traceback=["E: x"]),
            "an output of type application/vnd.jupyter.s",
        ),
    ],
)
def test_an_output_that_a_page_can_not_show_fails_the_build(
    tmp_path: Path, output: Any, finding: str
) -> None:
    with pytest.raises(PluginError, match=f"notebooks/note.ipynb: {finding}"):
        page(tmp_path, output)


def test_other_pages_are_left_alone() -> None:
    other: Any = SimpleNamespace(file=SimpleNamespace(src_uri="index.md"), toc=[])
    assert notebooks.on_page_content("<p>$x$ $y$</p>", other) == "<p>$x$ $y$</p>"

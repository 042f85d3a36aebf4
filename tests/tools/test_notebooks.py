"""The committed notebooks say what a fresh run of them says, and their pages are pages
of this site.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools import run_notebooks
from tools.render.spanning import notebooks
from tools.render.standalone import PAGE, Shown

NOTEBOOKS = sorted(run_notebooks.NOTEBOOKS.glob("*.ipynb"))
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


SHOWN = "if a < b:\n    print(a)"


def page(
    folder: Path, *outputs: Any, source: str = SHOWN, **metadata: Any
) -> dict[str, str]:
    """The fragments of a notebook of one text cell and one code cell."""
    code = new_code_cell(
        source, outputs=list(outputs), execution_count=1, metadata=metadata
    )
    notebook = new_notebook(cells=[new_markdown_cell(PROSE), code])
    nbformat.write(notebook, folder / "note.ipynb")
    return notebooks.fragments(folder)


def test_a_notebook_is_written_as_the_other_pages_are(tmp_path: Path) -> None:
    one = Shown("note", lambda figure: figure.subplots(), "It grows & grows.")
    shown = one._repr_mimebundle_()
    svg = new_output("display_data", shown)
    files = page(tmp_path, new_output("stream", text="1 < 2\n"), svg)
    # Viewers of notebooks have no style sheet.
    assert "--md-default-bg-color: #" in shown["image/svg+xml"]
    assert files["notebook-note.md"] == (
        "Costs `$5` and \\(a < b_c\\).\n\n\\[\nx\n\\]\n\n## A section\n\n"
        "```python\nif a < b:\n    print(a)\n```\n\n"
        '<div class="notebook-output no-copy"><pre><code>1 &lt; 2</code></pre></div>'
        f"\n\n{shown[PAGE]}"
    )


def test_a_cell_with_the_tag_folded_is_folded_and_its_output_is_not(
    tmp_path: Path,
) -> None:
    output, source = new_output("stream", text="1\n"), f"# What is shown.\n{SHOWN}"
    assert "???" not in page(tmp_path, output, source=source)["notebook-note.md"]
    files = page(tmp_path, output, source=source, tags=["folded"])
    assert files["notebook-note.md"].endswith(
        '??? abstract "What is shown"\n\n    ```python\n    # What is shown.\n'
        "    if a < b:\n        print(a)\n    ```\n\n"
        '<div class="notebook-output no-copy"><pre><code>1</code></pre></div>\n'
    )
    with pytest.raises(ValueError, match="a folded cell begins with a comment"):
        page(tmp_path, output, tags=["folded"])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_its_page_has_its_title(path: Path) -> None:
    title = nbformat.read(path, as_version=4).cells[0].source.splitlines()[0]
    text = path.with_suffix(".md").read_text(encoding="utf-8")
    assert f"\n{title}\n" in text and f"]({path.name})" in text


@pytest.mark.parametrize(
    ("output", "finding"),
    [
        (
            new_output("display_data", {"image/svg+xml": "<svg/>"}),
            r"an output of type image/svg\+xml",
        ),
        (
            new_output("display_data", {"image/png": "aGVsbG8="}),
            "an output of type image/png",
        ),
        (
            new_output("display_data", {"text/html": "<b>x</b>"}),
            "an output of type text/html",
        ),
        (
            new_output("stream", name="stderr", text="a warning"),
            "an output of type stderr",
        ),
        (
            new_output("error", ename="E", evalue="x", traceback=["E: x"]),
            "an output of type error",
        ),
    ],
)
def test_an_output_that_a_page_can_not_show_is_refused(
    tmp_path: Path, output: Any, finding: str
) -> None:
    with pytest.raises(ValueError, match=f"note.ipynb: {finding}"):
        page(tmp_path, output)


def test_what_a_notebook_finds_first_stands_in_the_box_of_all_pages(tmp_path):
    text = new_markdown_cell(
        "# A title\n\n## In short\n\nOne pass\ndoes.\n\nYou need $x$."
    )
    nbformat.write(new_notebook(cells=[text]), tmp_path / "a.ipynb")
    assert notebooks.fragments(tmp_path)["notebook-a.md"] == (
        "**In short.** One pass\ndoes.\n{ .in-short }\n\nYou need \\(x\\).\n"
    )

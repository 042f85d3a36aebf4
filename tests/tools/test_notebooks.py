"""Committed notebooks equal a fresh run, and become pages."""

import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import nbformat
import pytest
from mkdocs_jupyter.convert import nb2html
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from systems import ROOT
from tools import run_notebooks
from tools.hooks import notebooks
from tools.render.standalone import NotebookFigure

NOTEBOOKS = sorted(run_notebooks.NOTEBOOKS.glob("*.ipynb"))
PROSE = """# A title

**In short.** Costs `$5` and $a < b_c$, see [there](../a.md#b).

$$
x
$$"""


def test_failed_write_keeps_the_notebook(tmp_path, monkeypatch):
    (tmp_path / "a.ipynb").write_text("edited")
    monkeypatch.setattr(run_notebooks, "NOTEBOOKS", tmp_path)
    monkeypatch.setattr(run_notebooks, "execute_notebook", lambda path: "\ud800")
    with pytest.raises(UnicodeError):
        run_notebooks.main()
    assert (tmp_path / "a.ipynb").read_text() == "edited"


def test_notebooks_import_this_clone(monkeypatch):
    client = Mock(**{"return_value.async_execute": AsyncMock(side_effect=RuntimeError)})
    monkeypatch.setattr(run_notebooks, "NotebookClient", client)
    with pytest.raises(SystemExit):
        run_notebooks.execute_notebook(NOTEBOOKS[0])
    assert client.call_args.kwargs["resources"] == {"metadata": {"path": str(ROOT)}}


def test_a_reader_s_solution_is_not_overwritten(tmp_path, capsys):
    cell = new_code_cell("%%exercise 2_row_softmax\n" + "# x = ...\n" * 9 + "x = y")
    nbformat.write(new_notebook(cells=[cell]), path := tmp_path / "a.ipynb")
    with pytest.raises(SystemExit):
        run_notebooks.execute_notebook(path)
    assert "copy what you need" in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_in_a_cell_is_one_line(tmp_path, capsys):
    stop = "import os, time\nos.kill(os.getppid(), 2)\ntime.sleep(60)"
    nbformat.write(new_notebook(cells=[new_code_cell(stop)]), path := tmp_path / "a")
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(SystemExit):
        run_notebooks.execute_notebook(path)
    assert f"{path}: stopped" in capsys.readouterr().err


@pytest.mark.slow
def test_other_clones_and_start_up_files_are_ignored(tmp_path, monkeypatch):
    other, path = tmp_path / "systems.py", tmp_path / "a.ipynb"
    other.write_text("print('other')")
    variables = {"PYTHONPATH": tmp_path, "PYTHONSAFEPATH": 1, "PYTHONSTARTUP": other}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    cell = new_code_cell("import systems\nprint(systems.ROOT)")
    nbformat.write(new_notebook(cells=[cell]), path)
    fresh = nbformat.reads(run_notebooks.execute_notebook(path), 4)
    assert [output["text"] for output in fresh.cells[0].outputs] == [f"{ROOT}\n"]


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_committed_outputs_equal_a_new_run(path, tmp_path, monkeypatch):
    # Allow a read-only home.
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    fresh = run_notebooks.execute_notebook(path)
    assert not [*tmp_path.rglob("*.py")]
    assert path.read_text("utf-8") == fresh, "stale: `python tools/run_notebooks.py`"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_notebook_outputs_are_text_or_figures(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    assert "stdout" in {output.get("name") for output in outputs}
    assert {output.get("name", "figure") for output in outputs} <= {"stdout", "figure"}


@pytest.fixture
def make_page(tmp_path: Path) -> Any:
    """Return a function that renders a notebook with a text cell and a code cell."""

    def render_cell(*outputs: Any, source="if a < b:\n    print(a)", **of: Any) -> str:
        code = new_code_cell(source, outputs=list(outputs), metadata=of)
        notebook = new_notebook(cells=[new_markdown_cell(PROSE), code])
        notebook.metadata["page"] = {"description": "Of a."}
        path = tmp_path / "note.ipynb"
        nbformat.write(notebook, path)
        file = SimpleNamespace(src_uri="note.ipynb", abs_src_path=str(path))
        shown: Any = SimpleNamespace(file=file, meta={})
        assert notebooks.on_page_markdown(path.read_text(), page=shown) == ""
        assert shown.meta == {"description": "Of a."}
        return notebooks.on_page_content(nb2html(str(path)), page=shown)

    return render_cell


def test_notebook_page_has_the_site_s_markup(make_page: Any) -> None:
    one = NotebookFigure("note", lambda figure: figure.subplots(), "It grows & grows.")
    figure = one._repr_mimebundle_()
    # Figures contain their colours, because viewers have no style sheet.
    assert "--md-default-bg-color: #" in figure["image/svg+xml"]
    text = new_output("stream", text="1 < 2\n")
    built = make_page(text, new_output("display_data", figure))
    start = '<p class="in-short"><strong>In short.</strong> Costs <code>$5</code>'
    assert start in built
    assert built.count("<math") == 2 and 'alttext="a &lt; b_c"' in built
    assert 'href="../a.html#b"' in built and 'href="note.ipynb" download' in built
    assert '<div class="language-python highlight"><pre><code>' in built
    assert "<pre><code>1 &lt; 2</code></pre>" in built
    assert 'id="notebook-note"' in built and "Figure\N{NO-BREAK SPACE}1." in built
    # No part of JupyterLab remains, because it would load from a CDN.
    assert not any(mark in built for mark in ("<style", "<script", "jp-"))


def test_folded_cells_show_their_output(make_page: Any) -> None:
    output, source = new_output("stream", text="1\n"), "# What is shown.\nprint(1)"
    assert "<details" not in make_page(output, source=source)
    fold = make_page(output, source=source, tags=["folded"])
    assert '<details class="abstract"><summary>What is shown</summary><div' in fold
    assert "</details>\n<div" in fold

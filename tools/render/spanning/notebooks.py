"""The notebooks as Markdown, cell by cell: what their pages include. No code runs here;
they are committed executed (tools/run_notebooks.py).

A page shows text and figures. What a cell printed otherwise is a mistake. Code of a
cell with the tag "folded" is folded.
"""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any

from systems import ROOT
from tools.render.standalone import PAGE

NOTEBOOKS = ROOT / "docs" / "notebooks"
# The page has the title.
TITLE = re.compile(r"\A# .+\n*")
# Where a notebook begins with what it finds, its page has the box of all pages.
SHORT = re.compile(r"^## In short\n\n(.+?)(?=\n\n|\Z)", re.DOTALL | re.MULTILINE)
# Dollar signs, which every viewer of notebooks understands; in code one stays one.
MATHS = re.compile(
    r"`[^`]*`|\$\$(?P<display>.+?)\$\$|\$(?P<inline>[^$]+?)\$", re.DOTALL
)


def fragments(folder: Path = NOTEBOOKS) -> dict[str, str]:
    """`notebook-<name>.md`."""
    files: dict[str, str] = {}
    for path in sorted(folder.glob("*.ipynb")):
        try:
            parts = list(_parts(json.loads(path.read_text(encoding="utf-8"))))
        except ValueError as error:
            raise ValueError(f"{path.name}: {error}") from error
        text = "\n\n".join(parts)
        files[f"notebook-{path.stem}.md"] = f"{TITLE.sub('', text)}\n"
    return files


def _parts(notebook: dict[str, Any]) -> Iterator[str]:
    for cell in notebook["cells"]:
        source = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            boxed = SHORT.sub(r"**In short.** \1\n{ .in-short }", source)
            yield MATHS.sub(_maths, boxed)
            continue
        code = f"```python\n{source}\n```"
        folded = "folded" in cell["metadata"].get("tags", [])
        yield _folded(source, code) if folded else code
        for output in cell["outputs"]:
            data = output.get("data", {})
            if PAGE in data:
                yield "".join(data[PAGE]).strip()
            elif output.get("name") == "stdout" or [*data] == ["text/plain"]:
                text = "".join(output.get("text", data.get("text/plain", "")))
                code = escape(text.strip("\n"), quote=False)
                box = '<div class="notebook-output no-copy">'
                yield f"{box}<pre><code>{code}</code></pre></div>"
            else:
                kind = next(iter(data), output.get("name", output["output_type"]))
                raise ValueError(
                    f"an output of type {kind}; a page shows text and figures of "
                    "tools.render.standalone: print it, or mend the cell"
                )


def _folded(source: str, code: str) -> str:
    """Code that only draws or sets up, under what its first line, a comment, says."""
    first = source.partition("\n")[0]
    if not first.startswith("# "):
        raise ValueError(f"a folded cell begins with a comment, not with {first!r}")
    head = f'??? abstract "{first.removeprefix("# ").rstrip(".")}"'
    return f"{head}\n\n{textwrap.indent(code, '    ')}"


def _maths(match: re.Match[str]) -> str:
    if match["display"]:
        return rf"\[{match['display']}\]"
    return rf"\({match['inline']}\)" if match["inline"] else match[0]

"""The hash of the source that a stem measures with: text, not a syntax tree, so every Python gives the same.

Comments, docstrings and blank lines are deleted by position first: rewording never makes a record stale.
"""

import ast
import hashlib
import io
import tokenize
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path

from systems.attention import IMPLEMENTATIONS

ROOT = Path(__file__).resolve().parent.parent
# None of these can change what is measured: rows are stored, options parsed, formulas evaluated.
NOT_MEASURING = {"systems.records", "systems.costs", "systems.source_hash", "systems.experiments.command"}


# Records share most of their modules: each text is taken apart once.
@lru_cache(maxsize=256)
def code_only(source: str) -> str:
    """The source without comments, docstrings, blank lines and trailing spaces."""
    lines = source.splitlines()
    # (first line, first column, last line, last column), lines from 0.
    spans = [
        (token.start[0] - 1, token.start[1], token.end[0] - 1, token.end[1])
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                text = first.value
                assert text.end_lineno is not None and text.end_col_offset is not None
                # ast counts bytes, tokenize characters.
                start = len(lines[text.lineno - 1].encode()[: text.col_offset].decode())
                end = len(lines[text.end_lineno - 1].encode()[: text.end_col_offset].decode())
                spans.append((text.lineno - 1, start, text.end_lineno - 1, end))
    for first_line, start, last_line, end in sorted(spans, reverse=True):
        rest = lines[last_line][end:]
        lines[first_line : last_line + 1] = [lines[first_line][:start] + rest]
    return "\n".join(line.rstrip() for line in lines if line.strip())


def source_hash(module: str, attention: Iterable[str] = (), root: Path = ROOT) -> str:
    """Hash over `module`, every module of `systems` that it imports, and the named attention implementations."""
    pending = [module, *(IMPLEMENTATIONS[name].split(":")[0] for name in attention)]
    code: dict[str, str] = {}
    while pending:
        name = pending.pop()
        path = _file_of(name, root)
        if name in code or name in NOT_MEASURING or path is None:
            continue
        source = path.read_text(encoding="utf-8")
        # A package's __init__ holds only literal dictionaries of names: listing a new one changes no measurement.
        if path.name != "__init__.py":
            code[name] = code_only(source)
            pending += _imports(source)
    digest = hashlib.sha256()
    for name in sorted(code):
        digest.update(f"{name}\n{code[name]}\n".encode())
    return digest.hexdigest()[:16]


def _file_of(module: str, root: Path) -> Path | None:
    base = root.joinpath(*module.split("."))
    return next((path for path in (base.with_suffix(".py"), base / "__init__.py") if path.is_file()), None)


@lru_cache(maxsize=256)
def _imports(source: str) -> tuple[str, ...]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from systems import timing` names a module, `from systems.model import SIZES` something inside one.
            found += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return tuple(name for name in found if name.split(".")[0] == "systems")

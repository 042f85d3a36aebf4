"""Hash the code that an experiment runs, by statements instead of files.

The hash covers the experiment's module and, transitively, each top-level statement that
defines a name used there, each statement that importing those modules runs, and each
TOML file that this code names, beside it. It ignores comments, docstrings, layout,
imports, every `assert`, and the names and places of modules, so code can be moved.
Names of functions, constants and variables count.

It misses the order of top-level statements, names that are looked up as strings (except
in IMPLEMENTATIONS), and how `systems.running` runs rows: alternation, compiling ahead,
what happens between rows. Relative and star imports, and imports in an `if`, are not
followed. A local variable counts as a use of a global of its name.
"""

import ast
import hashlib
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from systems import ROOT
from systems.attention.implementations import IMPLEMENTATIONS

# Packages that are not hashed, because no experiment times their code. The code that
# only they use is not hashed either.
NOT_MEASURING = ("systems.records.", "systems.formulas.", "systems.running.")
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)

# A place in the code: (module, name), or (module, None) for the whole module, or
# (FOREIGN, dotted name) in another package.
Place = tuple[str, str | None]
FOREIGN = ""


def source_hash(module: str, attention: Iterable[str] = ()) -> str:
    """Return the source hash of an experiment's module and its attention functions."""
    return hash_code(experiment_places(module, attention))


def experiment_places(module: str, attention: Iterable[str]) -> list[Place]:
    """Return the places of an experiment: its module and its attention functions."""
    named = (IMPLEMENTATIONS[name].split(":") for name in sorted(set(attention)))
    return [(module, None), *((where, what) for where, what in named)]


def hash_code(places: Iterable[Place], without: Collection[Place] = ()) -> str:
    """Return the hash of the code at `places` and of all it uses, except `without`."""
    reached = reach_code(places, without)
    # Add the code that each statement uses, because modules can share a name.
    texts = (
        "\n".join(s.code for s in [first, *used]) for first, used in reached.items()
    )
    return hashlib.sha256("\n".join(sorted(texts)).encode()).hexdigest()[:16]


# Following references -----------------------------------------------------------------


@dataclass(eq=False)
class Statement:
    """A top-level statement's text, the places that it refers to, the names that it
    defines, and whether importing its module does more than bind these names.
    """

    code: str
    references: list[Place]
    names: Collection[str] = ()
    runs_on_import: bool = False


def reach_code(
    places: Iterable[Place], without: Collection[Place] = ()
) -> dict[Statement, list[Statement]]:
    """Return {statement: the statements that it uses} for all code that `places` refer
    to, directly or indirectly. The first statement is an empty one that uses `places`.
    """
    reached: dict[Statement, list[Statement]] = {}
    pending = [Statement("", list(places))]
    while pending:
        statement = pending.pop()
        if statement not in reached:
            used = (p for p in statement.references if p not in without)
            reached[statement] = [s for p in used for s in find_statements(p)]
            pending += reached[statement]
            for module, _ in statement.references:
                pending += statements_run_on_import(module)
    return reached


@cache
def find_statements(place: Place) -> list[Statement]:
    """Return the statements that define a place, or all of its module if none do."""
    imports, statements = load_module(place[0])
    if place[1] in imports:
        return find_statements(imports[place[1]])
    # An undefined name may be created at run time, so depend on all statements.
    return [s for s in statements if place[1] in s.names] or statements


@cache
def statements_run_on_import(module: str) -> list[Statement]:
    """Return the statements that importing a module runs, directly or indirectly."""
    modules = [module]
    for each in modules:
        imports, _ = load_module(each)
        modules += {name for name, _ in imports.values()} - set(modules)
    loaded = (load_module(each) for each in modules)
    return [s for _, statements in loaded for s in statements if s.runs_on_import]


# Reading a module ---------------------------------------------------------------------


@cache
def load_module(name: str) -> tuple[dict[str, Place], list[Statement]]:
    """Return a module's imports, {name: place}, and statements; empty if not hashed."""
    # Skip packages: no __init__ has code that changes a measured result.
    path = ROOT.joinpath(*name.split(".")).with_suffix(".py")
    if name == FOREIGN or name.startswith(NOT_MEASURING) or not path.is_file():
        return {}, []
    body = ast.parse(path.read_text(encoding="utf-8"), str(path)).body
    imports, statements = dict(imported_names(body)), []
    nodes = [node for node in body if not is_ignored(node)]
    defined = {each: (name, each) for node in nodes for each in defined_names(node)}
    for node in nodes:
        inside = dict(imported_names(ast.walk(node)))
        reader = Reader(defined | imports | inside, path.parent)
        code, runs = reader.text(node), runs_on_import(node, reader.known)
        names = defined_names(node)
        statements.append(Statement(code, reader.references, names, runs))
    return imports, sorted(statements, key=lambda statement: statement.code)


def resolve(name: str) -> Place:
    """Return the place of a dotted name of a module, or of an object in a module."""
    parts = name.split(".")
    if parts[0] != "systems":
        return FOREIGN, name
    path = ROOT.joinpath(*parts)
    if path.is_dir() or path.with_suffix(".py").is_file():
        return name, None
    return ".".join(parts[:-1]), parts[-1]


def imported_names(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, Place]]:
    """Yield (local name, place) for the import statements among these nodes."""
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom):
            package = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                yield alias.asname or alias.name, resolve(package + alias.name)
                if not alias.asname:
                    # `import a.b` binds `a`.
                    first = alias.name.split(".")[0]
                    yield first, resolve(package + first)


def defined_names(node: ast.AST) -> set[str]:
    """Return the names that a top-level statement defines."""
    if isinstance(node, DEFINITIONS):
        return {node.name}
    names = (part for part in ast.walk(node) if isinstance(part, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, ast.Store)}


def is_ignored(node: Any) -> bool:
    """Return whether a statement is not hashed: an import, an assertion, a docstring,
    or an `if` on TYPE_CHECKING or __name__, which imports skip.
    """
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return isinstance(node.value.value, str)
    if isinstance(node, ast.If):
        names = {part.id for part in ast.walk(node.test) if isinstance(part, ast.Name)}
        return not names.isdisjoint(("TYPE_CHECKING", "__name__"))
    return isinstance(node, ast.Import | ast.ImportFrom | ast.Assert)


def runs_on_import(node: ast.stmt, known: Mapping[str, Place]) -> bool:
    """Return whether importing a module with this statement does more than bind names,
    as a call or a decorator `@operator.register_fake` does. `known`: {name: place}.
    """
    if isinstance(node, DEFINITIONS):
        parts = [part for each in node.decorator_list for part in ast.walk(each)]
        objects = [part.value for part in parts if isinstance(part, ast.Attribute)]
        places = [known.get(x.id) for x in objects if isinstance(x, ast.Name)]
        return any(place and place[0] != FOREIGN for place in places)
    # Assignments to attributes and items define no names.
    binds = isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign)
    return not (binds and defined_names(node))


@dataclass
class Reader:
    """Converter of code to text that depends neither on Python's version, nor on layout
    or names of modules. It collects the places (`known` by local name) in the code.
    """

    known: Mapping[str, Place]
    folder: Path
    references: list[Place] = field(default_factory=list)

    def text(self, node: Any) -> str:
        if isinstance(node, list):
            return ",".join(self.text(each) for each in node if not is_ignored(each))
        if isinstance(node, str) and node.endswith(".toml"):
            path = self.folder / node
            node = tomllib.loads(path.read_text("utf-8")) if path.is_file() else node
        if not isinstance(node, ast.AST):
            return ascii(node)
        if place := self.find_place(node):
            self.references.append(place)
            return place[1] or "module"
        if isinstance(node, ast.JoinedStr):
            # Python versions differ in how they split the text between values.
            texts = ""
            for part in node.values:
                is_text = isinstance(part, ast.Constant)
                texts += str(part.value).encode().hex() if is_text else self.text(part)
            return f"JoinedStr({texts})"
        # Skip empty fields, because Python versions differ in them.
        fields = [(k, v) for k, v in ast.iter_fields(node) if v not in (None, [])]
        texts = (f"{name}=[{self.text(value)}]" for name, value in fields)
        return f"{type(node).__name__}({','.join(texts)})"

    def find_place(self, node: ast.AST) -> Place | None:
        """Return what a name or module attribute refers to, or None for other nodes."""
        if isinstance(node, ast.Name):
            return self.known.get(node.id)
        if isinstance(node, ast.Attribute) and (place := self.find_place(node.value)):
            module, name = place
            if module == FOREIGN or name is None:
                return resolve(f"{name or module}.{node.attr}")
        return None

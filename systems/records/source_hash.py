"""Hash the code that an experiment runs, by statements instead of files.

The hash covers the experiment's module and, transitively, each top-level statement that
defines a name used there. It ignores imports, comments, docstrings, layout, assertions
with only `is` and `in`, and the names of modules, functions, constants and local
variables, so code can be moved, renamed and reformatted. It misses names that are
looked up as strings (except in IMPLEMENTATIONS), and assignments to unread names.
"""

import ast
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from systems import ROOT
from systems.attention.implementations import IMPLEMENTATIONS

# Packages that are not hashed, because they can't change a measured result. The names
# that are imported from them are not hashed either.
NOT_MEASURING = ("systems.records.", "systems.formulas.", "systems.running.")
PACKAGE = "systems"
# Module name that stands for all third-party packages.
FOREIGN = ""
# Fields of syntax trees that are not hashed: they vary with context or Python version.
UNHASHED_FIELDS = {"ctx", "kind", "type_comment", "type_ignores"}

# A place in the code: (module, name), or (module, None) for the whole module.
Place = tuple[str, str | None]


def source_hash(module: str, attention: Iterable[str] = (), root: Path = ROOT) -> str:
    """Return the hash of all code that a module and attention functions refer to."""
    named = (IMPLEMENTATIONS[name].split(":") for name in sorted(set(attention)))
    return hash_code([(module, None), *((where, what) for where, what in named)], root)


def hash_code(
    places: Iterable[Place], root: Path = ROOT, without: Iterable[Place] = ()
) -> str:
    """Return the hash of all code that these places refer to, except `without`."""
    reached = ReachedCode(root, frozenset(without))
    for place in places:
        reached.follow(place)
    return digest_text("\n".join(reached.entries()))[:16]


@dataclass(eq=False)
class Statement:
    """A top-level statement, and whether imports run it."""

    code: str
    # Places that the code refers to, and names that it defines, in the code's order.
    references: list[Place]
    names: list[str]
    runs_on_import: bool
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        self.digest = digest_text(self.code)


@dataclass
class Module:
    """A file's imports, statements, and the statements that define each name."""

    imports: dict[str, Place]
    statements: list[Statement] = field(default_factory=list)
    defines: dict[str, list[Statement]] = field(default_factory=dict)


class ReachedCode:
    """Collector of the statements that code refers to, directly or indirectly."""

    def __init__(self, root: Path, without: frozenset[Place] = frozenset()):
        self.root, self.without = root, without
        self.places: dict[Place, None] = {}
        self.read: dict[str, Module | None] = {}
        self.imported: set[str] = set()
        self.statements: dict[Statement, None] = {}

    def follow(self, place: Place) -> None:
        """Add the statements of a place, and all statements that they refer to."""
        self.places[place] = None
        found = self.statements_at(place)
        while found:
            # Sort by code, because the order of discovery must not depend on names.
            pending = sorted(found, key=lambda statement: statement.digest)
            while pending:
                statement = pending.pop()
                if statement not in self.statements:
                    self.statements[statement] = None
                    self.places |= dict.fromkeys(statement.references)
                    for place in statement.references:
                        pending += self.statements_at(place)
            modules = dict.fromkeys(module for module, _ in self.places)
            found = [s for name in modules for s in self.statements_run_on_import(name)]

    def origin(self, place: Place) -> Place:
        """Follow imports from a place to the place that defines the name."""
        module = self.module(place[0])
        if module is None or place[1] not in module.imports:
            return place
        return self.origin(resolve(module.imports[place[1]], self.root))

    def statements_at(self, place: Place) -> list[Statement]:
        """Return the statements that define a place."""
        place = self.origin(place)
        module = None if place in self.without else self.module(place[0])
        if module is None or place[1] is None:
            return module.statements if module else []
        # An undefined name may be created at run time, so depend on all statements.
        return module.defines.get(place[1], module.statements)

    def statements_run_on_import(self, name: str) -> Iterator[Statement]:
        """Yield the statements that importing a module runs, directly or indirectly."""
        module = self.module(name)
        if module is None or name in self.imported:
            return
        self.imported.add(name)
        yield from (s for s in module.statements if s.runs_on_import)
        for place in module.imports.values():
            yield from self.statements_run_on_import(resolve(place, self.root)[0])

    def module(self, name: str) -> Module | None:
        if name not in self.read:
            counts = name != FOREIGN and not name.startswith(NOT_MEASURING)
            self.read[name] = load_module(name, self.root) if counts else None
        return self.read[name]

    def entries(self) -> Iterator[str]:
        """Yield each statement's digest, and where its references are defined: number
        of the statement, and index of the name in it. For a module or an unknown name:
        all statements of the module, with their names that code reads as attributes.
        """
        numbers = {statement: i for i, statement in enumerate(self.statements)}
        code = "".join(statement.code for statement in self.statements)
        for statement in self.statements:
            yield statement.digest
            for place in map(self.origin, statement.references):
                targets, name = self.statements_at(place), place[1] or ""
                known = [target for target in targets if name in target.names]
                yield ",".join(f"{numbers[t]}.{t.names.index(name)}" for t in known)
                for t in targets if not known else ():
                    read = [each for each in t.names if f"attr='{each}'" in code]
                    yield f"{name} {numbers[t]} {read}"


def digest_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# Reading a module ---------------------------------------------------------------------


def load_module(name: str, root: Path) -> Module | None:
    """Return a module of this project, or None for a package or a foreign module."""
    # Skip packages: no __init__ has code that changes a measured result.
    path = module_path(name, root)
    if not path.is_file():
        return None
    return parse_module(name, path.read_text(encoding="utf-8"), root)


def module_path(name: str, root: Path) -> Path:
    return root.joinpath(*name.split(".")).with_suffix(".py")


# Modules are cached, because most records refer to the same modules.
@lru_cache(maxsize=256)
def parse_module(name: str, source: str, root: Path) -> Module:
    tree = ast.parse(source)
    module = Module(dict(imported_names(tree.body)))
    defined = bound_names(node for node in tree.body if not is_import(node))
    known = {each: (name, each) for each in defined} | module.imports
    for node in tree.body:
        if is_import(node) or is_docstring(node) or is_skipped_on_import(node):
            continue
        canonical = CodeText(known | dict(imported_names(ast.walk(node))), root)
        code = canonical.text(node)
        names = list(dict.fromkeys(bound_names([node])))
        on_import = runs_on_import(node, known)
        statement = Statement(code, canonical.references, names, on_import)
        module.statements.append(statement)
        for each in names:
            module.defines.setdefault(each, []).append(statement)
    return module


def resolve(place: Place, root: Path) -> Place:
    """Turn (package, name) into (module, None) if the name is a module."""
    inner = ".".join(filter(None, place))
    return (inner, None) if module_path(inner, root).is_file() else place


def imported_names(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, Place]]:
    """Yield (local name, place) for the import statements among these nodes."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                module = f"{'.' * node.level}{node.module or ''}"
                place = (module, alias.name)
                if not is_own_module(module):
                    place = (FOREIGN, ".".join(place))
                yield alias.asname or alias.name, place
        elif isinstance(node, ast.Import):
            for alias in node.names:
                # Without `as`, an import binds the first package's name.
                module = alias.name if alias.asname else alias.name.split(".")[0]
                place = (module, None) if is_own_module(module) else (FOREIGN, module)
                yield alias.asname or module, place


def is_own_module(module: str) -> bool:
    return module.split(".")[0] == PACKAGE


def is_import(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def is_skipped_on_import(node: ast.AST) -> bool:
    """Return whether imports skip a statement: an `if` on TYPE_CHECKING or __name__."""
    return isinstance(node, ast.If) and any(
        isinstance(name, ast.Name) and name.id in ("TYPE_CHECKING", "__name__")
        for name in ast.walk(node.test)
    )


def runs_on_import(node: ast.stmt, known: Mapping[str, Place]) -> bool:
    """Return whether importing a module with this statement does more than bind names,
    for example by a call or a decorator such as `@operator.register_fake`.
    """
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return any(
            isinstance(part, ast.Attribute)
            and isinstance(part.value, ast.Name)
            and known.get(part.value.id, (FOREIGN,))[0] != FOREIGN
            for decorator in node.decorator_list
            for part in ast.walk(decorator)
        )
    if isinstance(node, ast.Assign):
        return any(isinstance(t, ast.Attribute | ast.Subscript) for t in node.targets)
    if isinstance(node, ast.AugAssign | ast.AnnAssign):
        return not isinstance(node.target, ast.Name)
    return not is_import(node)


def bound_names(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the names that these nodes bind in the current scope."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name.split(".")[0]
        elif not isinstance(node, SCOPES):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                yield node.id
            elif isinstance(node, ast.ExceptHandler) and node.name:
                yield node.name
            yield from bound_names(ast.iter_child_nodes(node))


OUTER_FIELDS = ("name", "args", "returns", "decorator_list", "bases", "keywords")
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
SCOPES = (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Local:
    """A local variable."""


class CodeText:
    """Converter of code to text that doesn't depend on Python's version, on layout, or
    on names (except names of parameters and attributes, and names in profiles).
    """

    def __init__(self, known: Mapping[str, Place | Local], root: Path):
        self.known, self.root = known, root
        self.references: list[Place] = []
        self.locals: dict[Local, int] = {}
        # The names that the body of a class binds, which its methods don't see.
        self.attributes: frozenset[str] = frozenset()

    def text(self, node: Any) -> str:
        if isinstance(node, list):
            return f"[{','.join(self.text(item) for item in drop_unhashed(node))}]"
        if not isinstance(node, ast.AST):
            return repr(node)
        place = self.find_place(node)
        if isinstance(place, Local):
            return f"local({self.locals.setdefault(place, len(self.locals))})"
        if place is not None:
            if place[0] == FOREIGN:
                return f"name({place[1]})"
            self.references.append(place)
            return "name()"
        if isinstance(node, ast.JoinedStr):
            return f"JoinedStr({self.text(merge_constants(node.values))})"
        inner = self.inner_scope(node)
        fields = [
            # Defaults, annotations and decorators belong to the outer scope.
            f"{name}={(self if name in OUTER_FIELDS else inner).text(value)}"
            for name, value in ast.iter_fields(bind_name(node))
            if name not in UNHASHED_FIELDS and value is not None and value != []
        ]
        return f"{type(node).__name__}({','.join(fields)})"

    def inner_scope(self, node: ast.AST) -> "CodeText":
        """Return a converter that knows the local variables of a node's own scope."""
        if not isinstance(node, (*FUNCTIONS, *SCOPES, ast.ClassDef)):
            return self
        of = getattr(node, "args", node)
        named = {x.arg for x in ast.iter_child_nodes(of) if isinstance(x, ast.arg)}
        bound = set(bound_names(g.target for g in getattr(node, "generators", ())))
        if isinstance(node, FUNCTIONS):
            imported = dict(imported_names(ast.walk(node)))
            bound |= set(bound_names(node.body)) - imported.keys()
        known = {name: p for name, p in self.known.items() if name not in named}
        inner = CodeText(known | {name: Local() for name in bound - named}, self.root)
        inner.references, inner.locals = self.references, self.locals
        if isinstance(node, ast.ClassDef):
            inner.attributes = frozenset(bound_names(node.body))
        return inner

    def find_place(self, node: ast.AST) -> Place | Local | None:
        """Return what a name or module attribute refers to, or None for other nodes."""
        if isinstance(node, ast.Name):
            binds = isinstance(node.ctx, ast.Store)
            known = {} if binds and node.id in self.attributes else self.known
            place = known.get(node.id)
            return resolve(place, self.root) if isinstance(place, tuple) else place
        if isinstance(node, ast.Attribute):
            inner = self.find_place(node.value)
            # Resolve `systems.a.b` step by step.
            if isinstance(inner, tuple) and inner[1] is None:
                return resolve((inner[0], node.attr), self.root)
        return None


def bind_name(node: ast.AST) -> ast.AST:
    """Turn the name that a definition binds into a node, so that it is not hashed. Keep
    names that profiles show: of kernels, and of subclasses (except of NamedTuple).
    """
    fields = dict(ast.iter_fields(node))
    name, bases = fields.get("name"), map(ast.unparse, fields.get("bases", ()))
    if not name or name.endswith("kernel") or set(bases) - {"NamedTuple"}:
        return node
    return type(node)(**fields | {"name": ast.Name(name, ast.Store())})


def drop_unhashed(nodes: list[Any]) -> list[Any]:
    """Return a body minus docstring, imports, and assertions that call nothing."""
    if nodes and is_docstring(nodes[0]) and isinstance(nodes[0], ast.stmt):
        nodes = nodes[1:]
    return [node for node in nodes if not is_import(node) and not is_free(node)]


def is_free(node: Any) -> bool:
    """Return whether a statement is an assertion that neither calls nor computes."""
    allowed = (ast.Compare, ast.Is, ast.IsNot, ast.In, ast.Name, ast.Attribute)
    allowed += (ast.Tuple, ast.Constant, ast.Load)
    return isinstance(node, ast.Assert) and all(
        isinstance(part, allowed) for part in ast.walk(node.test)
    )


def merge_constants(values: list[ast.expr]) -> list[ast.expr]:
    """Merge adjacent constants of f-strings, which some Python versions split."""
    out: list[ast.expr] = []
    for value in values:
        last = out[-1] if out else None
        if isinstance(value, ast.Constant) and isinstance(last, ast.Constant):
            out[-1] = ast.Constant(str(last.value) + str(value.value))
        elif not (isinstance(value, ast.Constant) and value.value == ""):
            out.append(value)
    return out

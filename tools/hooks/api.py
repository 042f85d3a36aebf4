"""A griffe extension that selects what the site's code reference shows.

Functions and classes that a page links to are expanded, the rest collapsed. Kernels
are left out, because other pages show their code. Experiments show only `Config`,
`configs` and `run`.
"""

import re
from pathlib import Path
from textwrap import dedent

from griffe import Attribute, Class, Extension, Function, Module, Object

EXPERIMENT = {"Config", "configs", "run"}
LINK = re.compile(r"\]\[(systems\.[\w.]+)\]")
MARK = re.compile(r"^ *# --8<-- .*\n", re.MULTILINE)
DOCS = Path(__file__).resolve().parents[2] / "docs"


class ReferenceFilter(Extension):
    """Extension that marks linked names and hides kernels and experiments' helpers."""

    def __init__(self) -> None:
        texts = (page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md"))
        self.called = {name for text in texts for name in LINK.findall(text)}

    def on_instance(self, *, obj: Object, **_: object) -> None:
        obj.extra["reference"]["called"] = obj.path in self.called

    def on_attribute(self, *, attr: Attribute, **_: object) -> None:
        attr.public = attr.docstring is not None and not attr.name.startswith("_")

    def on_class_members(self, *, cls: Class, **_: object) -> None:
        cls.extra["reference"]["fields"] = field_lines(cls)

    def on_function(self, *, func: Function, **_: object) -> None:
        if any("jit" in str(decorator.value) for decorator in func.decorators):
            func.public = False

    def on_module_members(self, *, mod: Module, **_: object) -> None:
        if mod.members.keys() >= EXPERIMENT:
            for name in mod.members.keys() - EXPERIMENT:
                mod.members[name].public = False


def field_lines(cls: Class) -> str:
    """Return the source lines of a class's fields, with their comments, or ""."""
    fields = [
        member
        for member in cls.members.values()
        if isinstance(member, Attribute)
        and member.annotation is not None
        and "property" not in member.labels
        # Skip `self.x: int = 0` in a method, which is no attribute of the class.
        and ("class-attribute" in member.labels or member.value is None)
    ]
    if not fields:
        return ""
    first = min(field.lineno or 0 for field in fields)
    last = max(field.endlineno or 0 for field in fields)
    lines = cls.lines_collection[Path(str(cls.filepath))][first - 1 : last]
    return MARK.sub("", dedent("\n".join(lines) + "\n"))

"""What the reference of the code shows: griffe reads the sources, this says which names
a reader calls, and which fields a class has.

A name is called if a page links it: the table on top of each page of the reference
does. The others are folded, kernels left out: the pages that explain them show them
whole. An experiment is its three parts. `templates` beside this lays it out.
"""

import re
from pathlib import Path
from textwrap import dedent

from griffe import Attribute, Class, Extension, Function, Module, Object

EXPERIMENT = {"Config", "configs", "run"}
LINK = re.compile(r"\]\[(systems\.[\w.]+)\]")
MARK = re.compile(r"^ *# --8<-- .*\n", re.MULTILINE)
DOCS = Path(__file__).resolve().parents[2] / "docs"


class CalledNames(Extension):
    """Names that no reader calls are marked as inside, or as not public, which hides
    them.
    """

    def __init__(self) -> None:
        pages = DOCS.rglob("*.md")
        self.called = {
            name
            for page in pages
            for name in LINK.findall(page.read_text(encoding="utf-8"))
        }

    def on_instance(self, *, obj: Object, **_: object) -> None:
        obj.extra["reference"]["called"] = obj.path in self.called

    def on_attribute(self, *, attr: Attribute, **_: object) -> None:
        attr.public = attr.docstring is not None and not attr.name.startswith("_")

    def on_class_members(self, *, cls: Class, **_: object) -> None:
        cls.extra["reference"]["fields"] = fields_of(cls)

    def on_function(self, *, func: Function, **_: object) -> None:
        if any("jit" in str(decorator.value) for decorator in func.decorators):
            func.public = False

    def on_module_members(self, *, mod: Module, **_: object) -> None:
        if mod.members.keys() >= EXPERIMENT:
            for name in mod.members.keys() - EXPERIMENT:
                mod.members[name].public = False


def fields_of(cls: Class) -> str:
    """The lines that declare the fields of a class, with the comments between."""
    fields = [
        member
        for member in cls.members.values()
        if isinstance(member, Attribute)
        and member.annotation is not None
        and "property" not in member.labels
        # One without a value stands in the body too: a method would give it one.
        and ("class-attribute" in member.labels or member.value is None)
    ]
    if not fields:
        return ""
    first = min(field.lineno or 0 for field in fields)
    last = max(field.endlineno or 0 for field in fields)
    lines = cls.lines_collection[Path(str(cls.filepath))][first - 1 : last]
    return MARK.sub("", dedent("\n".join(lines) + "\n"))

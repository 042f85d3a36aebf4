"""What the reference of the code leaves out: griffe reads the sources, this says which
names a reader calls.

Kernels are launched by functions that are listed, and shown whole on the pages that
explain them. Constants and fields stand in signatures and in the code; one with a
docstring of its own is listed. An experiment is its three parts.
"""

from griffe import Attribute, Extension, Function, Module

EXPERIMENT = {"Config", "configs", "run"}


class CalledNames(Extension):
    """Names that no reader calls are marked as not public, which hides them."""

    def on_attribute(self, *, attr: Attribute, **_: object) -> None:
        attr.public = attr.docstring is not None and not attr.name.startswith("_")

    def on_function(self, *, func: Function, **_: object) -> None:
        if any("jit" in str(decorator.value) for decorator in func.decorators):
            func.public = False

    def on_module_members(self, *, mod: Module, **_: object) -> None:
        if mod.members.keys() >= EXPERIMENT:
            for name in mod.members.keys() - EXPERIMENT:
                mod.members[name].public = False

"""Triton's interpreter without what it repeats."""

from collections.abc import Callable
from typing import Any


def patch_the_language_once_a_launch() -> None:
    """A launch puts functions of the interpreter in the place of Triton's language, and
    takes them away at its end. The interpreter does so again at each call of a helper
    in a kernel, which changes nothing and takes it two fifths of its time.
    """
    from triton.runtime import interpreter

    # As they are called in Triton 3.6 to 3.9; without them it is only slower.
    patch: Callable[[Any], Any] | None = getattr(interpreter, "_patch_lang", None)
    scope: Any = getattr(interpreter, "_LangPatchScope", None)
    if patch is None or scope is None or hasattr(patch, "whole"):
        return
    tl = interpreter.tl

    def once(function: Any) -> Any:
        seen = function.__globals__.values()
        langs = [lang for lang in (tl, tl.core) if any(one is lang for one in seen)]
        if langs and not any(tl.core.is_builtin(lang.load) for lang in langs):
            return scope()
        return patch(function)

    once.whole = patch  # pyright: ignore[reportFunctionMemberAccess]
    interpreter._patch_lang = once

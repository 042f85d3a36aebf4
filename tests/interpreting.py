"""Make Triton's interpreter faster by skipping repeated work."""

from dataclasses import replace
from typing import Any


def speed_up_interpreter() -> None:
    """Make the interpreter over twice as fast, if it has the functions to patch."""
    from triton.runtime import interpreter

    patch_once_a_launch(interpreter)
    cache_dtypes(interpreter)
    skip_overflow_checks(interpreter)


def patch_once_a_launch(interpreter: Any) -> None:
    """Patch Triton's language once a launch instead of at each call of a helper."""
    patch = getattr(interpreter, "_patch_lang", None)
    scope = getattr(interpreter, "_LangPatchScope", None)
    if patch is None or scope is None or hasattr(patch, "whole"):
        return
    tl = interpreter.tl
    # The modules (tl, tl.core) that each kernel module imports, by id of its globals.
    seen: dict[int, list[Any]] = {}

    def patch_once(function: Any) -> Any:
        of_module = function.__globals__
        langs = seen.get(id(of_module))
        if langs is None:
            values = of_module.values()
            langs = [lang for lang in (tl, tl.core) if any(v is lang for v in values)]
            seen[id(of_module)] = langs
        if langs and not any(tl.core.is_builtin(lang.load) for lang in langs):
            return scope()
        return patch(function)

    patch_once.whole = patch
    interpreter._patch_lang = patch_once


def cache_dtypes(interpreter: Any) -> None:
    """Cache NumPy's dtype of each Triton dtype."""
    whole = getattr(interpreter, "_get_np_dtype", None)
    if whole is None or hasattr(whole, "whole"):
        return
    known: dict[str, Any] = {}

    def look_up(dtype: Any) -> Any:
        name = dtype.scalar.name
        if name not in known:
            known[name] = whole(dtype)
        return known[name]

    look_up.whole = whole
    interpreter._get_np_dtype = look_up


def skip_overflow_checks(interpreter: Any) -> None:
    """Skip the interpreter's 64-bit overflow checks, which only debugging needs."""
    builder: Any = getattr(interpreter, "interpreter_builder", None)
    options: Any = getattr(builder, "options", None)
    if getattr(options, "sanitize_overflow", False) and not options.debug:
        builder.options = replace(options, sanitize_overflow=False)

"""The source hash changes with code, not with comments, layout, modules or Python."""

import re
from functools import cache

import pytest

from systems.records import source_hash as module
from systems.records.source_hash import hash_code, source_hash

SOURCE = '''# A comment first, with "quotes" and größer
"""A docstring # with a hash,
    over two lines — and ü before its end."""  # and a comment behind
from __future__ import annotations

import re

TEXT = """not a docstring # kept,

   with a blank line"""
f"{TEXT!r:>{10}} # no comment"


@staticmethod  # why
def decorated(x: int = 3, *, y: "str | None" = None) -> dict[str, list[int]]:
    \'\'\'One line.\'\'\'

    # On its own line.
    if (n := x + 1) > 2:  # behind code
        return {"ä # ö": [n], 'it\\'s "quoted"': [ord(f'{"#"}')]}
    return {f"{x=}#{y!s}": []}


class Thing:
    """A class."""; z = "ü"  # after a docstring on its line

    async def größe(self): "Ümlaut only"

    def nested(self) -> str:
        r"""raw \\d docstring"""
        "a second string, which is no code"

        def inner():
            """inner"""
            return rb"# bytes"

        return "%s" % inner
'''
HASH = "5678e28d310bb1d8"


@pytest.fixture
def rehash(tmp_path, monkeypatch):
    """Return a function that writes files and returns the hash of `systems.stem`."""
    monkeypatch.setattr(module, "ROOT", tmp_path)
    named = {"eager": "systems.model:eager", "fast": "systems.attention.fast:fast"}
    monkeypatch.setattr(module, "IMPLEMENTATIONS", named)
    cached = ("load_module", "find_statements", "statements_run_on_import")
    for name in cached:
        monkeypatch.setattr(module, name, cache(getattr(module, name).__wrapped__))

    def rehash(attention=(), without=(), **sources: str) -> str:
        for name, source in sources.items():
            inside = re.sub("(?<=[a-z])__(?=[a-z])", "/", name)
            suffix = ".toml" if name.endswith("_toml") else ".py"
            path = tmp_path / "systems" / f"{inside}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source, encoding="utf-8")
        for name in cached:
            getattr(module, name).cache_clear()
        if without:
            return hash_code([("systems.stem", None)], without)
        return source_hash("systems.stem", attention)

    return rehash


def test_hash_is_equal_in_every_python(rehash):
    assert rehash(stem=SOURCE) == HASH


WORDS = [
    ("# why", "# why not"),
    ("  # behind code", ""),
    ("import re\n", "import re  # to match\n# more\n"),
    ("A class.", "A very fine class — größer."),
    ("'''One line.'''", "'''One line.\n\n    # And more.\n    '''"),
    ('"""A class."""', '"""Ä"""'),
    ("import re\n", "\n\nimport re   \n\n   \n"),
    # An unused import, line breaks, quotes, a split string, and parentheses.
    ("import re\n", "import re\nimport io\n"),
    ("(x: int = 3, *,", "(\n    x: int = 3,\n    *,\n   "),
    ("'it\\'s \"quoted\"'", '"it\'s \\"quoted\\""'),
    ('"ä # ö"', '"ä " "# ö"'),
    ("if (n := x + 1) > 2:", "if ((n := (x + 1)) > 2):"),
    ("a second string", "a 2nd string"),
    ("    # On its", "    assert f(x) > 2, f'{x}'\n    # On its"),
]
CODE = [
    ("= 3", "= 4"),
    ("x + 1", "x - 1"),
    ('"ä # ö"', '"ä # o"'),
    ("# no comment", "# a comment"),
    ("   with a blank", "   without a blank"),
    ("int = 3", "float = 3"),
    ("@staticmethod", "@classmethod"),
    ("    return {f", "        return {f"),
    ('rb"# bytes"', 'rb"# Bytes"'),
    ("async def", "def"),
    ("decorated", "renamed"),
    ("Thing", "Other"),
    ("TEXT", "WORDS"),
    ("(n := x + 1)", "(m := x + 1)"),
    ("import re\n", "import re\nre.purge()\n"),
]


@pytest.mark.parametrize("change", WORDS)
def test_comments_and_layout_do_not_change_the_hash(rehash, change):
    assert SOURCE.count(change[0]) == 1
    assert rehash(stem=SOURCE.replace(*change)) == HASH


@pytest.mark.parametrize("change", CODE)
def test_code_changes_the_hash(rehash, change):
    source = SOURCE.replace(*change)
    assert source != SOURCE and rehash(stem=source) != HASH


# Import statements, and the expression that then refers to `x` of `systems.a`.
IMPORTS = {
    "import systems.a": "systems.a.x",
    "import systems.a as b": "b.x",
    "from systems import a": "a.x",
    "from systems import (\n    os,\n    a as b,\n)": "b.x",
    "from systems.a import x": "x",
    "from systems.a import x as y": "y",
}


@pytest.mark.parametrize("line", IMPORTS)
def test_imported_names_change_the_hash(rehash, line):
    used = IMPORTS[line]
    before = rehash(stem=f"{line}\ndef run():\n    return {used}", a="x = 1\nz = 1")
    assert rehash(a="x = 1\nz = 2") == before != rehash(a="x = 2\nz = 1")
    inside = f"def run():\n    {line.replace(chr(10), '')}\n    return {used}"
    assert rehash(stem=inside, a="x = 1") == before


def test_indirectly_used_code_changes_the_hash(rehash):
    sources = dict(
        stem="from systems import a\na.f()",
        a="import systems.c.d\ndef f():\n    return systems.c.d.x",
        c__d="from systems.b import z as x",
        b="z = 1",
    )
    before = rehash(**sources)
    assert rehash(b="z = 2") != before == rehash(b="z = 1\nother = 1")


def test_excluded_code_does_not_change_the_hash(rehash):
    def new_hash(**sources: str) -> str:
        return rehash(without=[("systems.choice", "choose")], **sources)

    stem = "from systems.choice import choose, other\ndef run(): choose(), other()"
    table = "from systems.table import TABLE\n"
    choice = table + "def choose(): return TABLE\ndef other(): return 1"
    before = new_hash(stem=stem, choice=choice, table="TABLE = 1")
    assert new_hash(table="TABLE = 2") == before
    assert new_hash(choice=choice.replace("return TABLE", "return TABLE + 1")) == before
    assert new_hash(choice=choice.replace("return 1", "return 2")) != before
    assert new_hash(choice=choice.replace("return 1", "return TABLE")) != before


def test_module_passed_as_a_value_is_hashed_whole(rehash):
    before = rehash(stem="import systems.a as b\ngetattr(b, 'x')", a="x = 1\nz = 1")
    assert rehash(a="x = 1\nz = 2") != before


def test_code_run_by_an_import_changes_the_hash(rehash):
    a = "def f(): ...\ndef unused(): ..."
    before = rehash(stem="from systems.a import f\nf()", a=a)
    assert rehash(a=f"{a}\nregister(f)") != before
    assert rehash(a=f"import systems.b\n{a}", b="register()") != before
    decorated = f"{a}\n@f.register_fake\ndef _(): ..."
    assert before != rehash(a=decorated) != rehash(a=decorated.replace("_()", "_(x)"))
    guarded = f'{a}\nif __name__ == "__main__":\n    f()'
    assert rehash(a=guarded) == before


def test_data_file_changes_the_hash(rehash):
    stem = "def load(): return tomllib.loads(Path(__file__).with_name('a_toml.toml'))"
    before = rehash(stem=stem, a_toml="x = 1 # why", b_toml="x = 1")
    assert rehash(a_toml="# why not\nx=1", b_toml="x = 2") == before
    assert rehash(a_toml="x = 2") != before
    assert rehash(stem=stem.replace("load", "read")) != before


def test_local_variable_hides_no_name_outside_its_function(rehash):
    a = "def f():\n    return x, lambda x: x\n"
    assert rehash(stem=f"{a}x = 1") != rehash(stem=f"{a}x = 2")
    stem = "from systems.a import f\nf()"
    assert rehash(stem=stem, a=f"{a}x = 1") != rehash(a=f"{a}x = 2")


def test_circular_imports_are_hashed(rehash):
    circle = dict(stem="import systems.a\nsystems.a.f", a="import systems.stem\nf = 1")
    assert rehash(**circle) != rehash(a="import systems.stem\nf = systems.stem")


def test_unused_modules_do_not_change_the_hash(rehash):
    sources = dict(stem="import json\nfrom systems.a import x\nx", a="x = 1")
    before = rehash(**sources, unused="x = 1", __init__="")
    assert rehash(unused="x = 2", __init__="STEMS = {}") == before
    assert rehash(a="x = 1  # said") == before != rehash(a="x = 2")


@pytest.mark.parametrize(
    "name",
    ["records__store", "records__source_hash", "formulas__costs", "running__command"],
)
def test_modules_that_cannot_change_a_measurement_are_not_hashed(rehash, name):
    stem = f"from systems.{name.replace('__', '.')} import f\nf()"
    before = rehash(stem=stem, **{name: "from systems.a import f"}, a="f = 1")
    assert rehash(**{name: "from systems.a import f\nf()"}, a="f = 2") == before


def test_file_next_to_the_clone_does_not_change_the_hash(rehash, tmp_path):
    alone = rehash(stem="import json\njson.dumps({})")
    tmp_path.with_suffix(".py").write_text("print(1)\n")
    assert rehash() == alone


def test_only_named_attention_changes_the_hash(rehash):
    sources = dict(stem="", model="eager = 1", a="x = 3")
    sources["attention__fast"] = "from systems.a import x as fast"
    eager, fast = rehash(["eager"], **sources), rehash(["fast"])
    assert len({rehash(), eager, fast}) == 3
    assert rehash(["eager"], a="x = 2") == eager and rehash(["fast"]) != fast
    assert rehash(["fast", "eager"]) == rehash(["eager", "fast"])


def test_moving_code_does_not_change_the_hash(rehash):
    before = rehash(
        stem="from systems import a\ndef run():\n    return a.f() + a.g()",
        a="N = 3\ndef f():\n    return N\ndef g():\n    return f() + N",
    )
    after = rehash(
        stem="from systems.deep.f import f\n"
        "def run():\n    from systems.g import g as h\n    return f() + h()",
        deep__f="def f():\n    return N\nN = 3",
        g="from systems.deep import f as of\ndef g():\n    return of.f() + of.N",
    )
    assert after == before


def test_swapping_equal_names_changes_the_hash(rehash):
    a, b = "def f():\n    return 1", "def f():\n    return 2"
    stem = "from systems import a, b\ndef run():\n    return a.f() - b.f()"
    before = rehash(stem=stem, a=a, b=b)
    assert rehash(a=b, b=a) != before

"""The hash of the measured source: the same on every Python, blind to words, sharp on code."""

import pytest

from systems import source_hash as module
from systems.source_hash import code_only, source_hash

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
        "a second string, which is code"

        def inner():
            """inner"""
            return rb"# bytes"

        return "%s" % inner
'''
HASH = "e87fd9c214afde0d"


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Writes modules below a scratch root and gives the hash over the one named `systems.stem`."""
    monkeypatch.setattr(
        module, "IMPLEMENTATIONS", {"eager": "systems.model:eager", "fast": "systems.attention.fast:fast"}
    )

    def hash_of(attention=(), **sources: str) -> str:
        for name, source in sources.items():
            path = tmp_path / "systems" / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source, encoding="utf-8")
        return source_hash("systems.stem", attention, root=tmp_path)

    return hash_of


def test_every_python_gives_this_hash(tree):
    assert tree(stem=SOURCE) == HASH


def test_modules_that_records_share_are_taken_apart_once():
    """Rendering asks for some two hundred hashes over the same few files."""
    first = source_hash("systems.experiments.end_to_end", ["eager"])
    misses = code_only.cache_info().misses
    assert source_hash("systems.experiments.end_to_end", ["eager"]) == first
    assert code_only.cache_info().misses == misses


def test_what_remains_is_code():
    left = code_only(SOURCE)
    for gone in ("A comment", "docstring # with", "why", "On its own line", "A class", "Ümlaut", "raw", '"""inner"""'):
        assert gone not in left
    for kept in (
        "not a docstring # kept,",
        '"ä # ö"',
        "f'{\"#\"}'",
        "{x=}#{y!s}",
        "a second string",
        'rb"# bytes"',
        ":= x",
    ):
        assert kept in left
    assert '    ; z = "ü"\n' in left and "\n\n" not in left


WORDS = {
    "comment reworded": ("# why", "# why not"),
    "comment deleted": ("  # behind code", ""),
    "comment added": ("import re\n", "import re  # to match\n# more\n"),
    "docstring reworded": ("A class.", "A very fine class — größer."),
    "docstring made longer": ("'''One line.'''", "'''One line.\n\n    # And more.\n    '''"),
    "docstring before code on its line": ('"""A class."""', '"""Ä"""'),
    "blank lines": ("import re\n", "\n\nimport re\n\n   \n"),
    "spaces at the end": ("import re\n", "import re   \n"),
}
CODE = {
    "number": ("= 3", "= 4"),
    "operator": ("x + 1", "x - 1"),
    "hash in a string": ('"ä # ö"', '"ä # o"'),
    "hash in an f-string": ("# no comment", "# a comment"),
    "line of a text": ("   with a blank", "   without a blank"),
    "annotation": ("int = 3", "float = 3"),
    "decorator": ("@staticmethod", "@classmethod"),
    "indentation": ("    return {f", "        return {f"),
    "second string": ("a second string", "a 2nd string"),
    "bytes": ('rb"# bytes"', 'rb"# Bytes"'),
    "name": ("inner", "outer"),
    "keyword": ("async def", "def"),
    "line added": ("import re\n", "import re\nimport io\n"),
}


@pytest.mark.parametrize("change", WORDS)
def test_words_do_not_count(tree, change):
    assert SOURCE.count(WORDS[change][0]) == 1
    assert tree(stem=SOURCE.replace(*WORDS[change])) == HASH


@pytest.mark.parametrize("change", CODE)
def test_code_counts(tree, change):
    source = SOURCE.replace(*CODE[change])
    assert source != SOURCE and tree(stem=source) != HASH


IMPORTS = [
    "import systems.a",
    "import systems.a as b",
    "from systems import a",
    "from systems.a import x",
    "from systems import (\n    os,\n    a as b,\n)",
    "def run():\n    from systems.a import x",
]


@pytest.mark.parametrize("line", IMPORTS)
def test_a_module_imported_in_any_way_counts(tree, line):
    assert tree(stem=line, a="x = 1") != tree(a="x = 2")


def test_a_module_imported_indirectly_counts(tree):
    before = tree(stem="import systems.a", a="import systems.b", b="from systems.c__d import x", c__d="x = 1")
    before = tree(b="from systems.c.d import x")
    assert tree(c__d="x = 2") != before


def test_modules_that_import_each_other_end(tree):
    assert tree(stem="import systems.a", a="import systems.stem") != tree(a="import systems.stem, re")


def test_other_modules_and_packages_do_not_count(tree):
    before = tree(stem="import json, systems.a", a="x = 1", unused="x = 1", __init__="")
    assert tree(unused="x = 2", __init__="STEMS = {}") == before
    assert tree(a="x = 1  # said") == before != tree(a="x = 2")


@pytest.mark.parametrize("name", ["records", "costs", "source_hash", "experiments__command"])
def test_what_cannot_change_a_measurement_does_not_count(tree, name):
    dotted = name.replace("__", ".")
    before = tree(stem=f"import systems.{dotted}", **{name: "import systems.a"}, a="x = 1")
    assert tree(**{name: "import systems.a\nx = 2"}, a="x = 2") == before


def test_an_attention_implementation_counts_only_when_named(tree):
    sources = dict(stem="import systems.model", model="eager = 1", attention__fast="import systems.a", a="x = 1")
    eager, fast = tree(["eager"], **sources), tree(["fast"])
    assert eager == tree() != fast
    assert tree(["eager"], a="x = 2") == eager and tree(["fast"]) != fast
    assert tree(["fast", "eager"]) == tree(["eager", "fast"])


def test_the_name_of_a_module_counts(tree):
    before = tree(stem="import systems.a", a="x = 1")
    assert tree(stem="import systems.b", b="x = 1") != before


def test_real_stems_have_hashes_of_their_own():
    hashes = {source_hash(f"systems.experiments.{stem}", ["eager"]) for stem in ("model_sizes", "end_to_end", "warmup")}
    assert len(hashes) == 3

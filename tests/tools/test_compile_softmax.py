"""The compiler's own softmax kernel: what is committed is what it writes, and what the
page says of its lines is so.
"""

import os
import re
import subprocess
import sys

import pytest
import torch
import triton

from systems import ROOT
from tools.compile_softmax import SOFTMAX, without_unread

PAGE = ROOT / "docs" / "compile.md"
AGAIN = "from tools.compile_softmax import text; print(text(), end='')"


def section(text: str, name: str) -> str:
    (found,) = re.findall(rf"\[start:{name}\]\n(.*?)\n# --8<-- \[end", text, re.DOTALL)
    return found


@pytest.mark.slow
def test_what_is_committed_is_what_the_compiler_writes():
    compiles = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    line = [sys.executable, "-c", AGAIN]
    found = subprocess.run(line, cwd=ROOT, env=compiles, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    committed = SOFTMAX.read_text(encoding="utf-8")
    here = f"PyTorch {torch.__version__.split('+')[0]}, Triton {triton.__version__}"
    if here in committed.splitlines()[0]:
        assert found.stdout == committed, "run `python tools/compile_softmax.py`"
    # Another version names things otherwise, and does the same.
    for call in ("program_id(0)", "tl.load(", "max", "exp(", "tl.sum(", "tl.store("):
        assert call in section(found.stdout, "short")


def test_what_nothing_reads_is_left_out_and_nothing_else():
    kernel = "def f(a):\n    b = 1\n    c = b\n    d: int = 2\n    g(a, d)"
    assert without_unread(kernel) == "def f(a):\n    d: int = 2\n    g(a, d)"
    committed = SOFTMAX.read_text(encoding="utf-8")
    short, whole = (section(committed, name) for name in ("short", "whole"))
    assert without_unread(whole) == short
    assert len(short.splitlines()) <= 25
    assert max(map(len, short.splitlines())) <= 88


def test_the_page_explains_lines_that_the_kernel_has():
    page = PAGE.read_text(encoding="utf-8").partition("{ #kernel }")[2]
    rows = re.findall(r"^\| `(.*?)` \|", page.partition("\n### ")[0], re.MULTILINE)
    short = section(SOFTMAX.read_text(encoding="utf-8"), "short")
    assert len(rows) >= 6
    assert [line for line in rows if line not in short] == []

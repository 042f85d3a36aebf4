"""Test the checker of pages on a page and a source file with one fault."""

import re
from pathlib import Path

import pytest

from tools.checks.pages import check_pages

SOURCE = '''"""A module."""


# --8<-- [start:one]
def one():
    # --8<-- [start:inner]
    return 1
    # --8<-- [end:inner]


# --8<-- [end:one]
'''
PAGE = """# Title

A step takes {$ facts.stem.time $}, {$ facts.stem.share $} of the peak, which is
`3.2 TB/s`; 10 steps, a 16×16 tile.

``` python title="12 ms"
--8<-- "systems/a.py:one"
--8<-- "systems/a.py:inner"
sleep(12)  # 12 ms
```

=== "NVIDIA A100-SXM4-40GB"

    --8<-- "generated/a-table.md"

[a link](other.md#12-ms "no") goes there; <!-- 12 ms --> \\(2x + 4s\\), in 1990, p20,
min, fp32 s.
{ .caption }

```` text
```
12 ms
````

;--8<-- "shown/as/text.md" and `--8<-- "x"`, ``a ` b 12 ms``, 4 x 512, 2 × width,
\\(\\text{loss} = 3\\)
"""


def write_tree(root: Path, page: str = PAGE, source: str = SOURCE) -> Path:
    for folder in ("docs/generated", "systems"):
        (root / folder).mkdir(parents=True)
    (root / "docs/page.md").write_text(page, encoding="utf-8")
    (root / "systems/a.py").write_text(source, encoding="utf-8")
    # Fragments may contain measured numbers.
    (root / "docs/generated/a-table.md").write_text("| 12 ms |\n")
    return root


LAST = PAGE.count("\n") + 2
NUMBERS = r"""
12 ms, 1.5 µs, 3.5us, 0.25 s, 40 seconds, 5 min, 10-20 ms, 12&nbsp;ms, **2.5** ms,
51.2 TFLOP/s, 9 GFLOP/s, 8 FLOP/s, 4.8 TB/s, 900 GB/s, 20 GiB/s, 12,345 tokens/s,
8 KiB, 8 MiB, 8 GiB, 1 KB, 1 MB, 80GB, 2 TB, 700 W, 1980 MHz,
42 %, 42%, 7.5 percent, 3 times faster, 2 times slower, 2.1×, 2.1× faster
"""


@pytest.mark.parametrize("number", re.split(r",\s+", NUMBERS.strip()))
def test_numbers_typed_by_hand_are_found(tmp_path, number):
    page = PAGE + f"\nIt takes {number}.\n"
    (finding,) = check_pages(write_tree(tmp_path, page))
    assert finding.startswith(f"docs/page.md:{LAST}: the measured number ")
    assert "typed by hand" in finding


def test_numbers_are_found_in_all_kinds_of_text(tmp_path):
    page = "# In 12 ms\n\nIt takes 12\nms.\n\n| a |\n| 13 ms |\n\n"
    page += '=== "14 ms"\n\n    15 ms\n\n'
    page += "![16 ms](a.png) [17 ms](b.md)\n"
    findings = check_pages(write_tree(tmp_path, page, source=""))
    assert [finding.split("'")[1] for finding in findings] == [
        f"{n} ms" for n in (12, 12, 13, 14, 15, 16, 17)
    ]
    lines = [int(finding.split(":")[1]) for finding in findings]
    assert lines == [1, 3, 7, 9, 11, 13, 13]


def test_unclosed_code_block_hides_no_number(tmp_path):
    (finding,) = check_pages(write_tree(tmp_path, "```\n12 ms\n", source=""))
    assert finding.startswith("docs/page.md:2: the measured number '12 ms'")


def test_merge_conflict_and_another_encoding_are_found(tmp_path):
    root = write_tree(tmp_path, PAGE)
    (root / "docs/page.md").write_bytes(f"{PAGE}ä\n>>>>>>> fork\n".encode("latin-1"))
    found = [finding.split(": ")[1] for finding in check_pages(root)]
    assert found == ["has a merge conflict", "is not UTF-8"]


TWO = "# --8<-- [start:two]\nx = 1\n# --8<-- [end:two]\n"
MARKERS = [
    (SOURCE.replace("# --8<-- [end:one]\n", ""), "section 'one' needs one start"),
    (SOURCE + "# --8<-- [end:two]\n", "section 'two' needs one start"),
    (SOURCE + TWO.replace("two", "one"), "section 'one' needs one start"),
    (SOURCE + TWO, "no page shows the section 'two'"),
]


@pytest.mark.parametrize(("source", "expected"), MARKERS)
def test_broken_snippet_markers_are_found(tmp_path, source, expected):
    (finding,) = check_pages(write_tree(tmp_path, PAGE, source))
    assert finding.startswith(f"systems/a.py: {expected}")

"""What pages show of a record is text: none of it becomes markup."""

import random
import re
import sys
import unicodedata
from functools import cache
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import markdown
import pytest
from mkdocs.utils.yaml import yaml_load

from systems import ROOT
from systems.records.device import Device
from tests.factories import committed, make_record
from tools.render.markdown import (
    Markup,
    bold,
    columns,
    first,
    folded_name,
    inert,
    lines,
    note,
    plain,
    provenance,
    spoken,
    table,
    tabs,
)
from tools.render.plots import plot

# Each would run, load, include, compute or format if a page took it as it is.
LIVE = [
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    "[x](javascript:alert(1))",
    "![x](https://example.org/x.png)",
    '"><b>',
    "*stars* and **stars**",
    "_under_ __under__",
    "`<b>` and ``<b>``",
    "`unclosed <b>",
    "`a|b`",
    "a|b",
    '\n\n--8<-- ".git/config"\n\n',
    '\r--8<-- ".git/config"',
    "{{ 1 }} {$ gpu $} {@ set x = 1 @} {: .x }",
    "\\(x\\) \\[x\\] \\<",
    "\x02wzxhzdk:0\x03",
    "\n\n# heading\n\n- item",
    "\n\n    indented",
    "&lt;b&gt; &amp;",
    '=== "tab"',
    "`` `[x](javascript:alert(1))`",
    "``~~s~~`[a](javascript:x)`````",
    '`" src="x`',
]
ALIVE = ("<img", "<script", "<b>", "<em", "<strong", "<a ", "<h1", "<li", "<pre")


# Of what records hold and Markdown reads, and words between.
PIECES = [
    *"`[]()!*_~<>&|{}:#-+=^$\\\"' \n",
    *("``", "```", " ` ", "](javascript:x)", "![", "<b>", "<!--", "--8<--", "#!py "),
    *("{: .x }", "{{", "{%", "\\(", "[^1]", "[TOC]", "https://x.org", "a", "b_c", "2"),
]


@cache
def converter() -> markdown.Markdown:
    """What makes the site's pages: its extensions, and the ones that MkDocs adds."""
    with open(ROOT / "mkdocs.yml", encoding="utf-8") as file:
        listed = yaml_load(file)["markdown_extensions"]
    known = [x if isinstance(x, dict) else {x: {}} for x in listed]
    options = {name: given for each in known for name, given in each.items()}
    return markdown.Markdown(
        extensions=["fenced_code", *options], extension_configs=options
    )


def html_of(text: str) -> str:
    return converter().reset().convert(text)


@pytest.mark.parametrize("text", LIVE)
def test_text_stays_text(text):
    shown = inert(text)
    assert "\n" not in shown and "--8<" not in shown and "{" not in shown
    page = html_of(f"Before {shown} after.")
    assert not [mark for mark in (*ALIVE, "arithmatex") if mark in page]
    assert page.count("<p>") == 1 and page.startswith("<p>Before ")


BLOCKS = [
    "::: systems.records",
    '=== "tab"',
    "!!! note",
    '??? note "x"',
    "# heading",
    "#heading",
    "- item",
    "+ item",
    "12. item",
    "1) item",
    "---",
    "~~~",
    "    indented",
    "\tindented",
]


@pytest.mark.parametrize("text", BLOCKS)
def test_text_that_begins_a_line_begins_no_block(text):
    shown = first(text)
    assert not shown.startswith((":::", "===", "!!!", "???"))
    page = html_of(shown)
    assert page.startswith("<p>") and page.endswith("</p>") and page.count("<") == 2


@pytest.mark.parametrize("text", ["1.5 ms", "-3 %", "+ 2", "1. 5"])
def test_a_number_that_begins_a_line_reads_as_before(text):
    page = unescape(html_of(first(text))).replace("\N{NO-BREAK SPACE}", " ")
    assert page == f"<p>{text}</p>"


@pytest.mark.parametrize("text", LIVE)
def test_a_cell_stays_a_cell(text):
    page = html_of(table(["head"], [[text], ["next"]]))
    assert page.count("<td") == 2 and not [mark for mark in ALIVE if mark in page]


@pytest.mark.parametrize("text", LIVE)
def test_a_label_stays_a_label(text):
    page = html_of(tabs([(text, "body"), ("next", "body")]))
    assert page.count("<label") == 2 and not [mark for mark in ALIVE if mark in page]


@pytest.mark.parametrize("text", LIVE)
def test_what_a_figure_says_stays_text(text):
    def draw(canvas):
        canvas.subplots().set_title(text)

    page = html_of(plot(committed("warmup"), "x", draw, text, text))
    assert page.count("<svg") == page.count("aria-label=") == 2
    assert page.count("<figcaption") == page.count("<strong>") == 1
    # Its number, and its data.
    assert page.count("<a ") == 2
    others = [mark for mark in ALIVE if mark not in ("<strong", "<a ")]
    assert not [mark for mark in others if mark in page]


def test_plain_words_and_code_are_printed_as_they_are():
    text = "fp32_in_fp16, 2 × 3 + 4 % (at most), `a_kernel(int)` · 1.5 GiB"
    assert inert(text) == text
    assert inert("`f<int>`") == "<code>f&#60;int&#62;</code>"
    assert inert(bold("a*")) == "**a&#42;**" and lines(["<", "b"]) == "&#60;<br>b"
    assert inert(Markup("<br>")) == "<br>"


# Arabic and Egyptian signs, which are seen.
SEEN = r"[\u0600-\u06ff\u070f\u0890-\u08e2\U000110bd-\U000110cd\U00013430-\U0001343f]"


@pytest.mark.parametrize("show", [inert, plain])
def test_what_can_not_be_seen_is_not_printed(show):
    """A name that is written from right to left would turn the line around."""
    assert show("A \u202eUPG\u2066\u200b B") == "A  UPG  B"
    for character in map(chr, range(sys.maxunicode + 1)):
        if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
            printed = show(f"a{character}b")
            assert printed == "a b" or re.match(SEEN, character), hex(ord(character))


class Seen(HTMLParser):
    """The elements of a page that differ from those of plain words and code, and what
    each paragraph or cell reads.
    """

    def __init__(self, page: str):
        super().__init__()
        self.odd: list[tuple] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        if tag in ("p", "td"):
            self.texts.append("")
        elif tag == "img":
            self.texts.append(dict(attrs)["alt"] or "")
        plain = {"src", "alt"} if tag == "img" else {"class"}
        # The frame of a table, and where the code in its cells may be broken.
        plain |= {"role", "tabindex", "aria-label"} if tag == "div" else set()
        kinds = ("p", "code", "span", "table", "thead", "tbody", "tr", "th", "td")
        kinds += ("div", "wbr")
        if tag not in (*kinds, "img") or {name for name, _ in attrs} - plain:
            self.odd.append((tag, attrs))

    def handle_data(self, data):
        if self.texts:
            self.texts[-1] += data


@pytest.fixture(scope="module")
def made_up() -> list[str]:
    """3000 texts that no one would write."""
    chance = random.Random(0)
    return [
        "".join(chance.choices(PIECES, k=chance.randrange(1, 25))) for _ in range(3000)
    ]


def words(text: str) -> str:
    """What a reader reads: without spaces, and without what marks code."""
    return re.sub(r"[\s`\x02\x03]|#!py", "", text)


@pytest.mark.parametrize(
    "of",
    [
        lambda texts: "\n\n".join(f"Says {inert(text)}" for text in texts),
        lambda texts: table(["head"], [[f"Says {text}"] for text in texts]),
        lambda texts: "\n\n".join(f"![Says {plain(text)}](a.svg)" for text in texts),
    ],
    ids=["sentence", "cell", "image"],
)
def test_whatever_is_written_is_what_is_read(of, made_up):
    seen = Seen(html_of(of(made_up)))
    assert not seen.odd
    # In a table, a hyphen in front of a number is a minus.
    told = (text.replace("\N{MINUS SIGN}", "-") for text in seen.texts)
    found = [words(text) for text in told if text.startswith("Says")]
    assert found == [words(f"Says {text}") for text in made_up]


OPENINGS = ["# ", "- ", "+ ", "* ", "1. ", "2. ", "    ", "> ", "!!! note ", '=== "x" ']
OPENINGS += ["??? ", "~~~", "```", "| ", "::: ", ": ", "___", "=== ", "<b>", "`a` ", ""]


@pytest.mark.parametrize("opening", OPENINGS)
def test_a_gpu_of_any_name_begins_a_line_of_text(opening, monkeypatch):
    monkeypatch.setattr("tools.render.markdown.age", lambda record: "fresh")
    gpu = Device(f"{opening}A GPU", "a-gpu", driver="1")
    page = html_of("\n\n" + provenance(make_record("warmup", device=gpu)))
    told = page.removeprefix('<p class="provenance">')
    seen = Seen(told)
    assert told != page and seen.odd[0][0] == "a" and len(seen.odd) == 1
    text = unescape(re.sub(r"<[^>]*>", "", told))
    assert words(text).startswith(words(f"{opening}A GPU · no commit"))


@pytest.mark.parametrize("text", LIVE)
def test_a_folder_of_any_name_is_named_where_its_record_is_missing(text):
    folder = text.replace("/", " ")
    page = html_of(note(Path(folder) / "warmup.json"))
    seen = Seen(page.replace("strong>", "code>"))
    assert not seen.odd and page.startswith('<p class="stale"')
    (told,) = seen.texts
    told = words(told)
    assert told.startswith("Missing:") and f"{words(folder)}/warmup.json" in told


def test_a_column_named_as_alike_is_a_sentence_where_all_lines_have_it():
    header = ["size", "context", "ms", "off", "remark"]
    lines = [[name, "512", f"{n}", "+0.0 %", ""] for n, name in enumerate("abcd")]
    # No column vanishes by itself: neither one of equal cells nor an empty one.
    assert table(header, lines).startswith("| size | context | ms | off | remark |\n")
    shown = table(header, lines, alike=["context", "ms", "off"])
    assert shown.startswith("| size | ms | remark |\n")
    assert shown.endswith("\n\nIn each line: *context* 512 · *off* 0.0 %.\n{ .below }")
    assert "below" not in table(header, lines[:1], alike=["context"])


def test_a_long_table_opens_with_its_telling_lines():
    lines = [["" if n < 3 else f"`{n}`", f"{n}"] for n in range(20)]
    telling = [n in (4, 9) for n in range(20)]
    page = html_of(table(["a", "b"], lines, telling=telling))
    rows = re.findall(r"<tr( class=\"rest\")?>", page)
    assert len(rows) == 21 and rows.count("") == 3
    assert page.count('type="checkbox"> All 20 rows') == 1 and "{:" not in page
    assert "checkbox" not in html_of(table(["a", "b"], lines[:8], telling=telling[:8]))
    assert "All 9 rows" in html_of(table(["a", "b"], lines[:9], telling=telling[:9]))
    of_items = columns(range(20), ("a", str), ("b", str), telling=(4).__eq__)
    assert html_of(of_items).count('class="rest"') == 19


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x64x8",
            "sm80 gemm f32 tn · 128x64x8",
        ),
        (
            "cutlass_80_simt_sgemm_256x128_8x4_nt_align1",
            "cutlass 80 sgemm nt · 256x128",
        ),
        (
            "nvjet_sm90_tst_96x128_64x6_2x1_v_bz_splitK_NNN",
            "nvjet sm90 splitK NNN · 96x128",
        ),
        ("DeviceRadixSortExclusiveSumKernel", "DeviceRadixSortExclusiveSumKernel"),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
        (
            "nll_loss_backward_reduce_cuda_kernel_2d",
            "nll_loss_backward_…cuda_kernel_2d",
        ),
    ],
)
def test_a_kernel_is_called_by_what_its_name_says(name, said):
    assert spoken(name).replace("\N{NO-BREAK SPACE}", " ") == said
    assert ("<summary>" in folded_name(name)) == (said != name)
    assert f"`{name}`" in folded_name(name)

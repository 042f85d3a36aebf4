"""Test the Markdown extension that post-processes the HTML of other extensions."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from markdown import Markdown
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort

from systems import ROOT
from tools.hooks import markup as hooks
from tools.hooks.maths import to_mathml


def convert_formula(tex: str, display: str = "inline") -> ElementTree.Element:
    return ElementTree.fromstring(to_mathml(tex, display))


def test_maths_is_converted_to_mathml() -> None:
    page = (
        r'<p>At <span class="arithmatex">\(a &lt; b\)</span> and</p>'
        '<div class="arithmatex">\\[\n\\sum_i x_i\n\\]</div><p><code>\\(x\\)</code></p>'
    )
    built = hooks.finish_page(page)
    math = '<math xmlns="http://www.w3.org/1998/Math/MathML"'
    assert f'<span class="arithmatex">{math} display="inline"' in built
    assert f'aria-label="Formula">{math} display="block"' in built
    assert r"<code>\(x\)</code>" in built
    assert built.count("\\(") == 1 and "\\[" not in built


def test_signs_and_function_names_have_their_spacing() -> None:
    def spacing(tex: str) -> list[tuple[str, str]]:
        return [
            (part.tag.partition("}")[2], part.get("form", part.get("rspace", "")))
            for part in convert_formula(tex).iter()
            if part.text in ("lse", "∞", "−", "max", "log")
        ]

    sign, name, applied = ("mo", "prefix"), ("mi", ""), ("mo", "0.17em")
    assert spacing(r"m = -\infty") == [sign, name]
    assert spacing(r"(-\infty - \operatorname{lse})") == [sign, name, ("mo", ""), name]
    assert spacing(r"\max(m, \max_j s_j) + \log l") == [("mo", "0"), applied, applied]


@pytest.mark.parametrize(
    "tex",
    [
        r"I = \frac{4BHN^2d}{\text{bytes}}",
        r"\operatorname{softmax}\left(QK^\top/\sqrt{d}\right)V",
        r"P_{ij} = e^{s_{ij} - \ell_i}, \quad \ell_i = \log\sum_{j=1}^{N} e^{s_{ij}}",
        r"dS = P \odot (dP - \mathbf{D}\mathbf{1}^\top)",
        r"\mathbb{R}^{N \times d} \ni \tilde{x} \approx 10\,\% \le \lceil N/B \rceil",
        r"\begin{cases} 0 & j \le i \\ -\infty & \text{otherwise} \end{cases}",
        r"\frac{{a}}{{b}}",
    ],
)
def test_the_formulas_of_a_transformer_convert(tex: str) -> None:
    assert not set("\\&") & set("".join(convert_formula(tex).itertext()))


@pytest.mark.parametrize(
    "tex",
    [r"\softmax(x)", r"\frac{a", r"\frac{a}", r"a & b", r"\left( a", "a}", "x_"]
    + [r"\begin{nope} a \end{nope}", r"\overset{a}", r"\underset{a}"],
)
def test_unconvertible_formula_raises(tex: str) -> None:
    escaped = tex.replace("&", "&amp;")
    with pytest.raises(ValueError) as error:
        hooks.finish_page(rf'<span class="arithmatex">\({escaped}\)</span>')
    assert f"`{tex}`" in str(error.value)


def build_page(root: Path, text: str, settings: str) -> None:
    """Build a site of one page with these settings of MkDocs."""
    (root / "docs").mkdir()
    (root / "docs/index.md").write_text(text)
    (root / "mkdocs.yml").write_text(f"site_name: Guide\n{settings}")
    build(load_config(str(root / "mkdocs.yml")))


def test_unknown_fact_is_a_warning(tmp_path):
    _, _, macros = (ROOT / "mkdocs.yml").read_text("utf-8").partition("  - macros:")
    own = "strict: true\nplugins:\n  - macros:" + macros.partition("\n\n")[0]
    with pytest.raises(Abort, match="in strict mode"):
        build_page(tmp_path, "{$ facts.x $}", own)


def test_wrong_formula_names_its_page(tmp_path, caplog):
    used = f"  - pymdownx.arithmatex: {{generic: true}}\n  - {hooks.__name__}\n"
    with pytest.raises(ValueError, match="`x_`"):
        build_page(tmp_path, r"It is \(x_\).", f"markdown_extensions:\n{used}")
    assert "'index.md'" in caplog.text


def test_whole_page_gets_numbers_tooltips_and_maths() -> None:
    extensions = ["tables", "abbr", "pymdownx.arithmatex", hooks.__name__]
    options = {"pymdownx.arithmatex": {"generic": True}}
    page = Markdown(extensions=extensions, extension_configs=options).convert(
        "A tile of $x$, a tile.\n\n| a | b |\n| --- | ---: |\n| 1 | 2 |\n\n"
        '<figure id="mine">\n<figcaption>Seen.</figcaption>\n</figure>\n\n'
        '<figure class="b">\n<figcaption markdown>B.</figcaption>\n</figure>\n\n'
        "<figure>\n<img>\n</figure>\n\n*[tile]: A block."
    )
    assert page.count("<abbr") == 1 and "<math" in page
    assert 'class="table-frame"' in page
    # A figure with a caption has a number and an anchor.
    assert page.count("Figure") == 2 and '<figure id="figure-2" class="b">' in page
    assert 'href="#mine">Figure\N{NO-BREAK SPACE}1.</a> Seen.' in page
    assert 'href="#figure-2">Figure\N{NO-BREAK SPACE}2.</a> B.' in page


HEADS = "<th>size</th><th>forward <em>(ms)</em></th>"
TABLE = f"<table>\n<thead><tr>{HEADS}</tr></thead></table>"


def test_pictures_in_tabs_stay_unchanged() -> None:
    page = (
        '=== "H200"\n\n    <figure>\n    <svg class="plot">\n    <text>*a*</text>\n'
        '    </svg>\n    </figure>\n\n```html\n<svg class="code"></svg>\n```\n'
    )
    names = ["pymdownx.superfences", "pymdownx.tabbed", "tools.hooks.markup"]
    md = Markdown(extensions=names)
    text = md.convert(page)
    assert '<svg class="plot">\n<text>*a*</text>\n</svg>' in md.htmlStash.rawHtmlBlocks
    assert text.count("<text>*a*</text>\n</svg>") == 1
    # A figure's source in a code block is unchanged.
    assert '<svg class="code"' not in text and "&lt;" in text


def frame_tables(page: str) -> str:
    return hooks.frame_tables(page).replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize("head", ["size", "model", "step"])
def test_sizes_renamed_in_2026_get_a_tooltip(head: str) -> None:
    sizes = ("large", "xl, fp32", "2.7B, fp32")
    rows = "".join(f"<tr><td>{s}</td></tr>" for s in sizes)
    framed = frame_tables(f"<table><tr><th>{head}</th></tr>{rows}</table>")
    assert '<abbr title="CS336 of 2026 calls this size xl.">2.7B</abbr>' in framed
    assert framed.count("<abbr") == 2 and 'data-sort="5"' in framed
    assert "<abbr" not in frame_tables(f"<table><tr><th>name</th></tr>{rows}</table>")


def test_tables_get_a_frame_number_and_label() -> None:
    framed = frame_tables(f'<p class="caption">Time &amp; "memory".</p>\n{TABLE}')
    assert framed.startswith(
        '<p class="caption" id="table-1"><a class="number" href="#table-1">'
        "Table 1.</a> <strong>Time &amp; "
    )
    assert 'aria-label="Table 1. Time &amp; &quot;memory&quot;."' in framed
    assert '<div class="table-frame" role="region" tabindex="0" ' in framed
    assert '<table class="data">' in framed and framed.endswith("</table></div>")


@pytest.mark.parametrize(
    ("caption", "bold"),
    [
        ("Ours loses at 1.05 of it.", "Ours loses at 1.05 of it."),
        ("What it is. How it is read.", "What it is."),
        ("It is <code>a. b</code> here. More.", "It is <code>a. b</code> here."),
        ("<strong>Given.</strong> More.", "Given."),
        ("No sentence", ""),
    ],
)
def test_first_sentence_of_a_caption_is_bold(caption: str, bold: str) -> None:
    framed = frame_tables(f'<p class="caption">{caption}</p>{TABLE}')
    assert "".join(re.findall("<strong>(.*?)</strong>", framed)) == bold


FOLD, CAPTION = "<details><summary>{}</summary>\n{}</details>", '<p class="caption">'
UNNAMED = "Table: size, forward (ms)"
LABELS = {
    # A fold's title is the caption of its table, unless other text comes first.
    FOLD.format("Every row", TABLE): ["Table 1. Every row"],
    FOLD.format("Why?", f"<p>So:</p>{TABLE}"): [UNNAMED],
    FOLD.format("Plots", '<div class="tabbed-set"><figure>') + TABLE: [UNNAMED],
    FOLD.format("Claims", '<div class="tabbed-set"></div>') + TABLE: [UNNAMED],
    # Tabs of several GPUs share the caption above them.
    f'{CAPTION}A</p><div class="tabbed-set">{TABLE}<p class="provenance">GPU</p>'
    f"{TABLE}</div>{CAPTION}B</p>{TABLE}": [*2 * ["Table 1. A"], "Table 2. B"],
    # A caption before other text does not belong to the table.
    f"{CAPTION}Far</p><p>text</p>{TABLE}": [UNNAMED],
    f"{CAPTION}Far</p><h2>B</h2>{TABLE}": [UNNAMED],
}


@pytest.mark.parametrize("page", LABELS)
def test_tables_are_labelled_by_their_caption(page: str) -> None:
    assert re.findall('aria-label="([^"]*)"', frame_tables(page)) == LABELS[page]


KINDS = {
    "r": ["128|1,024", "8.60 ± 0.17|out of memory|", "2.7e-05|0", "204 / 125|128"]
    + ["12 %|−0.5 %|~80\u202f%", "1.05 to 1.10|3 of 9|0.92×", "512|512|hidden"]
    + ["14.1|2.53 (+0.1 %)|8.60 ± 0.17|not measured"]
    + ["62.69|51.81|out of memory, needs 195.2 GiB"]
    + ["350|not within 1,000|not within 10,000"],
    "t": ["1, 16, 16384, 64, causal", "at the start of the backward pass|4"],
    "": ["small|2.7B", "yes|no", "out of memory", "N|2 N|N (N + 3) / 2"],
}


@pytest.mark.parametrize("kind", KINDS)
def test_content_decides_the_class_of_a_column(kind: str) -> None:
    columns = [column.split("|") for column in KINDS[kind]]
    assert [cells for cells in columns if hooks.column_class(cells) != kind] == []


def test_numbers_and_units_are_typeset() -> None:
    cells = ["3072 <em>-1024.5</em>", "<code>-1024 ms</code>", "10,240", "0.0001", "7"]
    rows = "".join(f"<tr><td>{cell}</td><td>x</td></tr>" for cell in ["1", *cells])
    built = hooks.finish_page(
        f"<table><tr><th>n</th><th></th></tr>{rows}</table>"
        '<p title="5 ms">Took 5 ms of 2048 tokens, 7 % more, 3 steps.</p>'
    )
    assert '<td class="r">3,072 <em>\N{MINUS SIGN}1,024.5</em></td>' in built
    assert "<code>-1024 ms</code>" in built and ">0.0001<" in built
    space = "\N{NO-BREAK SPACE}"
    assert f">Took 5{space}ms of 2048 tokens, 7{space}% more, 3 steps.<" in built
    assert 'title="5 ms"' in built
    # An empty header cell is no header.
    assert '<th class="r key"><span>n</span></th><td></td>' in built


def test_column_alignment_follows_all_cells() -> None:
    """Cells decide how a column is aligned; Markdown's alignment marks row headers."""
    left, right = (f' style="text-align: {side};"' for side in ("left", "right"))
    framed = hooks.frame_tables(
        f"<table><thead><tr><th{left}>size</th><th{left}>context</th>"
        f"<th{right}>where</th></tr></thead><tbody>"
        f"<tr><td{left}>2.7B</td><td{left}>128</td><td{right}>at the start of</td></tr>"
        f"<tr><td{left}>small</td><td{left}>1 ± 2</td><td{right}>the backward pass, "
        "<code>a.b_c</code></td></tr></tbody></table>"
    )
    assert '<th class="key"><span>size</span></th><th class="r key"><span>' in framed
    assert '<th class="t"><span>where</span></th>' in framed
    assert '<td data-sort="5"><abbr' in framed and "2.7B</abbr></td>" in framed
    assert '</td><td class="r">128</td>' in framed
    assert '<td data-sort="1">small</td><td class="r">1 <small>± 2</small>' in framed
    assert '<td class="t">the backward pass, <code>a.<wbr>b_<wbr>c</code>' in framed
    assert "style" not in framed


def test_shapes_sort_by_length_and_groups_have_rules() -> None:
    heads = [hooks.SHAPES, "ours, ms", "ours, GB", "both", "SDPA, ms", "SDPA, GB"]
    cells = ["4k · d 64 · causal · 16 heads", *"12345"]
    page = "".join(
        f"<tr>{''.join(f'<{tag}>{text}</{tag}>' for text in texts)}</tr>"
        for tag, texts in (("th", heads), ("td", cells))
    )
    framed = hooks.finish_page(f"<table>{page}</table>")
    assert '<td class="t line" data-sort="4096">4k · d 64' in framed
    assert hooks.cell_sort_key(hooks.SHAPES, "2,000 · d 128 · causal · 8 heads") == 2000
    ruled = re.findall(r'<t[hd] class="[^"]*\bgroup">(?:<span>)?([^<]+)<', framed)
    assert ruled == ["ours, ms", "SDPA, ms", "1", "4"]
    others = ["size", "forward, ms", "forward, kept", "both"]
    assert hooks.find_group_starts(others) == set()


def test_a_word_has_one_tooltip_per_section():
    word = '<abbr title="A queue.">stream</abbr>'
    built = hooks.dedupe_tooltips(
        f"<h2>A {word}</h2><p>{word}, {word}</p><p><a href='x'>{word}</a></p>"
        f'<h2>B</h2><p class="provenance">{word}</p><details><p>{word}</p></details>'
        f"<p>{word}</p>"
    )
    assert built == (
        f"<h2>A stream</h2><p>{word}, stream</p><p><a href='x'>stream</a></p>"
        f'<h2>B</h2><p class="provenance">stream</p><details><p>{word}</p></details>'
        f"<p>{word}</p>"
    )

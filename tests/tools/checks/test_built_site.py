"""Test the checker of the built site on small sites with one fault each."""

from pathlib import Path

import pytest

from tools.checks import built_site

PAGE = """<!doctype html><html><head><title>t</title>{head}</head>
<body><a href="index.html">home</a>
<article><h1 id="top">Title</h1>{body}</article></body></html>"""

CLEAN = r"""
<h2 id="a">A</h2>
<p>Costs $5, a set {a}, a list [1, 2] and <code>{{ x }} \( === "a" [x][y]</code>.</p>
<p><a href="other.html#there">other</a>
<a href="https://example.org/paper">paper</a> <a href="#a">up</a>
<a href="other.html#size=xl&amp;context=2048">set up</a></p>
<p><a href="results/h200.json">record</a>
<img src="fig.svg#only-light" alt="It grows"></p>
<pre><code>x = "--8&lt;"</code></pre>
<p><math alttext="\frac{{a}}{b}"><mi>a</mi><mo>&lt;</mo><mi>b</mi></math></p>
<table><thead><tr><th>n</th></tr></thead>
<tbody><tr><td>[0, 1]</td><td>[2]</td></tr></tbody></table>
<h3>B</h3><h2>C</h2>
"""


def findings(root: Path, body: str, head: str = "") -> list[str]:
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg"><use href="#p" fill="url(#c)"/></svg>'
    )
    files = {
        "results/h200.json": "{}",
        "fig.svg": svg,
        "index.html": PAGE.format(head=head, body=body),
        "other.html": PAGE.format(head="", body='<h2 id="there">There</h2>'),
        # The theme uses absolute addresses on the 404 page.
        "404.html": '<script src="/a.js"></script><body><h3>No</h3></body>',
    }
    (root / "results").mkdir()
    for name, text in files.items():
        (root / name).write_text(text, encoding="utf-8")
    return built_site.check_site(built_site.Site(root))


def test_correct_site_has_no_findings(tmp_path, capsys):
    head = '<link rel="canonical" href="https://e.org/">'
    assert findings(tmp_path, CLEAN, head) == []
    assert built_site.main([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "3 pages checked, no findings\n"


IN_TEXT = {
    '<p>--8&lt;-- "systems/a.py:x"</p>': "snippet marker left as text: ",
    "<pre><i>--</i><i>8</i><i>&lt;--</i></pre>": "snippet marker left as text: ",
    "<pre>{$ facts.a.b $}</pre>": "template variable left as text: ",
    "<p>{{ x</p>": "template mark left as text: ",
    "<p>\\(N^2\\)</p>": "maths delimiter left as text: ",
    "<p>\\[ N</p>": "maths delimiter left as text: ",
    '<p>\n=== "H200"</p>': "tab or admonition mark left as text: ",
    "<p>\n!!! note</p>": "tab or admonition mark left as text: ",
    "<p>\n??? question</p>": "tab or admonition mark left as text: ",
    "<p>x[^1]</p>": "undefined footnote: ",
    "<div>[x](setup.md)</div>": "Markdown link left as text: ",
    "<p>Table 1.{ .caption }</p>": "attribute list left as text: ",
    # A finding quotes the surrounding text.
    "<p>see the [page of <code>x</code>][nope] now</p>": (
        "undefined reference link: 'B C see the [page of \ufffc][nope] now'"
    ),
}
IN_ADDRESSES = {
    '<a href="nope.html">x</a>': "dead link: nope.html",
    '<a href="results/a100.json">x</a>': "dead link: results/a100.json",
    '<img alt="x" src="nope.svg#only-dark">': "dead link: nope.svg#only-dark",
    '<a href="results/">x</a>': "dead link: results/ (a folder; name its index.html)",
    '<a href="other.html#nope">x</a>': "dead anchor: other.html#nope",
    '<a href="#nope">x</a>': "dead anchor: #nope",
    '<a href="/index.html">x</a>': "absolute path, dead when read from a file: /index",
    '<a href="../x.html">x</a>': "points out of the site: ../x.html",
    '<a href="file:///tmp/x">x</a>': "address of one machine: file:///tmp/x",
    '<img alt="x" src="https://e.org/x">': "fetched from another host: https://e.org/x",
    '<img alt="x" srcset="//e.org/x 2x">': "fetched from another host: //e.org/x",
    '<iframe src="https://e.org"></iframe>': "fetched from another host: https://e.org",
}
IN_STRUCTURE = {
    "<pre><code>\n</code></pre>": "empty code block",
    '<h2 id="top">A</h2>': "id 'top' occurs 2 times",
    '<pre class="mermaid">a</pre>': "class 'mermaid' makes the theme fetch a library",
    "<table><tr><td>1</td></tr></table>": "table without header cells: '1'",
    '<div class="tabbed-labels"><label>A</label><label>A</label></div>': (
        "two sets of tabs became one, without text between them: A, A"
    ),
}
FAULTS = IN_TEXT | IN_ADDRESSES | IN_STRUCTURE


@pytest.mark.parametrize("body", FAULTS)
def test_faults_in_a_page_are_found(tmp_path, body):
    found = findings(tmp_path, CLEAN + body)
    assert found and all(one.startswith(f"index.html: {FAULTS[body]}") for one in found)


@pytest.mark.parametrize(
    ("head", "finding"),
    [
        ('<script src="https://e.org/x"></script>', "fetched from another host: https"),
        ('<link rel="stylesheet" href="//e.org/x">', "fetched from another host: //e"),
        ('<link rel="preconnect" href="https://e">', "fetched from another host: http"),
        ('<link rel="stylesheet" href="nope.css">', "dead link: nope.css"),
    ],
)
def test_faults_in_a_head_are_found(tmp_path, head, finding):
    (found,) = findings(tmp_path, CLEAN, head)
    assert found.startswith(f"index.html: {finding}")


def test_findings_are_printed_once_with_their_page(tmp_path, capsys):
    findings(tmp_path, 2 * '<a href="nope.html">x</a>' + "<pre></pre>")
    assert built_site.main([str(tmp_path)]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "index.html: empty code block",
        "index.html: dead link: nope.html",
        "3 pages checked, 2 findings",
    ]


@pytest.mark.parametrize("folder", ["missing", "."])
def test_missing_pages_give_a_remedy(tmp_path, folder, capsys):
    assert built_site.main([str(tmp_path / folder)]) == 2
    remedy = "no pages to check; build them first with `mkdocs build --strict`"
    assert remedy in capsys.readouterr().err

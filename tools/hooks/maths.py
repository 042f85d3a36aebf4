"""Convert the maths of a page to MathML, which needs no script and no font. A formula
that can't be converted fails the build.
"""

import html
import re
from collections import Counter
from itertools import zip_longest
from xml.etree import ElementTree

from latex2mathml.converter import convert

MATHML = "{http://www.w3.org/1998/Math/MathML}"
# The number of children that MathML demands. latex2mathml turns `\frac{a` into a
# fraction with one.
CHILDREN = dict.fromkeys(("mfrac", "mroot", "msub", "msup", "munder", "mover"), 2) | {
    "msubsup": 3,
    "munderover": 3,
}

# The output of pymdownx.arithmatex with `generic: true`. Code samples hold this text
# only in escaped form.
INLINE_MATHS = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
DISPLAY_MATHS = re.compile(
    r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL
)
# Long formulas scroll sideways, by keyboard too.
DISPLAY_FRAME = (
    '<div class="arithmatex" role="group" tabindex="0" aria-label="Formula">'
)
BRACE = re.compile(r"(?<!\\)[{}]")


def convert_maths(page_html: str) -> str:
    """Replace every arithmatex element by MathML inside the same element."""

    def display(match: re.Match[str]) -> str:
        return f"{DISPLAY_FRAME}{to_mathml(html.unescape(match[1]), 'block')}</div>"

    def inline(match: re.Match[str]) -> str:
        math = to_mathml(html.unescape(match[1]), "inline")
        return f'<span class="arithmatex">{math}</span>'

    return INLINE_MATHS.sub(inline, DISPLAY_MATHS.sub(display, page_html))


def to_mathml(tex: str, display: str) -> str:
    """Return a formula as MathML, with its source in `alttext`. Raise ValueError if it
    can't be converted.

    latex2mathml copies unknown commands instead of raising an error, so its output is
    parsed and checked.
    """
    tex = " ".join(tex.split())
    braces = Counter(BRACE.findall(tex))
    if braces["{"] != braces["}"]:
        raise ValueError(f"unbalanced braces in the formula `{tex}`")
    # latex2mathml knows `split` but not `aligned`, its name inside a formula.
    source = re.sub(r"\\(begin|end)\{aligned\}", r"\\\1{split}", tex)
    try:
        root = ElementTree.fromstring(convert(source, display=display))
    except Exception as error:
        # The library's errors have no common base class, and with a stray & its output
        # is not XML.
        raise ValueError(
            f"can't convert the formula `{tex}` ({type(error).__name__})"
        ) from error
    for element in root.iter():
        name = element.tag.removeprefix(MATHML)
        if "\\" in (element.text or ""):
            raise ValueError(f"unknown command `{element.text}` in the formula `{tex}`")
        if name == "merror" or len(element) != CHILDREN.get(name, len(element)):
            size = f"<{name}> with {len(element)} parts"
            raise ValueError(f"the formula `{tex}` is incomplete ({size})")
    if sum(1 for _ in root.iter(f"{MATHML}mtable")) < source.count(r"\begin"):
        raise ValueError(f"unknown environment in the formula `{tex}`")
    set_spacing(root)
    root.set("alttext", tex)
    ElementTree.register_namespace("", MATHML.strip("{}"))
    return ElementTree.tostring(root, encoding="unicode")


# Names in our formulas that \operatorname marks as operators but that are quantities.
NAMED = ("lse", "rowsum")


def set_spacing(root: ElementTree.Element) -> None:
    """Correct the space around operators: none around infinity and names like lse, some
    between max or log and its argument, and none after a minus that is a sign.
    """
    for parent in root.iter():
        before = None
        for part, after in zip_longest(parent, parent[1:]):
            text = part.text or ""
            if text in ("max", "log"):
                tight = after is None or next(after.itertext(), "") == "("
                part.tag = f"{MATHML}mo"
                part.attrib |= {"lspace": "0", "rspace": "0" if tight else "0.17em"}
            elif part.tag == f"{MATHML}mo" and text == "−":
                if before is None or is_prefix(before):
                    part.set("form", "prefix")
            elif part.tag == f"{MATHML}mo" and (text == "∞" or text in NAMED):
                part.tag = f"{MATHML}mi"
            before = part


def is_prefix(part: ElementTree.Element) -> bool:
    """Return whether a minus after this element is a sign, as after a parenthesis or
    another operator.
    """
    return part.tag == f"{MATHML}mo" and part.text not in (")", "]", "}", "⊤")

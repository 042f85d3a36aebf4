"""Maths of a page as MathML, so it needs no script and no font to show it; a formula
that can't be converted fails the build.
"""

import html
import re
from collections import Counter
from itertools import zip_longest
from xml.etree import ElementTree

from latex2mathml.converter import convert

MATHML = "{http://www.w3.org/1998/Math/MathML}"
# How many children MathML demands; latex2mathml turns `\frac{a` into a fraction with
# one.
CHILDREN = dict.fromkeys(("mfrac", "mroot", "msub", "msup", "munder", "mover"), 2) | {
    "msubsup": 3,
    "munderover": 3,
}

# The exact output of pymdownx.arithmatex with `generic: true`. In code samples the same
# text is escaped.
INLINE_MATHS = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
DISPLAY_MATHS = re.compile(
    r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL
)
# Long formulas scroll sideways as tables do, and by keyboard too.
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
    """One formula as MathML, with its source in `alttext`.

    latex2mathml prints what it does not know instead of raising, so its output is
    parsed and looked through.
    """
    tex = " ".join(tex.split())
    braces = Counter(BRACE.findall(tex))
    if braces["{"] != braces["}"]:
        raise ValueError(f"unbalanced braces in the formula `{tex}`")
    # It knows split but not aligned, which is what a formula of several lines is called
    # inside maths.
    source = re.sub(r"\\(begin|end)\{aligned\}", r"\\\1{split}", tex)
    try:
        root = ElementTree.fromstring(convert(source, display=display))
    except Exception as error:
        # The library has no common base class for its errors, and a stray & makes its
        # output no XML.
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
    space(root)
    root.set("alttext", tex)
    ElementTree.register_namespace("", MATHML.strip("{}"))
    return ElementTree.tostring(root, encoding="unicode")


# Operators by their names in our formulas, which are numbers or functions.
NAMED = ("lse", "rowsum")


def space(root: ElementTree.Element) -> None:
    """Set the room around names and signs: infinity and a name like lse have none, a
    maximum or a logarithm has some before what it is taken of, and a minus in front of
    a number is its sign. To latex2mathml some of these are operators.
    """
    for parent in root.iter():
        before = None
        for part, after in zip_longest(parent, parent[1:]):
            text = part.text or ""
            if text in ("max", "log"):
                opens = after is None or next(after.itertext(), "") == "("
                part.tag = f"{MATHML}mo"
                part.attrib |= {"lspace": "0", "rspace": "0" if opens else "0.17em"}
            elif part.tag == f"{MATHML}mo" and text == "−":
                if before is None or opening(before):
                    part.set("form", "prefix")
            elif part.tag == f"{MATHML}mo" and (text == "∞" or text in NAMED):
                part.tag = f"{MATHML}mi"
            before = part


def opening(part: ElementTree.Element) -> bool:
    """What no minus can take something from."""
    return part.tag == f"{MATHML}mo" and part.text not in (")", "]", "}", "⊤")

"""Convert a page's formulas to MathML, which needs no script and no font."""

import html
import re
from collections import Counter
from itertools import zip_longest
from xml.etree import ElementTree

from latex2mathml.converter import convert

MATHML = "{http://www.w3.org/1998/Math/MathML}"
# Elements that need two children. latex2mathml turns the incomplete formula `\frac{a}`
# into a fraction with one child.
PAIRS = ("mfrac", "mover", "munder")

# Matches a formula in the output of pymdownx.arithmatex with `generic: true`.
MATHS = re.compile(
    r'<(span|div) class="arithmatex">\s*\\[(\[](.*?)\\[)\]]\s*</\1>', re.DOTALL
)
# The frame takes keyboard focus, so that keys scroll long formulas sideways.
DISPLAY_FRAME = (
    '<div class="arithmatex" role="group" tabindex="0" aria-label="Formula">'
)
BRACE = re.compile(r"(?<!\\)[{}]")
# Names in \operatorname that are quantities: MathML would space them as operators.
NAMED = ("lse", "rowsum")


def convert_maths(page_html: str) -> str:
    """Replace the TeX source in each arithmatex element by MathML."""

    def convert_formula(match: re.Match[str]) -> str:
        tag, tex = match[1], html.unescape(match[2])
        if tag == "div":
            return f"{DISPLAY_FRAME}{to_mathml(tex, 'block')}</div>"
        return f'<span class="arithmatex">{to_mathml(tex, "inline")}</span>'

    return MATHS.sub(convert_formula, page_html)


def to_mathml(tex: str, display: str) -> str:
    """Convert TeX to MathML; `display` is "inline" or "block". Raise ValueError if that
    fails: the output is checked, because latex2mathml copies unknown commands.
    """
    tex = " ".join(tex.split())
    braces = Counter(BRACE.findall(tex))
    if braces["{"] != braces["}"]:
        raise ValueError(f"unbalanced braces in the formula `{tex}`")
    # latex2mathml does not know `aligned`, but the equivalent `split`.
    source = re.sub(r"\\(begin|end)\{aligned\}", r"\\\1{split}", tex)
    try:
        root = ElementTree.fromstring(convert(source, display=display))
    except Exception as error:
        # Catch all errors: latex2mathml's have no base class, and a stray & breaks XML.
        raise ValueError(
            f"can't convert the formula `{tex}` ({type(error).__name__})"
        ) from error
    for element in root.iter():
        if "\\" in (element.text or ""):
            raise ValueError(f"unknown command `{element.text}` in the formula `{tex}`")
        if element.tag.removeprefix(MATHML) in PAIRS and len(element) != 2:
            raise ValueError(f"the formula `{tex}` is incomplete")
    if sum(1 for _ in root.iter(f"{MATHML}mtable")) < source.count(r"\begin"):
        raise ValueError(f"unknown environment in the formula `{tex}`")
    set_spacing(root)
    root.set("alttext", tex)
    ElementTree.register_namespace("", MATHML.strip("{}"))
    return ElementTree.tostring(root, encoding="unicode")


def set_spacing(root: ElementTree.Element) -> None:
    """Correct the spacing of names, infinity and minus signs in a formula."""
    for parent in root.iter():
        before = None
        for part, after in zip_longest(parent, parent[1:]):
            text = part.text or ""
            if text in ("max", "log"):
                tight = after is None or next(after.itertext(), "") == "("
                part.tag = f"{MATHML}mo"
                part.attrib |= {"lspace": "0", "rspace": "0" if tight else "0.17em"}
            elif part.tag == f"{MATHML}mo" and text == "−":
                if before is None or makes_minus_unary(before):
                    part.set("form", "prefix")
            elif part.tag == f"{MATHML}mo" and (text == "∞" or text in NAMED):
                part.tag = f"{MATHML}mi"
            before = part


def makes_minus_unary(part: ElementTree.Element) -> bool:
    """Return whether a minus sign after this element negates a term, as after "="."""
    return part.tag == f"{MATHML}mo" and part.text not in (")", "]", "}", "⊤")

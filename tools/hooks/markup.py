"""An extension of Markdown: what the others leave undone, once a page is HTML.

Figures are numbered, and each has an address. Maths becomes MathML. Tables get a frame
that scrolls sideways and can be reached by keyboard. Words of the glossary are
explained once in a section.

All of it is from text to text, so any builder of sites that takes extensions of
Markdown does it.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Callable
from itertools import accumulate, count, groupby

from markdown import Extension, Markdown
from markdown.postprocessors import Postprocessor
from markdown.preprocessors import Preprocessor

from systems.model.sizes import SIZES
from tools.hooks.maths import convert_maths
from tools.render.editions import EXPLAINED

# Tables of the tables extension have no class. A caption is a paragraph with the class,
# above one table or above tabs that show it of several GPUs. The title of a fold is the
# caption of the table or tabs that stand first in it; in one that holds nothing but
# tables, what they are may be said in between, or in a caption, which has no number.
CAPTION_OR_TABLE = re.compile(
    r'<p class="caption">(?P<caption>.*?)</p>'
    r"|(?P<fold><summary>)(?P<title>(?:(?!</summary>).)*)(?P<folded></summary>\s*"
    r'(?:<p class="stale">(?:(?!</p>).)*</p>\s*)?)(?=<table>|<div class="tabbed-set)'
    r'|(?P<every><details class="abstract">\s*<summary>)(?P<all>(?:(?!</summary>).)*)'
    r'(?P<said></summary>\s*(?:<p(?: class="stale")?>(?:(?!</p>).)*</p>\s*)*)'
    r'(?:(?=<table>|<div class="tabbed-set)|(?P<inner><p class="caption">.*?</p>))'
    r"|<table>(?P<body>.*?)</table>"
    r"|(?P<end><h[1-6]|<p>|<summary>)",
    re.DOTALL,
)
# A figure with its caption.
FIGURE = re.compile(
    r"<figure(?P<attributes>[^>]*)>(?P<pictures>(?:(?!</figure>).)*?)"
    r"(?P<caption><figcaption[^>]*>)",
    re.DOTALL,
)
ADDRESS = re.compile(r'\bid="([^"]*)"')
# A word with its explanation; what must not hold one, because it does something itself
# or is only glanced at; and what is read apart from the text around it.
TOOLTIP = re.compile(r'<abbr title="(?P<title>[^"]*)">(?P<word>[^<]*)</abbr>')
TOOLTIP_OR_PART = re.compile(
    rf"{TOOLTIP.pattern}"
    r"|<(?P<tag>h[1-6]|a|summary|label|button|th|svg)\b.*?</(?P=tag)>"
    r'|<p class="(?:provenance|tag)">.*?</p>'
    r"|<(?P<aside>details|figure|table)\b(?P<inside>.*?</(?P=aside)>)",
    re.DOTALL,
)
# Up to the first full stop outside of markup.
SENTENCE = re.compile(r"(?:<(\w+)[^>]*>.*?</\1>|[^<])*?\.(?=\s|$)", re.DOTALL)
ROW = re.compile(r"<tr>(.*?)</tr>", re.DOTALL)
# What tools/render/markdown.py writes into a cell of a line that stands open only when
# asked.
REST = 'class="rest"'
CELL = re.compile(r"<(t[hd])([^>]*)>(.*?)</\1>", re.DOTALL)
TAG = re.compile(r"<[^>]+>")
# A listing of commands, and an option among them.
COMMANDS = re.compile(
    r'(<div class="language-console[^"]*"[^>]*><pre>(?:<span></span>)?<code>)'
    r"((?!<span class=\"line\">).*?)</code>",
    re.DOTALL,
)
OPTION = re.compile(r"(?<=[>\s])--?[a-z][\w-]*(?![^<]*>)")
# A number as tables print it, with what it may be about, its spread and its unit; and
# what stands where there is none.
DIGITS = r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?"
NUMBER = re.compile(
    rf"[~≈<>≤≥]?\s?[-−+]?{DIGITS}(?: (?:to|of|±|/) {DIGITS})?[\s\u202f]?[^\W\d]{{0,7}}"
    r"(?:/\w+)?[%×°]?(?: \([^()]{1,14}\))?"
)
NO_NUMBER = re.compile(
    r"[-–—]?|none|not .*|out of memory|unsupported|failed|no such .*", re.IGNORECASE
)
MINUS = re.compile(r"(?<![^\s(])-(?=\d)")
# The whole part of a number of four digits or more.
THOUSANDS = re.compile(r"(?<![\w.,#])\d{4,}(?![\w,])")
# Text, between tags and what is no prose.
TEXT = re.compile(
    r"<(pre|code|math|svg|script|style|textarea)\b.*?</\1>|<[^>]*>|(?P<text>[^<]+)",
    re.DOTALL,
)
PICTURE = re.compile(r"<svg class=.*?</svg>", re.DOTALL)
INDENTED = re.compile(r"^ +", re.MULTILINE)
# Between a number and its unit no line ends.
UNIT = re.compile(
    r"(?<=\d) (?=(?:%|[KMGT]i?B|[nµm]?s|min|[KMGTP]?FLOPs?|[kMG]?W|[kMG]?Hz|[mb]illion)"
    r"(?!\w))"
)
SPREAD = re.compile(r" (± [\d.]+|\([a-z]+\))")
# So many columns stand closer together.
DENSE = 7
# What a word of this length asks of a column: that it may be broken.
LONG = 22
# In code, a line may end behind these.
NAMES = re.compile(r"(<code>|<a [^>]*>)([^<]*)")
BREAKS = re.compile(r"(?<=[\w)])([._/])(?=\w)")


def finished(page_html: str) -> str:
    """Convert the maths of one page, frame its tables, number its figures, and thin out
    its tooltips.
    """
    text = convert_maths(few_tooltips(COMMANDS.sub(in_lines, page_html)))
    text = number_figures(frame_tables(text))
    return in_text(text, lambda said: UNIT.sub("\N{NO-BREAK SPACE}", said))


def in_text(page_html: str, changed: Callable[[str], str]) -> str:
    """What is read, changed; tags, code and maths as they are."""
    return TEXT.sub(
        lambda part: changed(part[0]) if part["text"] else part[0], page_html
    )


def in_lines(match: re.Match[str]) -> str:
    """Commands, each in a line of its own that a narrow page may continue below, with
    its options whole.
    """
    lines = match[2].removesuffix("\n").split("\n")
    if any(line.count("<span") != line.count("</span") for line in lines):
        return match[0]
    named = (OPTION.sub(r'<span class="option">\g<0></span>', line) for line in lines)
    told = "".join(f'<span class="line">{line}</span>\n' for line in named)
    return f"{match[1]}{told}</code>"


class Finish(Postprocessor):
    def run(self, text: str) -> str:
        return finished(text)


class Aside(Preprocessor):
    """Keeps pictures aside, as Markdown does with HTML outside of tabs: inside, each
    of its rules would search through all of them.
    """

    def run(self, lines: list[str]) -> list[str]:
        def keep(picture: re.Match[str]) -> str:
            return self.md.htmlStash.store(INDENTED.sub("", picture[0]))

        return PICTURE.sub(keep, "\n".join(lines)).split("\n")


class Finished(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        # After fragments are included and code is kept, before HTML is looked for.
        md.preprocessors.register(Aside(md), "aside", 24)
        # After all others, which put HTML back that they had kept aside.
        md.postprocessors.register(Finish(md), "finish", -100)


def makeExtension(**options: object) -> Finished:
    return Finished(**options)


def few_tooltips(page_html: str) -> str:
    """Explain a word where it first stands in a section. What a fold, a figure or a
    table explains, a reader of the text around it has not seen.
    """
    seen: set[str] = set()

    def kept(match: re.Match[str]) -> str:
        if match["aside"]:
            return f"<{match['aside']}{few_tooltips(match['inside'])}"
        if match["title"] is None:
            if match["tag"] == "h2":
                seen.clear()
            return TOOLTIP.sub(r"\2", match[0])
        if match["title"] in seen:
            return match["word"]
        seen.add(match["title"])
        return match[0]

    return TOOLTIP_OR_PART.sub(kept, page_html)


def number_figures(page_html: str) -> str:
    """Each caption begins with the number of its figure, which links to it."""
    numbers = count(1)

    def numbered(match: re.Match[str]) -> str:
        found, number = ADDRESS.search(match["attributes"]), next(numbers)
        address = found[1] if found else f"figure-{number}"
        opened = "" if found else f' id="{address}"'
        name = f"Figure\N{NO-BREAK SPACE}{number}."
        link = f'<a class="number" href="#{address}">{name}</a>'
        shown = f"<figure{opened}{match['attributes']}>{match['pictures']}"
        return f"{shown}{match['caption']}{link} "

    return FIGURE.sub(numbered, page_html)


# What Markdown writes into each cell of a column that is aligned left.
LEFT = "text-align: left;"


def frame_tables(page_html: str) -> str:
    """Number the tables of a page, and put each into a region that is focusable, named
    and scrolls.

    The class on the table also keeps the theme from adding its own frame, which no
    keyboard reaches.
    """
    numbers = count(1)
    alike: Counter[str] = Counter()
    caption = ""

    def framed(match: re.Match[str]) -> str:
        nonlocal caption
        if match["end"]:
            caption = ""
            return match[0]
        if match["body"] is not None:
            return framed_table(match["body"], caption, alike)
        number = next(numbers)
        said = match["caption"] or match["title"] or match["all"]
        name = f"Table\N{NO-BREAK SPACE}{number}."
        caption = f"{name} {text_of(said)}"
        if match["caption"] is None:
            opened = (match["fold"] or match["every"]).removesuffix("<summary>")
            rest = match["folded"] or f"{match['said']}{match['inner'] or ''}"
            return f'{opened}<summary id="table-{number}">{name} {said}{rest}'
        link = f'<a class="number" href="#table-{number}">{name}</a>'
        return f'<p class="caption" id="table-{number}">{link} {stressed(said)}</p>'

    return CAPTION_OR_TABLE.sub(framed, page_html)


def stressed(caption: str) -> str:
    """As those of figures: bold is the first sentence, and the rest how to read it."""
    sentence = SENTENCE.match(caption)
    if sentence is None or "<strong>" in caption:
        return caption
    return f"<strong>{sentence[0]}</strong>{caption[sentence.end() :]}"


def text_of(cell: str) -> str:
    return " ".join(html.unescape(TAG.sub("", cell)).split())


def framed_table(body: str, caption: str, alike: Counter[str]) -> str:
    """One table; those without a caption are numbered where they have the same heads.
    What columns hold decides how they stand: numbers right, short words on one line,
    long ones on several.
    """
    rows = [CELL.findall(row) for row in ROW.findall(body)]
    heads, *lines = [[text_of(cell) for *_, cell in row] for row in rows]
    kinds = [column_class(list(column)) for column in zip(*lines, strict=False)]
    # Shapes stand on one line where there is room for them.
    one_line = heads[:1] == [SHAPES] and len(heads) <= DENSE
    # The columns that Markdown aligns left name the line; if it aligns none, the first.
    keys = max(1, sum(LEFT in mark for _, mark, _ in rows[0]))

    groups = starts_of_groups(heads)

    def row(match: re.Match[str]) -> str:
        columns = count()
        cells = CELL.sub(lambda one: cell(one, next(columns)), match[1])
        mark = f" {REST}" if REST in match[1] else ""
        return f"<tr{mark}>{cells}</tr>"

    def cell(match: re.Match[str], at: int) -> str:
        tag, _, said = match.groups()
        kind = kinds[at] if at < len(kinds) else ""
        text = text_of(said)
        names = [kind] if kind else []
        names += ["key"] if tag == "th" and at < keys else []
        names += ["line"] if tag == "td" and at == 0 and one_line else []
        names += ["group"] if at in groups else []
        names += ["words"] if kind == "r" and tag == "td" and len(text) > LONG else []
        marks = f' class="{" ".join(names)}"' if names else ""
        if tag == "th":
            # What names nothing is no head. Words in a box take several lines, and
            # their column is no wider for it.
            return (
                f"<th{marks}><span>{said}</span></th>" if text else f"<td{marks}></td>"
            )
        if rank := sort_key_of(heads[at], text):
            marks += f' data-sort="{rank}"'
        if (size := size_of(heads[at], text)) in EXPLAINED:
            named = f'<abbr title="{EXPLAINED[size]}">{size}</abbr>'
            said = said.replace(size, named, 1)
        said = in_text(said, lambda told: MINUS.sub("\N{MINUS SIGN}", told))
        if kind == "r":
            said = in_text(said, in_thousands)
            said = SPREAD.sub(r" <small>\1</small>", said)
        return f"<td{marks}>{breakable(said) if kind == 't' else said}</td>"

    more = f" and {len(heads) - 4} more columns" if len(heads) > 4 else ""
    named = ", ".join(filter(None, heads[:4]))
    if not (label := caption):
        label = f"Table: {named}{more}"
        alike[label] += 1
        label += f" ({alike[label]})" if alike[label] > 1 else ""
    region = f'role="region" tabindex="0" aria-label="{html.escape(label)}"'
    look = "data dense" if len(heads) >= DENSE else "data"
    return (
        f'<div class="table-frame" {region}>'
        f'<table class="{look}">{ROW.sub(row, body)}</table></div>'
        f"{ALL.format(len(lines)) if REST in body else ''}"
    )


# Opens what the table above does not show, without a script.
ALL = '<p class="all"><label><input type="checkbox"> All {} rows</label></p>'


def in_thousands(text: str) -> str:
    return THOUSANDS.sub(lambda found: f"{int(found[0]):,}", text)


# The sizes of the model, from the smallest on: their names sort otherwise.
ORDER = {size: place for place, size in enumerate(SIZES, start=1)}

# Shapes of attention: among them the length is what one looks for.
SHAPES = "tokens · d · mask · heads"
TOKENS = re.compile(r"([\d,]+)(k?)")

# A size may be followed by what else names a step.
SIZE = re.compile(r"[^,\s]+")


def size_of(head: str, text: str) -> str:
    """The size that a cell names, or nothing."""
    found = SIZE.match(text) if head in ("size", "model", "step") else None
    return found[0] if found and found[0] in ORDER else ""


def sort_key_of(head: str, text: str) -> int | None:
    """Where a cell stands in order, if its letters don't say it."""
    if size := size_of(head, text):
        return ORDER[size]
    tokens = TOKENS.match(text) if head == SHAPES else None
    return (
        int(tokens[1].replace(",", "")) * (1024 if tokens[2] else 1) if tokens else None
    )


def starts_of_groups(heads: list[str]) -> set[int]:
    """Columns that begin one of several groups: two or more beside one another are
    about one thing, which their heads name before a comma.
    """
    about = [head.partition(", ")[0] if ", " in head else None for head in heads]
    runs = [(name, len(list(run))) for name, run in groupby(about)]
    starts = accumulate((length for _, length in runs), initial=0)
    found = zip(starts, runs, strict=False)
    groups = {at for at, (name, length) in found if name and length > 1}
    return groups if len(groups) > 1 else set()


def column_class(texts: list[str]) -> str:
    """The class of a column: `r` for numbers, where a few cells may say why they have
    none; `t` for text of several lines.
    """
    numbers = [bool(NUMBER.fullmatch(text)) and text not in ORDER for text in texts]
    others = [t for t, number in zip(texts, numbers, strict=True) if not number]
    words = [text for text in others if not NO_NUMBER.fullmatch(text)]
    if sum(numbers) > len(words):
        return "r"
    return "t" if max(map(len, texts), default=0) > LONG else ""


def breakable(cell: str) -> str:
    """A cell whose code and links may be broken where a name has a part."""
    return NAMES.sub(lambda name: name[1] + BREAKS.sub(r"\1<wbr>", name[2]), cell)

"""A Markdown extension that post-processes the HTML of a page.

It numbers figures and tables, gives each an anchor, converts maths to MathML, puts
tables into frames that scroll sideways and take the keyboard's focus, and explains each
glossary word once per section.
"""

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
from tools.render.editions import SIZE_NOTES

# Matches a table (group `body`), or an element that begins or ends a table's caption:
# - `caption`: a paragraph with the class "caption", above a table or tabs with tables;
# - `fold`: the title (<summary>) of a <details> that begins with one or the other;
# - `every`: the title of a <details class="abstract">, the caption of all its tables;
# - `end`: a heading, a paragraph or another title, after which no caption applies.
CAPTION_OR_TABLE = re.compile(
    r'<p class="caption">(?P<caption>.*?)</p>'
    r"|(?P<fold><summary>)(?P<title>(?:(?!</summary>).)*)(?P<folded></summary>\s*)"
    r'(?=<table>|<div class="tabbed-set(?:(?!<figure|<table>|</details>).)*<table>)'
    r'|(?P<every><details class="abstract">\s*<summary>)(?P<all>(?:(?!</summary>).)*)'
    r"(?P<said></summary>\s*(?:<p>(?:(?!</p>).)*</p>\s*)*)"
    r'(?:(?=<table>|<div class="tabbed-set(?:(?!<figure|<table>|</details>).)*<table>)'
    r'|(?P<inner><p class="caption">.*?</p>))'
    r"|<table>(?P<body>.*?)</table>"
    r"|(?P<end><h[1-6]|<p>|<summary>)",
    re.DOTALL,
)
# Matches a figure up to the start of its caption.
FIGURE = re.compile(
    r"<figure(?P<attributes>[^>]*)>(?P<pictures>(?:(?!</figure>).)*?)"
    r"(?P<caption><figcaption[^>]*>)",
    re.DOTALL,
)
ADDRESS = re.compile(r'\bid="([^"]*)"')
# Matches the contents of all tabs in a set.
TABS = re.compile(r'<div class="tabbed-content">.*?</div>\s*</div>\s*</div>', re.DOTALL)
REPEATED = " data-again"
# Matches a glossary word with its tooltip.
TOOLTIP = re.compile(r'<abbr title="(?P<title>[^"]*)">(?P<word>[^<]*)</abbr>')
# Matches a tooltip, an element that shows no tooltips (heading, link, button), or one
# that explains each word again (<details>, figure, table).
TOOLTIP_OR_PART = re.compile(
    rf"{TOOLTIP.pattern}"
    r"|<(?P<tag>h[1-6]|a|summary|label|button|th|svg)\b.*?</(?P=tag)>"
    r'|<p class="(?:provenance|tag)">.*?</p>'
    r"|<(?P<aside>details|figure|table)\b(?P<inside>.*?</(?P=aside)>)",
    re.DOTALL,
)
# Matches text up to its first full stop outside of nested elements.
SENTENCE = re.compile(r"(?:<(\w+)[^>]*>.*?</\1>|[^<])*?\.(?=\s|$)", re.DOTALL)
ROW = re.compile(r"<tr>(.*?)</tr>", re.DOTALL)
# Attribute of rows that are hidden until a click; tools/render/markdown.py sets it.
REST_CLASS = 'class="rest"'
CELL = re.compile(r"<(t[hd])([^>]*)>(.*?)</\1>", re.DOTALL)
TAG = re.compile(r"<[^>]+>")
# Matches a listing of shell commands, and an option of a command, such as --quick.
COMMANDS = re.compile(r'<div class="language-console.*?</pre>', re.DOTALL)
OPTION = re.compile(r"(?<=[>\s])--?[a-z][\w-]*(?![^<]*>)")
# NUMBER matches a cell with a number, which may have a sign, a spread, a unit and a
# remark in parentheses; NO_NUMBER matches a cell that says why a number is missing.
DIGITS = r"\d+(?:,\d{3})*(?:\.\d+)?(?:e[-+]?\d+)?"
NUMBER = re.compile(
    rf"[~≈<>≤≥]?\s?[-−+]?{DIGITS}(?: (?:to|of|±|/) {DIGITS})?[\s\u202f]?[^\W\d]{{0,7}}"
    r"(?:/\w+)?[%×°]?(?: \([^()]{1,14}\))?"
)
NO_NUMBER = re.compile(
    r"[-–—]?|none|not .*|out of memory|unsupported|failed|no such .*", re.IGNORECASE
)
MINUS = re.compile(r"(?<![^\s(])-(?=\d)")
# Matches the integer part of a number with four or more digits.
THOUSANDS = re.compile(r"(?<![\w.,#])[1-9]\d{3,}(?![\w,])")
# Matches a tag, an element without prose, or (group `text`) text between tags.
TEXT = re.compile(
    r"<(pre|code|math|svg|script|style|textarea)\b.*?</\1>|<[^>]*>|(?P<text>[^<]+)",
    re.DOTALL,
)
PICTURE = re.compile(r"<svg class=.*?</svg>", re.DOTALL)
INDENT = re.compile(r"^ +", re.MULTILINE)
# Matches the space between a number and its unit, where a line must not break.
UNIT = re.compile(
    r"(?<=\d) (?=(?:%|[KMGT]i?B|[nµm]?s|min|[KMGTP]?FLOPs?|[kMG]?W|[kMG]?Hz|[mb]illion)"
    r"(?!\w))"
)
SUFFIX = re.compile(r" (± [\d.]+|\([a-z]+\))")
# Tables with at least DENSE columns get narrower gaps between columns.
DENSE = 7
# Columns with a text of more than LONG characters may wrap.
LONG = 22
# Matches code and links.
NAMES = re.compile(r"(<code>|<a [^>]*>)([^<]*)")
# Matches the characters in code and links after which a line may break.
BREAKS = re.compile(r"(?<=[\w)])([._/])(?=\w)")


def finish_page(page_html: str) -> str:
    """Return a page's HTML with this module's changes, such as numbered figures."""
    # Put each option of a command in a span, because CSS lets no line break inside it.
    option = r'<span class="option">\g<0></span>'
    text = COMMANDS.sub(lambda listing: OPTION.sub(option, listing[0]), page_html)
    text = convert_maths(dedupe_tooltips(text))
    text = number_figures(frame_tables(text))
    return map_text(text, lambda part: UNIT.sub("\N{NO-BREAK SPACE}", part))


def map_text(page_html: str, change: Callable[[str], str]) -> str:
    """Apply `change` to a page's text, outside of tags and elements such as code."""
    return TEXT.sub(
        lambda part: change(part[0]) if part["text"] else part[0], page_html
    )


class PageFinisher(Postprocessor):
    def run(self, text: str) -> str:
        return finish_page(text)


class PictureStash(Preprocessor):
    """A preprocessor that replaces inline SVG by placeholders, because parsing it is
    slow. By itself, Python-Markdown does so only outside of tabs.
    """

    def run(self, lines: list[str]) -> list[str]:
        def store_picture(picture: re.Match[str]) -> str:
            return self.md.htmlStash.store(INDENT.sub("", picture[0]))

        return PICTURE.sub(store_picture, "\n".join(lines)).split("\n")


class FinishExtension(Extension):
    def extendMarkdown(self, md: Markdown) -> None:
        # Run after snippets are included and code is stashed, before HTML is parsed.
        md.preprocessors.register(PictureStash(md), "pictures", 24)
        # Run last, when all placeholders are HTML again.
        md.postprocessors.register(PageFinisher(md), "finish", -100)


def makeExtension(**options: object) -> FinishExtension:
    return FinishExtension(**options)


def dedupe_tooltips(page_html: str) -> str:
    """Keep each word's first tooltip in a section, <details>, figure or table."""
    seen: set[str] = set()

    def drop_repeat(match: re.Match[str]) -> str:
        if match["aside"]:
            return f"<{match['aside']}{dedupe_tooltips(match['inside'])}"
        if match["title"] is None:
            if match["tag"] == "h2":
                seen.clear()
            return TOOLTIP.sub(r"\2", match[0])
        if match["title"] in seen:
            return match["word"]
        seen.add(match["title"])
        return match[0]

    return TOOLTIP_OR_PART.sub(drop_repeat, page_html)


def number_figures(page_html: str) -> str:
    """Begin each figure's caption with its number, which links to the figure. Figures
    in the same set of tabs share one number.
    """
    places, repeats = count(1), 0

    def mark_repeats(tabs: re.Match[str]) -> str:
        start, tag, rest = tabs[0].partition("<figure")
        return start + tag + rest.replace("<figure", "<figure" + REPEATED)

    def add_number(match: re.Match[str]) -> str:
        nonlocal repeats
        given, place = ADDRESS.search(match["attributes"]), next(places)
        repeats += (again := REPEATED in match["attributes"])
        number = place - repeats
        address = given[1] if given else f"figure-{number}" + f"-{place}" * again
        new_id = "" if given else f' id="{address}"'
        name = f"Figure\N{NO-BREAK SPACE}{number}."
        link = f'<a class="number" href="#{address}">{name}</a>'
        figure = f"<figure{new_id}{match['attributes']}>{match['pictures']}"
        return f"{figure}{match['caption']}{link} "

    return FIGURE.sub(add_number, TABS.sub(mark_repeats, page_html))


# The style of cells in left-aligned columns, as Markdown writes it.
LEFT_ALIGNED = "text-align: left;"


def frame_tables(page_html: str) -> str:
    """Number the captioned tables of a page, and put every table into a labelled region
    that scrolls sideways and takes keyboard focus. The theme would put a table without
    a class into its own frame, which takes no focus.
    """
    numbers = count(1)
    labels: Counter[str] = Counter()
    caption = ""

    def add_number_or_frame(match: re.Match[str]) -> str:
        nonlocal caption
        if match["end"]:
            caption = ""
            return match[0]
        if match["body"] is not None:
            return frame_table(match["body"], caption, labels)
        number = next(numbers)
        title = match["caption"] or match["title"] or match["all"]
        name = f"Table\N{NO-BREAK SPACE}{number}."
        caption = f"{name} {plain_text(title)}"
        if match["caption"] is None:
            start = (match["fold"] or match["every"]).removesuffix("<summary>")
            rest = match["folded"] or f"{match['said']}{match['inner'] or ''}"
            return f'{start}<summary id="table-{number}">{name} {title}{rest}'
        link = f'<a class="number" href="#table-{number}">{name}</a>'
        text = bold_first_sentence(title)
        return f'<p class="caption" id="table-{number}">{link} {text}</p>'

    return CAPTION_OR_TABLE.sub(add_number_or_frame, page_html)


def bold_first_sentence(caption: str) -> str:
    """Make the first sentence of a caption bold, as in captions of figures."""
    sentence = SENTENCE.match(caption)
    if sentence is None or "<strong>" in caption:
        return caption
    return f"<strong>{sentence[0]}</strong>{caption[sentence.end() :]}"


def plain_text(cell: str) -> str:
    """Return the text of some HTML without its tags."""
    return " ".join(html.unescape(TAG.sub("", cell)).split())


def frame_table(body: str, caption: str, labels: Counter[str]) -> str:
    """Return a table with these rows (`body`) in a scrolling frame. Numbers are aligned
    right, and only long texts wrap. `labels` counts the labels of tables without a
    caption, to make each unique.
    """
    rows = [CELL.findall(row) for row in ROW.findall(body)]
    heads, *lines = [[plain_text(cell) for *_, cell in row] for row in rows]
    kinds = [column_class(list(column)) for column in zip(*lines, strict=False)]
    # Don't wrap attention shapes in the first column if the table has few columns.
    one_line = heads[:1] == [SHAPES] and len(heads) <= DENSE
    # The left-aligned columns, at least one, are row headers.
    keys = max(1, sum(LEFT_ALIGNED in mark for _, mark, _ in rows[0]))
    groups = find_group_starts(heads)

    def row_html(match: re.Match[str]) -> str:
        columns = count()
        cells = CELL.sub(lambda one: cell_html(one, next(columns)), match[1])
        mark = f" {REST_CLASS}" if REST_CLASS in match[1] else ""
        return f"<tr{mark}>{cells}</tr>"

    def cell_html(match: re.Match[str], at: int) -> str:
        tag, _, content = match.groups()
        kind = kinds[at] if at < len(kinds) else ""
        text = plain_text(content)
        names = [kind] if kind else []
        names += ["key"] if tag == "th" and at < keys else []
        names += ["line"] if tag == "td" and at == 0 and one_line else []
        names += ["group"] if at in groups else []
        names += ["words"] if kind == "r" and tag == "td" and len(text) > LONG else []
        marks = f' class="{" ".join(names)}"' if names else ""
        if tag == "th":
            # The span lets a long header wrap instead of widening its column.
            head = f"<th{marks}><span>{content}</span></th>"
            return head if text else f"<td{marks}></td>"
        if key := cell_sort_key(heads[at], text):
            marks += f' data-sort="{key}"'
        if (size := find_size(heads[at], text)) in SIZE_NOTES:
            tooltip = f'<abbr title="{SIZE_NOTES[size]}">{size}</abbr>'
            content = content.replace(size, tooltip, 1)
        content = map_text(content, lambda part: MINUS.sub("\N{MINUS SIGN}", part))
        if kind == "r":
            content = map_text(content, group_thousands)
            content = SUFFIX.sub(r" <small>\1</small>", content)
        return f"<td{marks}>{allow_breaks(content) if kind == 't' else content}</td>"

    if not (label := caption):
        more = f" and {len(heads) - 4} more columns" if len(heads) > 4 else ""
        label = f"Table: {', '.join(filter(None, heads[:4]))}{more}"
        labels[label] += 1
        label += f" ({labels[label]})" if labels[label] > 1 else ""
    region = f'role="region" tabindex="0" aria-label="{html.escape(label)}"'
    look = "data dense" if len(heads) >= DENSE else "data"
    return (
        f'<div class="table-frame" {region}>'
        f'<table class="{look}">{ROW.sub(row_html, body)}</table></div>'
        f"{SHOW_ALL.format(len(lines)) if REST_CLASS in body else ''}"
    )


# A checkbox that shows the hidden rows of the table above it, by CSS alone.
SHOW_ALL = '<p class="all"><label><input type="checkbox"> All {} rows</label></p>'


def group_thousands(text: str) -> str:
    return THOUSANDS.sub(lambda number: f"{int(number[0]):,}", text)


# The sort key of each model size.
RANKS = {size: rank for rank, size in enumerate(SIZES, start=1)}

# The header of the column of attention shapes, which is sorted by tokens.
SHAPES = "tokens · d · mask · heads"
TOKENS = re.compile(r"([\d,]+)(k?)")

# Matches the first word of a cell.
FIRST_WORD = re.compile(r"[^,\s]+")


def find_size(head: str, text: str) -> str:
    """Return the model size at the start of a cell in a column of sizes, else ""."""
    word = FIRST_WORD.match(text) if head in ("size", "model", "step") else None
    return word[0] if word and word[0] in RANKS else ""


def cell_sort_key(head: str, text: str) -> int | None:
    """Return the sort number of a cell below header `head`; None to sort by `text`."""
    if size := find_size(head, text):
        return RANKS[size]
    if head == SHAPES and (tokens := TOKENS.match(text)):
        return int(tokens[1].replace(",", "")) * (1024 if tokens[2] else 1)
    return None


def find_group_starts(heads: list[str]) -> set[int]:
    """Return the index of each header that begins a group: adjacent headers with the
    same text before a comma, such as "forward, ms" and "forward, GPU, ms". A single
    group does not count.
    """
    topics = [head.partition(", ")[0] if ", " in head else None for head in heads]
    runs = [(name, len(list(run))) for name, run in groupby(topics)]
    starts = accumulate((length for _, length in runs), initial=0)
    pairs = zip(starts, runs, strict=False)
    groups = {start for start, (name, length) in pairs if name and length > 1}
    return groups if len(groups) > 1 else set()


def column_class(texts: list[str]) -> str:
    """Return the CSS class of a column: `r` for numbers, `t` for long texts, or ""."""
    numbers = [bool(NUMBER.fullmatch(text)) and text not in RANKS for text in texts]
    others = [t for t, number in zip(texts, numbers, strict=True) if not number]
    words = [text for text in others if not NO_NUMBER.fullmatch(text)]
    if sum(numbers) > len(words):
        return "r"
    return "t" if max(map(len, texts), default=0) > LONG else ""


def allow_breaks(cell: str) -> str:
    """Allow line breaks after dots, slashes and underscores in code and links."""
    return NAMES.sub(lambda name: name[1] + BREAKS.sub(r"\1<wbr>", name[2]), cell)

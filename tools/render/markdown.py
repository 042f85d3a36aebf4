"""Markdown that every builder writes alike: tables, tabs of GPUs, and the line
under each: where from.
"""

import math
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from html import escape
from itertools import takewhile
from typing import Any
from urllib.parse import urlencode

from systems.records.record import Record
from tools.render.load import STALE, VERIFIED, age
from tools.render.rows import NOT_MEASURED, Missing, measured, say, span


def plain(text: str) -> str:
    """Text as an image says and shows it."""
    text = escape(text.replace("`", ""), quote=False)
    return text.replace('"', "&quot;")


def bold(text: str) -> str:
    return f"**{text}**"


# So many lines stand open.
OPEN = 8
# What marks a line as one of the others.
REST = " {: .rest }"


def table(
    header: list[str],
    rows: Iterable[list[str]],
    left: int = 1,
    telling: Sequence[bool] = (),
    alike: Collection[str] = (),
) -> str:
    """A Markdown table, or nothing where it has no rows. The first `left` columns name
    a line, and stay in sight where a page shows less than the whole table; how a
    column is aligned follows from what it holds.

    A column named in `alike` is said in a sentence below where all lines have the same
    cell. Of a long table a page shows the telling lines, and the others when asked;
    paper shows all.
    """
    body = [[*cells] for cells in rows]
    if not body:
        return ""
    shown, said = [], []
    for at, (head, *cells) in enumerate(zip(header, *body, strict=True)):
        if head in alike and len(cells) > 1 and len(set(cells)) == 1:
            said.append(f"*{head}* {cells[0].lstrip('+')}")
        else:
            shown.append(at)
    if any(telling) and len(body) > OPEN:
        for cells, told in zip(body, telling, strict=True):
            # A cell without words takes no mark.
            named = [at for at in shown if cells[at]]
            if named and not told:
                cells[named[0]] += REST
    rule = [":---" if at < left else "---:" for at in range(len(header))]
    texts = [
        f"| {' | '.join(cells[at] for at in shown)} |"
        for cells in ([*header], rule, *body)
    ]
    below = f"\n\nIn each line: {' · '.join(said)}.\n{{ .below }}" if said else ""
    return "\n".join(texts) + below


# A longer name of a kernel is folded to what it says to people.
NAME = 30
# The name of a product: its family and type, its tile, the rest.
PRODUCT = re.compile(r"(.+?)_(?:tilesize)?(\d+x\d+(?:x\d+)?)(?:_(.*)|$)")
# What tells no reader anything, and what does behind the tile: which operands are
# transposed, and whether the sum is cut.
SILENT = re.compile(r"xmma|simt|tst|n|(?:[a-z]+\d+){2,}")
TOLD = re.compile(r"[nt]{2}|[NT]{3}|splitK")


def folded_name(name: str, short: str = "") -> str:
    """A kernel's name as code; a long one opens where it stands, out of a short one."""
    if (said := spoken(short or name)) == name or len(name) <= NAME:
        return f"`{name}`"
    return f'<details class="name"><summary>`{said}`</summary>`{name}`</details>'


def spoken(name: str) -> str:
    """ "sm80 gemm f32 tn · 128x64x8", or the beginning and the end of another name."""
    if len(name) <= NAME:
        return name
    if not (found := PRODUCT.match(name)):
        return f"{name[:18]}…{name[-14:]}" if len(name) > 36 else name
    family, tile, rest = found.groups("")
    words = [word for word in family.split("_") if not SILENT.fullmatch(word)]
    words += [word for word in rest.split("_") if TOLD.fullmatch(word)]
    return f"{' '.join(words)} ·\N{NO-BREAK SPACE}{tile}"


def sections(parts: Mapping[str, str]) -> str:
    """A file of parts that pages include by name: `--8<-- "generated/FILE:name"`."""
    return "\n".join(
        f"<!-- --8<-- [start:{name}] -->\n{text.strip()}\n"
        f"<!-- --8<-- [end:{name}] -->\n"
        for name, text in parts.items()
    )


# Stands where a table would.
NOTHING_YET = "Not measured yet: run `python tools/regen_tables.py`.\n"
# And where there are rows, and what it is made of did not fit on their GPU.
NOTHING_FITS = (
    "Nothing to show: the rows that this needs ran out of memory, or this record lacks "
    "them.\n"
)


def nothing_of(records: Iterable[Record]) -> str:
    """What stands in the place of what these records don't give."""
    statuses = {row.status for record in records for row in record.rows}
    return NOTHING_FITS if "out_of_memory" in statuses else NOTHING_YET


def captioned(caption: str, shown: str) -> str:
    """A table or tabs of it with a caption above, which the site numbers. What says
    that nothing was measured has none.
    """
    nothing = shown.startswith((NOTHING_YET, NOTHING_FITS))
    shows = caption and shown.strip() and not nothing
    return f"{caption}\n{{ .caption }}\n\n{shown}" if shows else shown


def columns(
    items: Iterable[Any],
    *described: Any,
    left: int = 1,
    telling: Callable[[Any], bool] | None = None,
    alike: Collection[str] = (),
) -> str:
    """A table with a line for each item, or nothing. A column is the name of a field of
    its configuration; or the head, what it shows of the item, and how that is printed.

    A line says once why a row has no numbers, where the first would stand. Fields that
    come first name the line.
    """
    items = list(items)
    fields = sum(1 for _ in takewhile(lambda one: isinstance(one, str), described))
    full = [
        (column, lambda c, key=column: c.config[key])
        if isinstance(column, str)
        else column
        for column in described
    ]
    rows = [printed(item, full) for item in items]
    told = [telling(item) for item in items] if telling else []
    return table([head for head, *_ in full], rows, max(left, fields), told, alike)


def printed(item: Any, described: list[tuple[Any, ...]]) -> list[str]:
    """One line of a table, cell by cell."""
    line, said = [], []
    for _, read, *text in described:
        value = read(item)
        words = say(value, *text)
        if isinstance(value, Missing):
            # If this row ran, the number is missing in the row that it is compared
            # with: the cell stays empty.
            compared = getattr(item, "row", None) and item
            known = words == NOT_MEASURED or any(row is value.row for row in said)
            words = "" if compared or known else words
            said.append(value.row)
        line.append(words)
    return line


def device_label(record: Record) -> str:
    """The tab's name."""
    return record.device.name + ", reported" * (record.kind == "reported")


def tabs(parts: Iterable[tuple[str, str]]) -> str:
    """One tab for each (label, Markdown); where there is one, its Markdown alone. The
    first begins a set of its own, whatever tabs stand above.
    """
    parts = list(parts)
    if len(parts) == 1:
        return parts[0][1]
    return "\n\n".join(
        f'==={"" if i else "!"} "{label}"\n\n{textwrap.indent(body, "    ")}'
        for i, (label, body) in enumerate(parts)
    )


def per_device(
    records: Iterable[Record],
    body: Callable[[Record], str],
    tabbed: bool = True,
) -> str:
    """A tab for each record that has something to show (an empty body has not), with
    its provenance below. Without tabs, the first.
    """
    records = list(records)

    shown = [
        (device_label(r), f"{text}\n\n{provenance(r)}")
        for r in records
        if (text := body(r))
    ]
    if not shown:
        return nothing_of(records)
    return f"{tabs(shown) if tabbed else shown[0][1]}\n"


WHAT_IT_MEANS = "[what this means](method.md#the-line-under-each-table)"


def provenance(record: Record) -> str:
    """Return a quiet line that says where the numbers above come from. `conditions` has
    the rest, once on a page.
    """
    link = record_link(record)
    if record.kind == "reported":
        told = " ".join([record.source or "", *record.notes])
        return f"Reported, not measured here: {told} {link}\n{{ .provenance }}"
    day = (record.started_utc or "").partition(" ")[0]
    said = {STALE: ["**stale**{ .old }"], VERIFIED: [VERIFIED]}
    old = said.get(age(record), [])
    link += f" · {rows_link(record)}"
    told = " · ".join(part for part in (record.device.name, *old, day, link) if part)
    return f"{told}\n{{ .provenance }}"


def record_address(record: Record) -> str:
    """From a page."""
    return f"results/{'quick/' * (record.grid == 'quick')}{record.place}"


def record_link(record: Record) -> str:
    return f"[record]({record_address(record)})"


def rows_link(record: Record) -> str:
    """Link the rows in the explorer, which saves them as CSV."""
    chosen = urlencode({"GPU": explorer_name(record), "stem": record.stem})
    return f'<a href="explorer.html#{escape(chosen)}">CSV</a>'


def explorer_name(record: Record) -> str:
    """Return what the explorer calls the record's GPU."""
    return device_label(record).partition(" (")[0]


def commit_of(record: Record) -> str:
    if not record.git:
        return "no commit"
    changed = " with changes" if record.git.dirty else ""
    return f"commit {record.git.commit[:10]}{changed}"


def conditions(records: Iterable[Record]) -> str:
    """Under which conditions each record was measured, a paragraph for each; method.md
    explains its parts.
    """
    return "\n\n".join(map(conditions_of, measured(records))) + "\n"


def conditions_of(record: Record) -> str:
    gpu = record.device
    known = [
        (gpu.name, gpu.name),
        (gpu.driver, f"driver {gpu.driver}"),
        (gpu.power_limit_w, f"{gpu.power_limit_w or 0:.0f} W"),
        (clocks := gpu.sm_clocks_mhz, f"SM clock {span(clocks, '{:.0f}')} MHz"),
    ]
    protocol = "; ".join(f"{name}: {value}" for name, value in record.protocol.items())
    parts = [
        f"`{record.stem}`: {', '.join(text for value, text in known if value)}",
        ", ".join(f"{name} {version}" for name, version in record.software.items()),
        *(f"attention by {name}: {said}" for name, said in record.kernels.items()),
        commit_of(record),
        record.started_utc and f"{record.started_utc} UTC",
        *record.notes,
        protocol,
        record_link(record),
        WHAT_IT_MEANS,
    ]
    told = " · ".join(part for part in parts if part)
    return f"{told}\n{{ .provenance }}"


def say_ms(value: float) -> str:
    """About four significant digits: 0.034, 5.362, 21.45, 184.3."""
    return f"{value:.{3 if value < 10 else 2 if value < 100 else 1}f}"


def gib(value: float) -> str:
    return f"{value / 2**30:.1f}"


def significant(value: float) -> str:
    """Return three significant digits: 0.112, 12.7, 427."""
    decimals = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(0, decimals)}f}"


def two_digits(value: float) -> str:
    """As a sentence says about how much: 4.7, 140, 28,000."""
    return f"{float(f'{value:.1e}'):,g}"


def in_gib(value: float) -> str:
    return say(value / 2**30, lambda gib: f"{significant(gib)} GiB")


def in_mib(value: float) -> str:
    """Return whole MiB, or GiB from 1 GiB on."""
    return say(value, lambda v: in_gib(v) if v >= 2**30 else f"{v / 2**20:.0f} MiB")


def in_words(text: str) -> str:
    """A fact as it stands in a sentence: a minus in front of numbers and no hyphen, and
    no line ends between a number and its unit.
    """
    text = re.sub(r"(?<![\w.])-(?=\d)", "\N{MINUS SIGN}", text)
    unit = r"(?<=\d) (?=%|(?:[KMGT]i?)?B\b|[nµm]?s\b|[MGT]FLOP)"
    return re.sub(unit, "\N{NO-BREAK SPACE}", text)


def round_numbers(text: str) -> str:
    """Drop decimals beyond two significant digits: "65.5 GiB" becomes "66 GiB". Keep
    those of deviations, and of ratios below 1.2, which are close to one.
    """

    def shorten(found: re.Match[str]) -> str:
        value, unit = float(found[1]), found[2]
        if value < (1 if unit else 1.2):
            return found[0]
        return f"{value:.{int(value < 9.95)}f}{unit}"

    number = r"(?<![\w.,])(\d+\.\d+)\b((?: [GMT]i?B| [nµm]?s\b)?)"
    return text if "±" in text else re.sub(number, shorten, text)


def at_most(value: float) -> str:
    """For a sentence: "at most 2.0 %", or "less than 0.05 %" where that rounds to 0."""
    return f"at most {percent(value)}" if value >= 5e-4 else "less than 0.05 %"


def percent(value: float) -> str:
    """Two significant digits below ten percent."""
    # What rounds to nothing has no sign.
    return f"{100 * value:z.1f} %" if abs(value) < 0.1 else f"{100 * value:.0f} %"

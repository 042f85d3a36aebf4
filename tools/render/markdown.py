"""Format Markdown for pages: tables, a tab per GPU, provenance, number formats."""

import math
import re
import textwrap
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from html import escape
from itertools import takewhile
from operator import itemgetter
from typing import Any
from urllib.parse import urlencode

from systems.records.record import Record
from tools.render.editions import METRICS
from tools.render.load import is_fresh
from tools.render.rows import NOT_MEASURED, Missing, fmt, measured_records, span

# MIME type of the HTML of a notebook's figure; notebook viewers ignore it.
PAGE = "application/vnd.page+html"
# Tables with more rows than this show only those of `shown_first` until a click.
OPEN = 8
# Markdown attribute that hides a table row until a click on "All rows".
REST_ROW = " {: .rest }"


def table(
    header: list[str],
    rows: Iterable[list[str]],
    left: int = 1,
    shown_first: Sequence[bool] = (),
    alike: Collection[str] = (),
) -> str:
    """Return a Markdown table, or "" for no rows. The first `left` columns are row
    headers, which stay visible when a narrow page scrolls. A column named in `alike`
    becomes a sentence below the table if all its cells agree; an empty column is left
    out. A long table shows only rows with a true flag in `shown_first`, until a click.
    """
    body = [[*cells] for cells in rows]
    if not body:
        return ""
    shown, equal = [], []
    for at, (head, *cells) in enumerate(zip(header, *body, strict=True)):
        if any(cells) and head in alike and len(cells) > 1 and len({*cells}) == 1:
            equal.append(f"*{head}*: {cells[0].lstrip('+')}")
        elif any(cells):
            shown.append(at)
    if any(shown_first) and len(body) > OPEN:
        for cells, is_shown_first in zip(body, shown_first, strict=True):
            # Add the attribute to the first cell with text: empty cells can't have it.
            filled = [at for at in shown if cells[at]]
            if filled and not is_shown_first:
                cells[filled[0]] += REST_ROW
    rule = [":---" if at < left else "---:" for at in range(len(header))]
    texts = [
        f"| {' | '.join(cells[at] for at in shown)} |"
        for cells in ([*header], rule, *body)
    ]
    below = f"\n\nIn all rows, {'; '.join(equal)}.\n{{ .below }}" if equal else ""
    return "\n".join(texts) + below


# Longer kernel names are shortened.
MAX_NAME = 30
# Matches the name of a matmul kernel: family and dtype, tile size, rest.
MATMUL_NAME = re.compile(r"(.+?)_(?:tilesize)?(\d+x\d+(?:x\d+)?)(?:_(.*)|$)")
# A short name keeps words before the tile size unless they match NOISE, and words after
# it only if they match SUFFIX (transposed operands, split-K).
NOISE = re.compile(r"xmma|simt|tst|n|(?:[a-z]+\d+){2,}")
SUFFIX = re.compile(r"[nt]{2}|[NT]{3}|splitK")


def fold_name(name: str, short: str = "") -> str:
    """Return a kernel's name as code; a long one is shortened until it is clicked."""
    if (summary := shorten_name(short or name)) == name or len(name) <= MAX_NAME:
        return f"`{name}`"
    return f'<details class="name"><summary>`{summary}`</summary>`{name}`</details>'


def shorten_name(name: str) -> str:
    """Shorten a kernel's name: for a matmul to "sm80 gemm f32 tn · 128x64x8", for other
    kernels to its beginning and end.
    """
    if len(name) <= MAX_NAME:
        return name
    if not (match := MATMUL_NAME.match(name)):
        return f"{name[:18]}…{name[-14:]}" if len(name) > 36 else name
    family, tile, rest = match.groups("")
    words = [word for word in family.split("_") if not NOISE.fullmatch(word)]
    words += [word for word in rest.split("_") if SUFFIX.fullmatch(word)]
    return f"{' '.join(words)} ·\N{NO-BREAK SPACE}{tile}"


def snippet_sections(parts: Mapping[str, str]) -> str:
    """Join {name: text} into sections, included by `--8<-- "generated/FILE:name"`."""
    return "\n".join(
        f"<!-- --8<-- [start:{name}] -->\n{text.strip()}\n"
        f"<!-- --8<-- [end:{name}] -->\n"
        for name, text in parts.items()
    )


# Replaces a table without records.
NOTHING_YET = (
    "Not measured yet: run `python tools/regen_tables.py` on a GPU (`--quick` leaves "
    "these rows out).\n"
)
# Replaces a table whose rows ran out of memory.
NOTHING_FITS = (
    "Nothing to show: the rows that this needs ran out of memory, or this record lacks "
    "them.\n"
)


def missing_notice(records: Iterable[Record]) -> str:
    """Return the notice that replaces a table for which these records lack numbers."""
    statuses = {row.status for record in records for row in record.rows}
    return NOTHING_FITS if "out_of_memory" in statuses else NOTHING_YET


def add_caption(caption: str, shown: str) -> str:
    """Put a caption above `shown`, unless that is empty or a notice of missing data."""
    is_notice = shown.startswith((NOTHING_YET, NOTHING_FITS))
    if not caption or not shown.strip() or is_notice:
        return shown
    return f"{caption}\n{{ .caption }}\n\n{shown}"


def items_table(
    items: Iterable[Any],
    *shown: str | tuple[Any, ...],
    left: int = 0,
    shown_first: Callable[[Any], bool] | None = None,
    alike: Collection[str] = (),
) -> str:
    """Return a table with a line per item, or "" if there are no items. Each column is
    a key of the items, or a tuple of header, key or function of an item, and optionally
    a format. The leading keys, or the first `left` columns, are row headers. Missing
    numbers are shown as in `format_row`. `table` explains the other options.
    """
    keys = len([*takewhile(lambda column: isinstance(column, str), shown)])
    pairs = [(one, one) if isinstance(one, str) else one for one in shown]
    described = [
        (head, value if callable(value) else itemgetter(value), *text)
        for head, value, *text in pairs
    ]
    left = left or keys or 1
    items = list(items)
    rows = [format_row(item, described) for item in items]
    flags = [shown_first(item) for item in items] if shown_first else []
    return table([head for head, *_ in described], rows, left, flags, alike)


def format_row(item: Any, described: Iterable[tuple[Any, ...]]) -> list[str]:
    """Return an item's cells in columns `described` by (header, function, format). If a
    row failed, the first cell that needs it says why, and later ones are empty. Cells
    are also empty if nobody measured their number, or if `item` itself was measured.
    """
    has_numbers = getattr(item, "row", None) and item
    cells, explained = [], []
    for _, read, *text in described:
        value = read(item)
        cell = fmt(value, *text)
        if isinstance(value, Missing):
            if has_numbers or cell == NOT_MEASURED or value.row in explained:
                cell = ""
            explained.append(value.row)
        cells.append(cell)
    return cells


def device_label(record: Record) -> str:
    """Return a record's tab label: the GPU, then "reported" if others published it."""
    return record.device.name + ", reported" * (record.kind == "reported")


def make_tabs(parts: Iterable[tuple[str, str]]) -> str:
    """Return tabs for pairs of label and Markdown, or the Markdown alone if there is
    only one. The "!" of the first tab starts a new set.
    """
    parts = list(parts)
    if len(parts) == 1:
        return parts[0][1]
    return "\n\n".join(
        f'==={"" if i else "!"} "{label}"\n\n{textwrap.indent(body, "    ")}'
        for i, (label, body) in enumerate(parts)
    )


def device_tabs(records: Iterable[Record], body: Callable[[Record], str]) -> str:
    """Return a tab per record, `body` above provenance; if all are empty, a notice."""
    records = list(records)
    shown = [
        (device_label(r), f"{text}\n\n{provenance_line(r)}")
        for r in records
        if (text := body(r))
    ]
    return f"{make_tabs(shown)}\n" if shown else missing_notice(records)


def provenance_line(record: Record) -> str:
    """Return the line below a table that names its GPU, its date and its record."""
    link = record_link(record)
    if record.kind == "reported":
        source = " ".join([record.source or "", *record.notes])
        return f"Reported, not measured here: {source} {link}\n{{ .provenance }}"
    day = (record.started_utc or "").partition(" ")[0]
    marks = stale_mark(record), quick_options(record)
    parts = (record.device.name, *marks, day, link, rows_link(record))
    return f"{' · '.join(filter(None, parts))}\n{{ .provenance }}"


def quick_options(record: Record) -> str:
    """Return "measured by --quick: " and settings all rows share; else ""."""
    first, *others = [x.config for x in record.rows if record.grid == "quick"] or [{}]
    same = [f"{k} {v}" for k, v in first.items() if all(x.get(k) == v for x in others)]
    return f"measured by --quick: {', '.join(same)}" * bool(first)


def stale_mark(record: Record) -> str:
    return "" if is_fresh(record) else "**stale**{ .old }"


def record_address(record: Record) -> str:
    """Return a record's path relative to a page: "results/nvidia-h200/warmup.json"."""
    return f"results/{'quick/' * (record.grid == 'quick')}{record.results_path}"


def record_link(record: Record) -> str:
    return f"[record]({record_address(record)})"


def rows_link(record: Record) -> str:
    """Return a link to a record's rows in the explorer, or "" if it omits them."""
    if not any(x.status != "ok" or METRICS.keys() & x.metrics for x in record.rows):
        return ""
    chosen = urlencode({"GPU": explorer_name(record), "stem": record.stem})
    return f'<a href="explorer.html#{escape(chosen)}">CSV</a>'


def explorer_name(record: Record) -> str:
    """Return the GPU name of a record in the explorer."""
    return device_label(record).partition(" (")[0]


def conditions(records: Iterable[Record]) -> str:
    """Return a paragraph for each measured record: GPU, software, commit, protocol."""
    return "\n\n".join(map(describe_conditions, measured_records(records))) + "\n"


def describe_conditions(record: Record) -> str:
    gpu, git = record.device, record.git
    known = [
        (gpu.name, gpu.name),
        (gpu.driver, f"driver {gpu.driver}"),
        (gpu.power_limit_w, f"{gpu.power_limit_w or 0:.0f} W"),
        (clocks := gpu.sm_clocks_mhz, f"SM clock {span(clocks, '{:.0f}')} MHz"),
    ]
    rules = record.protocol.items()
    protocol = (f"{k}: {v}" for k, v in rules if gpu.is_gpu or k != "gpu time")
    parts = [
        f"`{record.stem}`: {', '.join(text for value, text in known if value)}",
        ", ".join(f"{name} {version}" for name, version in record.software.items()),
        *(f"attention by {name}: {text}" for name, text in record.kernels.items()),
        f"commit {git.commit[:10]}{' with changes' * git.dirty}"
        if git
        else "no commit",
        record.started_utc and f"{record.started_utc} UTC",
        *record.notes,
        quick_options(record),
        "; ".join(protocol),
        stale_mark(record),
        record_link(record),
        "[what this means](method.md#the-line-under-each-table)",
    ]
    return f"{' · '.join(filter(None, parts))}\n{{ .provenance }}"


def format_ms(value: float) -> str:
    """Format milliseconds with one to three decimals: 0.034, 5.362, 21.45, 184.3."""
    return f"{value:.{3 if value < 10 else 2 if value < 100 else 1}f}"


def gib(value: float, digits: int = 1) -> str:
    return fmt(value / 2**30, f"{{:.{digits}f}}")


def format_significant(value: float) -> str:
    """Format three significant digits, or more from 1,000 on: 0.112, 12.7, 1,234."""
    decimals = 2 - math.floor(math.log10(abs(value))) if value else 0
    return f"{value:,.{max(0, decimals)}f}"


def prose_number(value: float) -> str:
    """Round to two significant digits for prose: 4.7, 140, 28,000."""
    return f"{float(f'{value:.1e}'):,g}"


def format_gib(value: float) -> str:
    return fmt(value / 2**30, lambda gib: f"{format_significant(gib)} GiB")


def format_mib(value: float) -> str:
    """Format bytes for prose: whole MiB below 1 GiB, else GiB with five decimals."""
    size = gib(value, 5)
    return fmt(value, lambda v: f"{size} GiB" if v >= 2**30 else f"{v / 2**20:.0f} MiB")


def typeset(text: str) -> str:
    """Put minus signs before negative numbers, no-break spaces before units and ±."""
    text = re.sub(r"(?<![\w.])-(?=\d)", "\N{MINUS SIGN}", text)
    unit = r"(?<=\d) (?=[%±]|(?:[KMGT]i?)?B\b|[nµm]?s\b|[MGT]FLOP)"
    return re.sub(unit, "\N{NO-BREAK SPACE}", text)


def round_numbers(text: str) -> str:
    """Round decimal numbers in a text: above 10 to integers, above 1.2 (or 1, before a
    unit) to one decimal, smaller ones with over four decimals to two. Leave a text with
    "±" unchanged.
    """

    def shorten(found: re.Match[str]) -> str:
        value, unit = float(found[1]), found[2]
        if value < (1 if unit else 1.2):
            return found[0] if len(found[1]) < 7 else f"{value:.2f}{unit}"
        return f"{value:.{int(value < 9.95)}f}{unit}"

    number = r"(?<![\w.,])(\d+\.\d+)\b((?: [GMT]i?B| [nµm]?s\b)?)"
    return text if "±" in text else re.sub(number, shorten, text)


def format_at_most(value: float) -> str:
    """Format a fraction: "at most 2.0 %", or "less than 0.05 %" if it rounds to 0."""
    return f"at most {percent(value)}" if value >= 5e-4 else "less than 0.05 %"


def percent(value: float) -> str:
    """Format a fraction as a percentage, with one decimal below 10 %."""
    # The "z" in the format removes the sign of a number that rounds to zero.
    return f"{100 * value:z.1f} %" if abs(value) < 0.1 else f"{100 * value:.0f} %"

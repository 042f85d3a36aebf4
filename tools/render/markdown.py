"""Markdown that every builder writes alike: tables, tabs of GPUs, figures, and the line
under each: where from.
"""

import textwrap
from collections.abc import Callable, Iterable

from systems.records.record import Record, Row
from systems.records.summary import summarize
from tools.render.load import is_fresh

NOT_MEASURED = "not measured"


def table(header: list[str], rows: Iterable[list[str]], left: int = 1) -> str:
    """A Markdown table; the first `left` columns are aligned left, the others right."""
    rule = [":---" if i < left else "---:" for i in range(len(header))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *rows))


def device_label(record: Record) -> str:
    """The tab's name."""
    return (
        f"{record.device.name}, reported"
        if record.kind == "reported"
        else record.device.name
    )


def tabs(parts: Iterable[tuple[str, str]]) -> str:
    """One tab for each (label, Markdown)."""
    return "\n\n".join(
        f'=== "{label}"\n\n{textwrap.indent(body, "    ")}' for label, body in parts
    )


def per_device(records: Iterable[Record], body: Callable[[Record], str]) -> str:
    """A tab for each record that has something to show (an empty body has not), with
    its provenance below.
    """
    parts = [(r, body(r)) for r in records]
    shown = [
        (device_label(r), "\n\n".join([*banner(r), text, provenance(r)]))
        for r, text in parts
        if text
    ]
    return (
        tabs(shown)
        if shown
        else "Not measured yet: run `python tools/regen_tables.py`."
    ) + "\n"


def banner(record: Record) -> list[str]:
    """What a reader must see above numbers older than the code."""
    if record.kind == "reported" or is_fresh(record):
        return []
    return [
        "**Stale:** measured with an earlier version of the code shown here.\n{ .stale }"
    ]


def provenance(record: Record) -> str:
    """Where the numbers above come from, in one line. `method.md` explains its parts."""
    link = f"[record](results/{record.device.slug}/{record.stem}.json)"
    if record.kind == "reported":
        return f"Reported, not measured here: {record.source} {' '.join(record.notes)} {link}\n{{ .provenance }}"
    versions = ", ".join(
        f"{name} {version}" for name, version in record.software.items()
    )
    device = [record.device.name]
    if record.device.driver:
        clocks = sorted(set(record.device.sm_clocks_mhz))
        device += [
            f"driver {record.device.driver}",
            f"{record.device.power_limit_w:.0f} W",
        ]
        device += [f"SM clock {' to '.join(map(str, clocks))} MHz"] if clocks else []
    commit = (
        f"commit {record.git.commit[:10]}{' with changes' if record.git.dirty else ''}"
        if record.git
        else "no commit"
    )
    protocol = "; ".join(f"{name}: {value}" for name, value in record.protocol.items())
    described = " · ".join([protocol, *record.notes])
    return (
        f"Measured: {', '.join(device)} · {versions} · {commit}, {record.started_utc} UTC · {described} · {link}"
        " · [what this line means](method.md#the-line-under-each-table)\n{ .provenance }"
    )


def figure(name: str, alt: str, caption: str) -> str:
    """The light and the dark image of one figure, with its conclusion as alternative
    text.
    """
    return (
        "<figure markdown>\n"
        f"![{alt}](generated/{name}.svg#only-light)\n![{alt}](generated/{name}-dark.svg#only-dark)\n"
        f'<figcaption markdown="span">{caption}</figcaption>\n</figure>'
    )


def mean_std(samples: list[float]) -> str:
    """ "38.32 ± 0.36"."""
    s = summarize(samples)
    return f"{s.mean:.2f} ± {s.std:.2f}"


def milliseconds(value: float) -> str:
    """About four significant digits: 0.034, 5.362, 21.45, 184.3."""
    return (
        f"{value:.3f}"
        if value < 10
        else f"{value:.2f}"
        if value < 100
        else f"{value:.1f}"
    )


def status(row: Row | None) -> str:
    """Why a row has no numbers, in words; nothing where there is no row."""
    return "" if row is None else row.status.replace("_", " ")


def gib(value: float) -> str:
    return f"{value / 2**30:.1f}"


def percent(value: float) -> str:
    """Two significant digits below ten percent."""
    return f"{100 * value:.1f} %" if abs(value) < 0.1 else f"{100 * value:.0f} %"


def fact(value: float | None, text: Callable[[float], str]) -> str:
    """A number for a sentence, or the words that say why there is none."""
    return NOT_MEASURED if value is None else text(value)


def in_words(row: Row | None, text: str) -> str:
    """Why the row has no number, where it was measured and has none; otherwise the
    text.
    """
    return text if row is None or row.status == "ok" else status(row)

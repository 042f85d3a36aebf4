"""Write the data of the results explorer: one line per row of a record and metric.

The file is a script, because a page opened from file:// can load scripts but no JSON.
To keep it small, each text is listed once and lines contain its index. A line omits the
leading texts that it shares with the previous line, and begins with their number.
Curves, such as loss by step, are left out. The time of a step is the sum of its phases.
"""

import json
from collections.abc import Iterator
from os.path import commonprefix
from typing import Any

from systems.experiments import STEMS
from systems.records.record import PHASES, Record, Row
from systems.records.summary import summarize
from tools.render.editions import LABELS, METRICS
from tools.render.frame import Line
from tools.render.load import Found
from tools.render.markdown import explorer_name
from tools.render.rows import fmt

# The columns whose cells are texts. `value` is a number, or a text such as a status.
TEXTS = ("GPU", "stem", "size", "precision", "configuration", "metric", "unit")
COLUMNS = (*TEXTS, "context", "value", "samples")
PRECISION, CONTEXT = ("precision", "dtype"), ("context", "n")
UNITS = {"_ms": "ms", "_bytes": "bytes", "_flops": "FLOP"}


def fragments(found: Found) -> dict[str, str]:
    """Return {"explorer.js": text}, which sets `window.RESULTS` for the explorer."""
    compact: Any = {"ensure_ascii": False, "separators": (",", ":")}
    texts: dict[str, int] = {}
    lines: list[str] = []
    before: list[int] = []
    for stem in STEMS:
        for record in found.get(stem, []):
            for line in record_lines(record):
                named = map(round_float, line[: len(TEXTS)])
                numbered = [texts.setdefault(text, len(texts)) for text in named]
                cells = [*numbered, *line[len(TEXTS) :]]
                same = len(commonprefix([numbered, before]))
                lines.append(json.dumps([same, *cells[same:]], **compact))
                before = numbered
    listed = json.dumps(list(texts), ensure_ascii=False, indent=0)
    columns, labels = json.dumps(COLUMNS), json.dumps(LABELS)
    rows = ",\n".join(lines)
    return {
        "explorer.js": f'window.RESULTS = {{"columns": {columns}, "labels": {labels}, '
        f'"texts": {listed}, "rows": [\n{rows}\n]}}\n'
    }


def record_lines(record: Record) -> Iterator[list[Any]]:
    """Yield cells in the order of COLUMNS for each row and each of its METRICS. A
    failed row gives one line of cells, with its status.
    """
    for row in record.rows:
        name = [
            explorer_name(record),
            record.stem,
            row.config.get("size", ""),
            first_value(row, PRECISION),
            describe_settings(row),
        ]
        context = first_value(row, CONTEXT) or None
        if row.status != "ok":
            yield [*name, "status", "", context, row.status.replace("_", " "), None]
            continue
        for metric in filter(METRICS.__contains__, row.metrics):
            value, count = row.metrics[metric], None
            if isinstance(value, list):
                value, count = summarize(value).median, len(value)
            units = (u for ending, u in UNITS.items() if metric.endswith(ending))
            unit = next(units, "")
            yield [*name, METRICS[metric], unit, context, round_float(value), count]
        step = Line.from_row(row)
        if step.timed_phases == PHASES and (ms := step.ms()):
            yield [*name, "whole step", "ms", context, round_float(ms), None]


def first_value(row: Row, keys: tuple[str, ...]) -> Any:
    values = (row.config.get(key) for key in keys)
    return next((value for value in values if value is not None), "")


def describe_settings(row: Row) -> str:
    """Describe the settings that have no column: "mode forward, batch 4"."""
    shown = {"size", *PRECISION, *CONTEXT}
    return ", ".join(
        f"{key} {fmt(value)}"
        for key, value in row.config.items()
        if key not in shown and value is not None
    )


def round_float(value: Any) -> Any:
    """Round a float to six significant digits; return other values unchanged."""
    return float(f"{value:.6g}") if isinstance(value, float) else value

"""Run an experiment from the command line, with its `Config` as options."""

import json
import math
import sys
from collections.abc import Iterable
from dataclasses import MISSING, asdict, field, fields
from enum import Enum
from inspect import Parameter, Signature
from typing import Any, NoReturn

import typer
from msgspec import structs
from rich.table import Table

from systems import escape_text, plain_console, run_cli
from systems.records.outcome import Run, measure_row
from systems.records.record import PHASES, Row
from systems.records.summary import summarize
from systems.running.machine import limit_host_memory

# The largest number of elements that a tensor can have.
LARGEST = 2**63 - 1
KEYWORD = Parameter.KEYWORD_ONLY


def option(default: Any, help: str, choices: Iterable[str] | None = None) -> Any:
    """Return a dataclass field with default, help and choices (None: any value)."""
    return field(
        default=default,
        metadata={"help": help, "choices": tuple(choices) if choices else None},
    )


def config_options(config: Any) -> list[str]:
    """Return the command-line options that select this configuration."""
    options = []
    for name, value in asdict(config).items():
        if isinstance(value, bool):
            options.append(option_name(name if value else f"no_{name}"))
        else:
            options += [option_name(name), str(value)]
    return options


def option_name(name: str) -> str:
    """Return the option's name for a field: `--keep-traces` for `keep_traces`."""
    return f"--{name.replace('_', '-')}"


def main(config_class: type, run: Run) -> NoReturn:
    """Parse options into a `config_class`, call `run` on it, print a table or JSON."""

    def command(**values: Any) -> None:
        as_json = values.pop("json")
        settings = {
            name: value.value if isinstance(value, Enum) else value
            for name, value in values.items()
        }
        try:
            for name, value in settings.items():
                if isinstance(value, float) and not math.isfinite(value):
                    raise ValueError(f"{option_name(name)} must be finite, not {value}")
            limit_host_memory()
            if sys.stderr.isatty():
                # Show no progress bar, because it would disturb the measurement.
                print("measuring (on a CPU it may take minutes)", file=sys.stderr)
            row = measure_row(config_class(**settings), run)
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(2) from None
        print(json.dumps(row, default=structs.asdict)) if as_json else _print_table(row)

    as_json = typer.Option(False, "--json", help="Print the row as one line of JSON.")
    json_flag = Parameter("json", KEYWORD, default=as_json, annotation=bool)
    parameters = [*map(_make_parameter, fields(config_class)), json_flag]
    command.__signature__ = Signature(parameters)  # pyright: ignore
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    run_cli(command, sys.modules["__main__"].__doc__)


def _make_parameter(f: Any) -> Parameter:
    assert f.default is not MISSING, f"the field {f.name} needs a default"
    annotation: Any = f.type
    bounds: dict[str, Any] = {}
    default = f.default
    if choices := f.metadata["choices"]:
        annotation = Enum(f.name, {choice: choice for choice in choices}, type=str)
        default = annotation(default)
    if f.type is int:
        bounds = {"min": 0 if f.name == "warmup" else 1, "max": LARGEST}
    names = option_name(f.name)
    if f.type is bool:
        names += f"/{option_name(f'no_{f.name}')}"
    parsed = typer.Option(
        default,
        names,
        help=f.metadata["help"][0].upper() + f.metadata["help"][1:] + ".",
        **bounds,
    )
    return Parameter(f.name, KEYWORD, default=parsed, annotation=annotation)


def _print_table(row: Row) -> None:
    console = plain_console()
    config = ", ".join(f"{name} {value}" for name, value in row.config.items())
    console.print(config, style="bold", soft_wrap=True)
    if row.status != "ok":
        console.print(f"{row.status.replace('_', ' ')}: {row.reason}")
        return
    times = {name: value for name, value in row.metrics.items() if name.endswith("_ms")}
    # Only times of phases that were measured together add up to a total.
    phases = [times[f"{phase}_ms"] for phase in PHASES if f"{phase}_ms" in times]
    if len(phases) > 1 and "both_ms" not in times:
        times["total_ms"] = [sum(samples) for samples in zip(*phases, strict=True)]
    if times:
        columns = ["mean", "std", "median", "min", "max"]
        if max(map(len, times.values())) == 1:
            columns.remove("std")
        table = Table("time in ms", *columns)
        for name, samples in times.items():
            summary = summarize(samples)
            # A single sample has no standard deviation, so leave its cell empty.
            cells = (f"{getattr(summary, x):.3f}".replace("nan", "") for x in columns)
            table.add_row(name.removesuffix("_ms"), *cells)
        console.print(table)
    for name, value in row.metrics.items():
        label = name.replace("_", " ")
        if isinstance(value, list) and value and isinstance(value[0], dict):
            console.print(_make_table(label, value))
        elif name not in times:
            gib = f" ({value / 2**30:.2f} GiB)" if name.endswith("_bytes") else ""
            console.print(f"{label}: {_format_metric(value)}{gib}", highlight=False)


def _make_table(title: str, items: list[dict[str, Any]]) -> Table:
    """Return a metric's first 30 objects as a table."""
    if len(items) > 30:
        title += f", 30 of {len(items)}"
    names = (key.replace("_", " ") for key in items[0])
    table = Table(*names, title=title, title_justify="left")
    for item in items[:30]:
        table.add_row(*map(_format_metric, item.values()))
    return table


def _format_metric(value: Any) -> str:
    """Format a metric; shorten a long list to its first and last items."""
    if isinstance(value, list):
        if len(value) > 12:
            value = [*value[:3], "...", *value[-3:]]
        return ", ".join(map(_format_metric, value))
    return f"{value:.8g}" if isinstance(value, float) else escape_text(str(value))

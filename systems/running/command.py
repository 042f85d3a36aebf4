"""An experiment from the command line: the fields of its `Config` are the options."""

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

from systems import plain_console, printable, run_as_command
from systems.records.outcome import Run, measure_row
from systems.records.record import PHASES, Row
from systems.records.summary import summarize
from systems.running.memory import limit_host_memory

# The largest size that a tensor can have.
LARGEST = 2**63 - 1


def option(default: Any, help: str, choices: Iterable[str] | None = None) -> Any:
    """A field of a `Config` that knows its help text and, where only some names are
    allowed, which.
    """
    return field(
        default=default,
        metadata={"help": help, "choices": tuple(choices) if choices else None},
    )


def options_of(config: Any) -> list[str]:
    """The command-line options that give this configuration."""
    given = []
    for name, value in asdict(config).items():
        if isinstance(value, bool):
            given.append(flag(name) if value else no_flag(name))
        else:
            given += [flag(name), str(value)]
    return given


def flag(name: str) -> str:
    """The option of a field: `keep_traces` is `--keep-traces`."""
    return f"--{name.replace('_', '-')}"


def no_flag(name: str) -> str:
    """What switches off a field that is true or false: `--no-keep-traces`."""
    return flag(f"no_{name}")


def main(config_class: type, run: Run) -> NoReturn:
    """Parse the options, measure one configuration, print a table or, with --json, the
    row.
    """
    module = sys.modules["__main__"]
    assert module.__doc__

    def command(**values: Any) -> None:
        as_json = values.pop("json")
        plain = {
            name: value.value if isinstance(value, Enum) else value
            for name, value in values.items()
        }
        try:
            for name, value in plain.items():
                if type(value) is int and value < (0 if name == "warmup" else 1):
                    least = 0 if name == "warmup" else 1
                    raise ValueError(
                        f"{flag(name)} must be {least} or more, not {value}"
                    )
                if type(value) is int and value > LARGEST:
                    raise ValueError(f"{flag(name)} must be {LARGEST} at most")
                if isinstance(value, float) and not math.isfinite(value):
                    raise ValueError(f"{flag(name)} must be finite, not {value}")
            limit_host_memory()
            if sys.stderr.isatty():
                # One line: what keeps moving would take time from what is measured.
                print("measuring (on a CPU it may take minutes)", file=sys.stderr)
            row = measure_row(config_class(**plain), run)
        except ValueError as error:
            print(f"error: {error}", file=sys.stderr)
            raise typer.Exit(2) from None
        print(json.dumps(row, default=structs.asdict)) if as_json else _print_table(row)

    parameters = [_parameter(f) for f in fields(config_class)]
    as_json = typer.Option(False, "--json", help="Print the row as one line of JSON.")
    parameters.append(
        Parameter("json", Parameter.KEYWORD_ONLY, default=as_json, annotation=bool)
    )
    signature = Signature(parameters)
    command.__signature__ = signature  # pyright: ignore[reportFunctionMemberAccess]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    run_as_command(command, module.__doc__)
    raise AssertionError("typer ends the process")


def _parameter(f: Any) -> Parameter:
    assert f.default is not MISSING, f"the field {f.name} needs a default"
    annotation: Any = f.type
    default = f.default
    if choices := f.metadata["choices"]:
        annotation = Enum(f.name, {choice: choice for choice in choices}, type=str)
        default = annotation(default)
    shown = typer.Option(
        default,
        f"{flag(f.name)}/{no_flag(f.name)}" if f.type is bool else flag(f.name),
        help=f.metadata["help"][0].upper() + f.metadata["help"][1:] + ".",
    )
    return Parameter(
        f.name, Parameter.KEYWORD_ONLY, default=shown, annotation=annotation
    )


def _print_table(row: Row) -> None:
    console = plain_console()
    console.print(
        ", ".join(f"{name} {value}" for name, value in row.config.items()),
        style="bold",
        soft_wrap=True,
    )
    if row.status != "ok":
        console.print(f"{row.status.replace('_', ' ')}: {row.reason}")
        return
    times = {name: value for name, value in row.metrics.items() if name.endswith("_ms")}
    # The only times that add up to a whole.
    phases = [times[f"{phase}_ms"] for phase in PHASES if f"{phase}_ms" in times]
    if len(phases) > 1:
        times["total_ms"] = [sum(samples) for samples in zip(*phases, strict=True)]
    if times:
        # Of one sample the rest says nothing; more columns are cut in 80.
        once = all(len(samples) == 1 for samples in times.values())
        shown = ("mean",) if once else ("mean", "std", "median", "min", "max")
        table = Table("time in ms", *([""] if once else shown))
        for name, samples in times.items():
            s = asdict(summarize(samples))
            table.add_row(name.removesuffix("_ms"), *(f"{s[x]:.3f}" for x in shown))
        console.print(table)
    for name, value in row.metrics.items():
        if name not in times and is_table(value):
            console.print(_table_of(name, value))
        elif name not in times:
            console.print(
                f"{name.replace('_', ' ')}: {_shown(name, value)}", highlight=False
            )


LONGEST_TABLE = 30


def is_table(value: Any) -> bool:
    """Whether a metric is a list of objects with the same fields."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(item, dict) for item in value)
    )


def _table_of(name: str, items: list[dict[str, Any]]) -> Table:
    """Its first lines."""
    title = name.replace("_", " ") + (
        f", {LONGEST_TABLE} of {len(items)}" if len(items) > LONGEST_TABLE else ""
    )
    table = Table(
        *(key.replace("_", " ") for key in items[0]), title=title, title_justify="left"
    )
    for item in items[:LONGEST_TABLE]:
        table.add_row(
            *(
                f"{value:.4f}" if isinstance(value, float) else printable(str(value))
                for value in item.values()
            )
        )
    return table


def _shown(name: str, value: Any) -> str:
    """A metric that is no time. Of a long list the first, the middle and the last: the
    record has all.
    """
    if isinstance(value, list):
        parts = (
            [value[0], "...", value[len(value) // 2], "...", value[-1]]
            if len(value) > 12
            else value
        )
        return ", ".join(
            printable(part) if isinstance(part, str) else _shown("", part)
            for part in parts
        )
    if isinstance(value, int):
        return f"{value:,}" + (
            f"  ({value / 2**30:.2f} GiB)" if name.endswith("_bytes") else ""
        )
    return f"{value:.8g}" if isinstance(value, float) else printable(str(value))

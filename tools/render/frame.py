"""Tables of a record's rows: select, join, derive and pivot rows, then print columns.

    steps = frame(record, mode="step", context=512)
    steps.join("fp32", precision="fp32")
    steps.derive(speedup=lambda x: x["fp32"]["step_ms"] / x["step_ms"])
    steps.arrange(size=TABLE_1, precision=("bf16",)).table(
        "size", ("step, ms", "step ±"), ("speedup", "speedup", "{:.1f}")
    )

Each experiment has a function like `steps(record)` that selects rows, joins the rows to
compare with, and derives columns; tables, figures and facts name columns. In a row, a
list of samples (`forward_ms`) reads as its median, `step_ms` as the median of the sum
of all timed phases, `forward ±` as "mean ± standard deviation". `join` stores another
row in each row (`x["fp32"]["step_ms"]`, as a column `"fp32.step_ms"`); `pivot` merges
rows that differ in one axis. Don't test whether a number exists: numbers of absent or
failed rows are `Missing`, and so is arithmetic with them; a table prints the reason
once per line. A name that a successful row lacks raises KeyError, but not in `x.get`.
"""

from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from math import fsum
from typing import Any

from systems.records.outcome import NOT_INSTALLED
from systems.records.record import PHASES, Record, Row
from systems.records.summary import Summary, summarize
from tools.render.markdown import items_table
from tools.render.rows import MISSING, NOT_MEASURED, Missing, fmt

# A step is launch-bound if wall-clock time / GPU time exceeds this ratio.
LAUNCH_BOUND = 1.1


class Line(dict[str, Any]):
    """A row as a dictionary of columns; true only if it was measured successfully."""

    row: Row | None = None

    @classmethod
    def from_row(cls, row: Row) -> "Line":
        line = cls(row.config)
        line.row = row
        return line

    def __bool__(self) -> bool:
        return self.row is not None and self.row.status == "ok"

    def __missing__(self, name: str) -> Any:
        if "." in name:
            other, _, column = name.rpartition(".")
            return self[other][column]
        if self.row is None or not self:
            return self.missing
        metrics, (phase, _, spread) = self.row.metrics, name.partition(" ")
        if spread == "±" and f"{phase}_mean_ms" in metrics:
            # Published rows have a mean, and some of them a standard deviation.
            reported = (metrics.get(f"{phase}_{x}_ms") for x in ("mean", "std"))
            return " ± ".join(f"{ms:.2f}" for ms in reported if ms is not None)
        if spread == "±":
            return self.mean_std(*self.phases(phase))
        if isinstance(metrics.get(name, []), list) and name.endswith("_ms"):
            return self.ms(*self.phases(name.removesuffix("_ms")))
        return metrics[name]

    def get(self, name: str, default: Any = MISSING) -> Any:
        """Return column `name`. If absent, return `default`, or without it, Missing."""
        if self or name in self or default is MISSING:
            with suppress(KeyError):
                return self[name]
        return default

    def phases(self, name: str) -> tuple[str, ...]:
        """Return (name,) if `name` was timed; else for "step" all timed phases, and for
        "step_gpu" their GPU names, as "forward_gpu". Raise KeyError if none was timed.
        """
        if f"{name}_ms" in self.metrics:
            return (name,)
        clock = name.removeprefix("step")
        parts = tuple(f"{p}{clock}" for p in PHASES if f"{p}{clock}_ms" in self.metrics)
        if clock in ("", "_gpu") and parts:
            return parts
        raise KeyError(f"{name}_ms")

    @property
    def config(self) -> dict[str, Any]:
        return self.row.config if self.row else {}

    @property
    def metrics(self) -> dict[str, Any]:
        """All metrics of the row, as measured; {} if the row failed."""
        return self.row.metrics if self.row and self else {}

    @property
    def timed_phases(self) -> tuple[str, ...]:
        """The phases of a step that have wall-clock times."""
        return tuple(p for p in PHASES if f"{p}_ms" in self.metrics)

    @property
    def reason(self) -> str:
        """The reason why a row lacks numbers, such as "out of memory", or ""."""
        if self.row is None or self:
            return ""
        if (self.row.reason or "").startswith(NOT_INSTALLED):
            return NOT_INSTALLED
        return self.row.status.replace("_", " ")

    @property
    def missing(self) -> Missing:
        """The Missing value to use for this row's numbers, which states the reason."""
        return Missing(self.reason or NOT_MEASURED, self.row)

    def samples(self, *names: str) -> list[float]:
        """Return ms of each repetition, summed over phases (default: all), or []."""
        parts = [self.metrics.get(f"{x}_ms", ()) for x in names or self.timed_phases]
        if not (parts and all(parts)):
            return []
        # Before Python 3.12, `sum` rounds after each term, so results would differ.
        return [fsum(times) for times in zip(*parts, strict=True)]

    def summary(self, *names: str) -> Summary:
        """Return statistics of `samples(*names)`; Missing values if there are none."""
        samples = self.samples(*names)
        return summarize(samples) if samples else Summary(*[self.missing] * 5)

    def ms(self, *names: str) -> float:
        """Return the median of `samples(*names)` in ms, or Missing."""
        return self.summary(*names).median

    def mean_std(self, *names: str) -> Any:
        """Return mean ± standard deviation of `samples`: "38.32 ± 0.36", or Missing."""
        s = self.summary(*names)
        digits = 2 if s.mean < 100 else 1
        std = f" ± {s.std:.{digits}f}" if s.std >= 0 else ""
        return f"{s.mean:.{digits}f}{std}" if self else self.missing

    def gpu_ms(self, *names: str) -> float:
        """Return the median GPU ms, summed over phases (default: all), or Missing."""
        timed = names or self.timed_phases
        has = timed and all(f"{name}_gpu_ms" in self.metrics for name in timed)
        return self.ms(*(f"{name}_gpu" for name in timed)) if has else self.missing

    def kernel_ms(self, *names: str) -> float:
        """Return `gpu_ms`, or on a CPU the median wall-clock ms, or Missing."""
        failed = "no_gpu_time" in self.metrics
        return self.gpu_ms(*names) or (self.missing if failed else self.ms(*names))

    def warmup_seconds(self, warmup: str, steady: str) -> float:
        """Return the sum of samples `warmup` - their number x median `steady`, in s."""
        times = self.samples(warmup)
        return (sum(times) - len(times) * self.ms(steady)) / 1e3


class Frame(list[Line]):
    """A list of rows that can be selected, joined, pivoted and printed."""

    def where(self, *tests: Callable[[Line], Any], **wanted: Any) -> "Frame":
        """Select rows by functions and columns: `size="xl"`, `size=("small", "xl")`."""

        def matches(x: Line) -> bool:
            return all(test(x) for test in tests) and all(
                x.get(name) in value
                if isinstance(value, Collection) and not isinstance(value, str)
                else x.get(name) == value
                for name, value in wanted.items()
            )

        return Frame(filter(matches, self))

    def arrange(self, **orders: Iterable[Any]) -> "Frame":
        """Select rows by column, such as `size=("small", "xl")`; sort in that order."""
        listed = {name: list(values) for name, values in orders.items()}

        def sort_key(x: Line) -> list[int]:
            return [values.index(x[name]) for name, values in listed.items()]

        return Frame(sorted(self.where(**listed), key=sort_key))

    def one(self, **wanted: Any) -> Line:
        """Return the first row that `where` selects, or a row of Missing values."""
        return next(iter(self.where(**wanted)), Line())

    def column(self, name: str) -> list[Any]:
        return [x[name] for x in self]

    def values(self, name: str) -> list[Any]:
        """Return the distinct values of a column, in the order of the rows."""
        return list(dict.fromkeys(self.column(name)))

    def derive(self, **columns: Callable[[Line], Any]) -> "Frame":
        """Add columns, each computed by a function of the row; return this frame."""
        for x in self:
            for name, value in columns.items():
                x[name] = value(x)
        return self

    def join(
        self,
        name: str,
        other: "Frame | None" = None,
        on: Iterable[str] = (),
        **values: Any,
    ) -> "Frame":
        """Store in each row, as column `name`, the row of `other` that has these
        `values` and agrees in the columns `on`. Defaults: `other` is this frame, and
        `on` is the whole configuration except `values`.
        """
        keys = [*dict.fromkeys([*(on or (self[0].config if self else ())), *values])]
        index: dict[tuple[Any, ...], Line] = {}
        for y in self if other is None else other:
            index.setdefault(tuple(y.get(key) for key in keys), y)
        for x in self:
            wanted = tuple((x | values).get(key, MISSING) for key in keys)
            x[name] = index.get(wanted, Line())
        return self

    def pivot(self, axis: str, *values: Any) -> "Frame":
        """Merge rows that differ only in `axis` into one row, which has for each of the
        `values` of `axis` a column with the original row.
        """
        rows: dict[tuple[Any, ...], Line] = {}
        for x in self.where(**{axis: values}):
            rest = {key: value for key, value in x.config.items() if key != axis}
            absent = {value: Line() for value in values}
            merged = rows.setdefault(tuple(rest.items()), Line(rest | absent))
            merged[x[axis]] = x
        return Frame(rows.values())

    # Return a Markdown table, such as `found.table("size", ("step, ms", "step_ms"))`.
    table = items_table


def frame(record: Record | None, **wanted: Any) -> Frame:
    """Return a record's rows that `where(**wanted)` selects, including failed rows."""
    return Frame(map(Line.from_row, record.rows if record else ())).where(**wanted)


def gpu_columns() -> list[tuple[str, Callable[[Line], Any]]]:
    """Return three columns for tables of steps, each as (header, function of a row):
    GPU ms, wall-clock ms minus GPU ms, and "launch-bound" or "".
    """

    def show(x: Line, ms: float) -> Any:
        # Print "not measured" in rows that have only wall-clock times.
        return fmt(ms, "{:.1f}") if x else x.missing

    def launch_bound_text(x: Line) -> Any:
        over = x["step_ms"] / x.get("step_gpu_ms")
        return "launch-bound" * (over > LAUNCH_BOUND) if x else x.missing

    return [
        ("step, GPU, ms", lambda x: show(x, x.get("step_gpu_ms"))),
        ("step, waiting, ms", lambda x: show(x, x["step_ms"] - x.get("step_gpu_ms"))),
        ("step is", launch_bound_text),
    ]

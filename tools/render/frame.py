"""A record as a table: select, join, derive and pivot rows, then print columns by name.

    steps = frame(record, mode="step", context=512)
    steps.join("fp32", precision="fp32")
    steps.derive(speedup=lambda x: x["fp32"]["step_ms"] / x["step_ms"])
    steps.arrange(size=TABLE_1, precision=("bf16",)).table(
        "size", ("step, ms", "step ±"), ("speedup", "speedup", "{:.1f}")
    )

    | size | step, ms | speedup |
    | :--- | ---: | ---: |
    | small | 53.44 ± 4.07 | 1.3 |
    | 2.7B | out of memory |  |

How to write a builder with it:

1. One function, `steps(record)` or a noun of the stem, makes the frame: it selects
   rows, joins those that a column compares with, and derives every column. Tables,
   figures, facts and claims name columns of this frame and compute nothing.
2. A row reads like a dictionary. Its configuration and metrics are there by name. A
   metric that is a list of samples (`forward_ms`) reads as its median, `step_ms` as the
   median of all timed phases together, and `forward ±` as "mean ± standard deviation".
   GPU time is `forward_gpu_ms`, and `step_gpu_ms`; `clocks("step")` gives columns of
   wall-clock time, GPU time and their difference.
   `x.summary("forward", "backward")` has the other statistics of summed phases.
3. `join` gives each row another row under a name: `x["fp32"]["step_ms"]`. A column may
   name it by a path: `("fp32, ms", "fp32.step_ms")`. `pivot` gives a row for each
   configuration apart from one axis, and under each value of that axis its row.
4. Don't ask whether a number exists. A row that ran out of memory, and a row that is
   not there, read as `Missing`; arithmetic keeps the reason and a table prints it once
   in a line. A name that a row with numbers lacks is a `KeyError`: a typing error. Read
   a metric that only some records have with `x.get(name)`.
5. Where a figure or a sentence needs numbers alone, take `known(steps.column(name))`,
   `least`, `most` or `span` of it. `texts` prints facts of one format.
6. Rows of a table come in the order of `arrange`; `telling` chooses those of a long
   table that a page shows first.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import takewhile
from math import fsum
from operator import itemgetter
from typing import Any

from systems.records.outcome import NOT_INSTALLED
from systems.records.record import PHASES, Record, Row
from systems.records.summary import Summary, summarize
from tools.render.markdown import columns
from tools.render.rows import MISSING, NOT_MEASURED, Missing, Text, say


class Line(dict[str, Any]):
    """A row by column names; false where it has no numbers."""

    row: Row | None = None

    @classmethod
    def of(cls, row: Row) -> "Line":
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
        if spread == "±":
            return self.mean_std(*self.phases(phase))
        if isinstance(metrics.get(name, []), list) and name.endswith("_ms"):
            return self.ms(*self.phases(name.removesuffix("_ms")))
        return metrics[name]

    def get(self, name: str, default: Any = MISSING) -> Any:
        """A column that not every row has."""
        try:
            found = self[name]
        except KeyError:
            return default
        return found if self or name in self or default is MISSING else default

    def phases(self, name: str) -> tuple[str, ...]:
        """The timed parts of a phase: of `step` and of `step_gpu` all phases, unless
        it was timed as one.
        """
        has = self.metrics.keys()
        clock = name.removeprefix("step")
        parts = tuple(f"{p}{clock}" for p in PHASES if f"{p}{clock}_ms" in has)
        if f"{name}_ms" not in has and clock in ("", "_gpu") and parts:
            return parts
        if f"{name}_ms" not in has:
            raise KeyError(f"{name}_ms")
        return (name,)

    @property
    def config(self) -> dict[str, Any]:
        return self.row.config if self.row else {}

    @property
    def metrics(self) -> dict[str, Any]:
        """All numbers as they were measured, none where it has none."""
        return self.row.metrics if self.row and self else {}

    @property
    def why(self) -> str:
        """Why it has no numbers: "out of memory". Nothing where it has, or was never
        tried.
        """
        if self.row is None or self:
            return ""
        if (self.row.reason or "").startswith(NOT_INSTALLED):
            return NOT_INSTALLED
        return self.row.status.replace("_", " ")

    @property
    def missing(self) -> Missing:
        """What stands for each number that it lacks."""
        return Missing(self.why or NOT_MEASURED, self.row)

    def samples(self, *names: str) -> list[float]:
        """The milliseconds of each repetition, the named parts together; without names,
        those phases of a step that were timed.
        """
        timed = names or [p for p in PHASES if f"{p}_ms" in self.metrics]
        parts = [self.metrics.get(f"{name}_ms", ()) for name in timed]
        if not (parts and all(parts)):
            return []
        # From Python 3.12 on `sum` rounds once, too.
        return [fsum(times) for times in zip(*parts, strict=True)]

    def summary(self, *names: str) -> Summary:
        """Of `samples`. Its fields are Missing where there are none."""
        samples = self.samples(*names)
        return summarize(samples) if samples else Summary(0, *[self.missing] * 7)

    def ms(self, *names: str) -> float:
        """The median of `samples`."""
        return self.summary(*names).median

    def mean_std(self, *names: str) -> Any:
        """ "38.32 ± 0.36", and "116.2 ± 1.2"."""
        s = self.summary(*names)
        digits = 2 if s.mean < 100 else 1
        text = f"{s.mean:.{digits}f} ± {s.std:.{digits}f}"
        return text if self else self.missing

    def gpu_ms(self, *names: str) -> float:
        """The median GPU time of the named phases together, or of all that were timed.
        Missing where it was not measured.
        """
        timed = names or [p for p in PHASES if f"{p}_ms" in self.metrics]
        has = timed and all(f"{name}_gpu_ms" in self.metrics for name in timed)
        return self.ms(*(f"{name}_gpu" for name in timed)) if has else self.missing

    def kernel_ms(self, name: str) -> float:
        """GPU time of a call; in a record from before it was measured, `do_bench`'s. Of
        both passes that is the sum where the GPU waited between them.
        """
        if f"{name}_gpu_ms" in self.metrics or f"{name}_ms" not in self.metrics:
            return self.gpu_ms(name)
        parts = ("forward", "backward") if name == "both" else (name,)
        return min(self.ms(name), sum(map(self.ms, parts)))

    def beyond(self, warm: str, settled: str) -> float:
        """In seconds, what warm-up samples took beyond as many settled ones."""
        times = self.samples(warm)
        return (sum(times) - len(times) * self.ms(settled)) / 1e3


class Frame(list[Line]):
    """Rows to select from, to join, and to print."""

    def where(self, *tests: Callable[[Line], Any], **wanted: Any) -> "Frame":
        """Select rows with these values: of a collection any."""

        def fits(x: Line) -> bool:
            return all(test(x) for test in tests) and all(
                x.get(name) in value
                if isinstance(value, Collection) and not isinstance(value, str)
                else x.get(name) == value
                for name, value in wanted.items()
            )

        return Frame(filter(fits, self))

    def arrange(self, **orders: Iterable[Any]) -> "Frame":
        """Select rows with these values, in the order of the values."""
        listed = {name: list(values) for name, values in orders.items()}

        def places(x: Line) -> list[int]:
            return [values.index(x[name]) for name, values in listed.items()]

        return Frame(sorted(self.where(**listed), key=places))

    def one(self, **wanted: Any) -> Line:
        """The first row with these values. One that is not there has no numbers."""
        return next(iter(self.where(**wanted)), Line())

    def column(self, name: str) -> list[Any]:
        return [x[name] for x in self]

    def curves(self, by: str, x: str, y: str) -> dict[Any, tuple[list[Any], list[Any]]]:
        """A curve for each value of a column: its xs and ys, as `family` draws them."""
        parts = {value: self.where(**{by: value}) for value in self.column(by)}
        return {
            value: (part.column(x), part.column(y)) for value, part in parts.items()
        }

    def derive(self, **columns: Callable[[Line], Any]) -> "Frame":
        """Add columns to each row, in this order."""
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
        """Give each row, under a name, the row of another frame that has these `values`
        and the same values `on` these columns. By default that is the row of this frame
        whose configuration differs in `values` alone.
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
        """Return a row for each configuration apart from `axis`. It has the row of each
        value of the axis under that value.
        """
        rows: dict[tuple[Any, ...], Line] = {}
        for x in self.where(**{axis: values}):
            rest = {key: value for key, value in x.config.items() if key != axis}
            absent = {value: Line() for value in values}
            line = rows.setdefault(tuple(rest.items()), Line(rest | absent))
            line[x[axis]] = x
        return Frame(rows.values())

    def table(
        self,
        *shown: str | tuple[Any, ...],
        left: int = 0,
        telling: Callable[[Line], bool] | None = None,
        alike: Collection[str] = (),
    ) -> str:
        """Print columns: a name; or the head, a name or a function of a row, and how a
        value is printed. Names that come first name the line, or `left` columns do.
        Columns in `alike` become a sentence where all rows have the same value.
        """
        names = len([*takewhile(lambda one: isinstance(one, str), shown)])
        pairs = [(one, one) if isinstance(one, str) else one for one in shown]
        described = [
            (head, value if callable(value) else itemgetter(value), *text)
            for head, value, *text in pairs
        ]
        return columns(
            self, *described, left=left or names or 1, telling=telling, alike=alike
        )


def frame(record: Record | None, **wanted: Any) -> Frame:
    """The rows of a record with these values, with numbers or without."""
    return Frame(map(Line.of, record.rows if record else ())).where(**wanted)


def texts(text: Text, values: Mapping[str, Any]) -> dict[str, str]:
    """Print facts of one format, by name."""
    return {name: say(value, text) for name, value in values.items()}


def clocks(phase: str, text: Text = "{:.1f}") -> list[tuple[Any, ...]]:
    """Columns of a phase: wall-clock time, and `gpu_columns`."""
    return [(f"{phase}, wall, ms", f"{phase}_ms", text), *gpu_columns(phase, text)]


def gpu_columns(
    phase: str, text: Text = "{:.1f}"
) -> list[tuple[str, Callable[[Line], Any]]]:
    """Columns of a phase: GPU time, how long the GPU waited, and whether the phase is
    launch-bound.
    """
    wall, gpu = f"{phase}_ms", f"{phase}_gpu_ms"

    def told(x: Line, ms: float) -> Any:
        # A row that has wall-clock time alone says so in the line.
        return say(ms, text) if x else x.missing

    return [
        (f"{phase}, GPU, ms", lambda x: told(x, x.get(gpu))),
        (f"{phase}, waiting, ms", lambda x: told(x, x[wall] - x.get(gpu))),
        (f"{phase} is", lambda x: launch_bound_label(x, phase)),
    ]


# Wall-clock time over GPU time from which on a phase is launch-bound.
LAUNCH_BOUND = 1.1


def launch_bound_label(x: Line, phase: str = "step") -> Any:
    """ "launch-bound", or nothing."""
    over = x[f"{phase}_ms"] / x.get(f"{phase}_gpu_ms")
    return "launch-bound" * (over > LAUNCH_BOUND) if x else x.missing

"""Rows of a record, as builders ask for them.

A row may be missing, out of memory, unsupported or failed. That is decided here: where
there is no number there is a `Missing`, which knows the words for why not, and whatever
is computed with it is missing for the same reason. So builders divide, compare and
print without asking first:

    step = cell(record, size="small", mode="step")
    say(step.ms("backward") / step.ms("forward"), "{:.2f}")  # or "out of memory"
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import fsum
from typing import Any

from systems.formulas.costs import Peak, find_peak
from systems.records.outcome import NOT_INSTALLED
from systems.records.record import PHASES, Record, Row
from systems.records.summary import Summary, summarize

NOT_MEASURED, OUT_OF_MEMORY = "not measured", "out of memory"

# How a number is printed: "{:.1f} ms", or a function.
Text = str | Callable[[Any], str]


class Missing(float):
    """No number, and the words that stand in its place. It is false, compares as NaN
    does, formats as its words, and arithmetic with it gives it back.
    """

    words: str
    # The row that it is missing from.
    row: Row | None

    def __new__(cls, words: str = NOT_MEASURED, row: Row | None = None) -> "Missing":
        missing = super().__new__(cls, "nan")
        missing.words, missing.row = words, row
        return missing

    def __bool__(self) -> bool:
        return False

    def __format__(self, spec: str, /) -> str:
        return self.words

    def itself(self, *_: object) -> "Missing":
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = itself
    __truediv__ = __rtruediv__ = __floordiv__ = __pow__ = __rpow__ = itself
    __neg__ = __abs__ = __round__ = __ceil__ = __floor__ = itself  # pyright: ignore
    # A column of a row that is missing.
    __getitem__ = itself

    def __str__(self) -> str:
        return self.words

    __repr__ = __str__


MISSING = Missing()


# Of a GPU whose data sheet nobody listed.
UNLISTED = Peak(MISSING, MISSING, MISSING, MISSING, "")


def data_sheet(slug: str) -> Peak:
    """The rates of this GPU, Missing where none are listed."""
    return find_peak(slug) or UNLISTED


def say(value: Any, text: Text = "{}") -> str:
    """The value as text, or the words for why there is none. Words that stand in a
    number's place stay as they are.
    """
    if isinstance(value, Missing):
        return value.words
    if isinstance(value, bool) and text == "{}":
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    return text.format(value) if isinstance(text, str) else text(value)


def known(values: Iterable[float]) -> list[float]:
    """Those that are numbers."""
    return [value for value in values if not isinstance(value, Missing)]


def instead(values: Iterable[float]) -> Missing:
    """What stands for values of which none is a number: that they ran out of memory, if
    any did, which is a result.
    """
    why = (value for value in values if isinstance(value, Missing))
    return next((each for each in why if each.words.startswith(OUT_OF_MEMORY)), MISSING)


def least(values: Iterable[float]) -> float:
    values = list(values)
    return min(known(values), default=instead(values))


def most(values: Iterable[float]) -> float:
    values = list(values)
    return max(known(values), default=instead(values))


def span(values: Iterable[float], text: str = "{:.2f}") -> str:
    """ "1.20 to 3.40", or "1.20" where that is all."""
    values = list(values)
    if not (found := known(values)):
        return instead(values).words
    low, high = (text.format(end(found)) for end in (min, max))
    return low if low == high else f"{low} to {high}"


def ranges(values: Iterable[float]) -> str:
    """ "ranges from 1.20 to 3.40", to follow what does."""
    values = list(values)
    if known(values):
        told = span(values)
        return f"ranges from {told}" if " to " in told else f"is {told}"
    return "ran out of memory" if instead(values) is not MISSING else "was not measured"


@dataclass(frozen=True)
class Cell:
    """One configuration of a record: false where it has no numbers."""

    row: Row | None

    def __bool__(self) -> bool:
        return self.row is not None and self.row.status == "ok"

    @property
    def config(self) -> dict[str, Any]:
        return self.row.config if self.row else {}

    @property
    def metrics(self) -> dict[str, Any]:
        """All numbers by name, none where it has none."""
        return self.row.metrics if self.row and self else {}

    @property
    def why(self) -> str:
        """Why it has no numbers. Nothing where it has, or was never tried."""
        if self.row is None or self:
            return ""
        if (self.row.reason or "").startswith(NOT_INSTALLED):
            return NOT_INSTALLED
        return self.row.status.replace("_", " ")

    @property
    def missing(self) -> Missing:
        """What stands for each number that it lacks."""
        return Missing(self.why or NOT_MEASURED, self.row)

    def __getitem__(self, metric: str) -> Any:
        """Return a metric, or what stands for it where the row lacks it."""
        return self.metrics.get(metric, self.missing)

    def get(self, metric: str, default: Any = MISSING) -> Any:
        """A metric that not every row has."""
        has = self.row is not None and self and metric in self.row.metrics
        return self[metric] if has or default is MISSING and not self else default

    def samples(self, *names: str) -> list[float]:
        """In ms, the named parts of each repetition added up; without names, those
        phases of a step that were timed.
        """
        if not (self.row and self):
            return []
        timed = names or [p for p in PHASES if f"{p}_ms" in self.row.metrics]
        parts = [self.row.metrics.get(f"{name}_ms", ()) for name in timed]
        if not all(parts):
            return []
        # From Python 3.12 on `sum` rounds once, too.
        return [fsum(times) for times in zip(*parts, strict=True)]

    def summary(self, *names: str) -> Summary:
        """Of `samples`. Its fields are Missing where there are none."""
        samples = self.samples(*names)
        if not samples:
            return Summary(0, *[self.missing] * 7)
        return summarize(samples)

    def ms(self, *names: str) -> float:
        """The median of `samples`."""
        return self.summary(*names).median

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

    def mean_std(self, *names: str) -> Any:
        """ "38.32 ± 0.36", and "116.2 ± 1.2"."""
        s = self.summary(*names)
        digits = 2 if s.mean < 100 else 1
        text = f"{s.mean:.{digits}f} ± {s.std:.{digits}f}"
        return text if self else self.missing

    @property
    def spread(self) -> float:
        """Return p80 over p20 of the steps."""
        whole = self.summary()
        return whole.p80 / whole.p20


def cell(record: Record | None, **config: Any) -> Cell:
    """The first row whose configuration has these values."""
    return Cell(record.find(**config) if record else None)


def cells(record: Record | None, **config: Any) -> list[Cell]:
    """All such rows, in the order of the grid, with numbers or without."""
    rows = record.rows if record else []
    return [Cell(row) for row in rows if config.items() <= row.config.items()]


def ran(record: Record | None, **config: Any) -> list[Cell]:
    """Those of them that have numbers."""
    return [c for c in cells(record, **config) if c]


def axis(record: Record | None, key: str, **config: Any) -> list[Any]:
    """The values that the configuration takes there, in the order of the grid."""
    found = (c.config[key] for c in cells(record, **config) if key in c.config)
    return list(dict.fromkeys(found))


def faster(before: Cell, after: Cell, *names: str) -> float:
    """Time of one over that of the other, of the named parts."""
    return before.ms(*names) / after.ms(*names)


def measured(records: Iterable[Record]) -> list[Record]:
    """Those that were measured, not reported."""
    return [record for record in records if record.kind == "measured"]


def counted(flags: Iterable[bool]) -> Any:
    """ "8 of 9" are true."""
    found = list(flags)
    return f"{sum(found)} of {len(found)}" if found else MISSING

"""Numbers that may be missing, and their formats.

Numbers of a row that is absent, ran out of memory, is unsupported or failed are
`Missing` values with the reason. Arithmetic with a Missing value returns it, so code
can divide, compare and print numbers without testing first.
"""

from collections.abc import Callable, Iterable
from typing import Any

from systems.formulas.costs import PEAKS, Peak
from systems.records.record import Record, Row

NOT_MEASURED, OUT_OF_MEMORY = "not measured", "out of memory"

# The format of a value: a string such as "{:.1f} ms", or a function.
Text = str | Callable[[Any], str]


class Missing(float):
    """A missing number: prints as `words`, is false, and propagates like NaN."""

    words: str
    # The row that lacks the number.
    row: Row | None

    def __new__(cls, words: str = NOT_MEASURED, row: Row | None = None) -> "Missing":
        missing = super().__new__(cls, "nan")
        missing.words, missing.row = words, row
        return missing

    def __bool__(self) -> bool:
        return False

    def __format__(self, spec: str, /) -> str:
        return self.words

    def return_self(self, *_: object) -> "Missing":
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = return_self
    __truediv__ = __rtruediv__ = __floordiv__ = __pow__ = __rpow__ = return_self
    __neg__ = __abs__ = __round__ = __ceil__ = __floor__ = return_self  # pyright: ignore
    # An absent row is a Missing value too, and each column read from it is Missing.
    __getitem__ = return_self
    __iter__ = None  # Or iterating would call __getitem__ forever.

    def __str__(self) -> str:
        return self.words

    __repr__ = __str__


MISSING = Missing()
# Peak rates for GPUs whose data sheet is not listed: all Missing.
UNLISTED = Peak(*4 * [Missing("no data sheet listed")])


def peak_rates(slug: str) -> Peak:
    """Return a GPU's data-sheet FLOP/s and bandwidth; Missing values if not listed."""
    return PEAKS.get(slug) or UNLISTED


def fmt(value: Any, text: Text = "{}") -> str:
    """Format a value with `text`; Missing as its reason, booleans as "yes" or "no"."""
    if isinstance(value, Missing):
        return value.words
    if isinstance(value, bool) and text == "{}":
        return "yes" if value else "no"
    if isinstance(value, str):
        return value
    return text.format(value) if isinstance(text, str) else text(value)


def dropna(values: Iterable[float]) -> list[float]:
    """Return the values that are neither Missing nor NaN."""
    return [value for value in values if value == value]


def find_missing_value(values: Iterable[float]) -> Missing:
    """Return the first Missing value with the reason out of memory, else MISSING."""
    reasons = (value for value in values if isinstance(value, Missing))
    return next((x for x in reasons if x.words.startswith(OUT_OF_MEMORY)), MISSING)


def nanmin(values: Iterable[float]) -> float:
    values = list(values)
    return min(dropna(values), default=find_missing_value(values))


def nanmax(values: Iterable[float]) -> float:
    values = list(values)
    return max(dropna(values), default=find_missing_value(values))


def span(values: Iterable[float], text: Text = "{:.2f}") -> str:
    """Format a range: "1.20 to 3.40", or "1.20" if equal, or why all are missing."""
    values = list(values)
    if not (numbers := dropna(values)):
        return find_missing_value(values).words
    low, high = (fmt(end(numbers), text) for end in (min, max))
    return low if low == high else f"{low} to {high}"


def describe_range(values: Iterable[float]) -> str:
    """Return "ranges from 1.20 to 3.40", "is 1.20", or why all values are missing."""
    text = span(values := list(values))
    if dropna(values):
        return f"ranges from {text}" if " to " in text else f"is {text}"
    return "ran out of memory" if text.startswith(OUT_OF_MEMORY) else f"was {text}"


def measured_records(records: Iterable[Record]) -> list[Record]:
    """Return the measured records, leaving out records of published figures."""
    return [record for record in records if record.kind == "measured"]


def count_true(flags: Iterable[float]) -> Any:
    """Count the true flags: "8 of 9". Return Missing if there are no flags."""
    flags = list(flags)
    return f"{sum(flags)} of {len(flags)}" if flags else MISSING

"""Numbers that may be missing, and how they are printed.

A row may be missing, out of memory, unsupported or failed. Where there is no number
there is a `Missing`, which knows the words for why not, and whatever is computed with
it is missing for the same reason. So builders divide, compare and print without asking
first.
"""

from collections.abc import Callable, Iterable
from typing import Any

from systems.formulas.costs import Peak, find_peak
from systems.records.record import Record, Row

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
UNLISTED = Peak(MISSING, MISSING, MISSING, MISSING)


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


def axis(record: Record | None, key: str, **config: Any) -> list[Any]:
    """The values that the configuration takes there, in the order of the grid."""
    rows = record.rows if record else []
    wanted = (row.config for row in rows if config.items() <= row.config.items())
    return list(dict.fromkeys(found[key] for found in wanted if key in found))


def measured(records: Iterable[Record]) -> list[Record]:
    """Those that were measured, not reported."""
    return [record for record in records if record.kind == "measured"]


def counted(flags: Iterable[bool]) -> Any:
    """ "8 of 9" are true."""
    found = list(flags)
    return f"{sum(found)} of {len(found)}" if found else MISSING

"""Claims: sentences of the write-up that a record can confirm or refute.

A claim is defined in the builder of its stem. It reads one record and returns whether
it holds and the numbers that decide it. The write-up prints both outcomes, so a
measurement on another GPU never leaves a false sentence behind. A threshold is
justified by theory or by what was known before the measurement.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from systems.records.record import Record
from tools.render.load import FRESH, age
from tools.render.markdown import record_link, typeset

# Whether the claim holds, and its numbers as a sentence. A value that is not a tuple
# (an empty list, a missing number) means that the rows to judge by are missing.
Judgement = tuple[bool, str] | list[float] | float | None


@dataclass(frozen=True)
class Claim:
    """A claim: `sentence` says what holds, `because` justifies its threshold."""

    name: str
    stem: str
    problem: str
    sentence: str
    judge: Callable[[Record], Judgement]
    because: str


def claim(
    problem: str, sentence: str, because: str = ""
) -> Callable[[Callable[[Record], Judgement]], Claim]:
    """Turn a function of a record into a claim of the stem in whose module it is."""

    def make_claim(judge: Callable[[Record], Judgement]) -> Claim:
        stem = judge.__module__.split(".")[3]
        return Claim(judge.__name__, stem, problem, sentence, judge, because)

    return make_claim


def claims_in(builder: ModuleType) -> list[Claim]:
    """Return the claims of a stem in their order. A builder that is a folder may have
    them in its module `claims`.
    """
    names = vars(builder) | vars(getattr(builder, "claims", builder))
    return [value for value in names.values() if isinstance(value, Claim)]


def verdict(claim: Claim, record: Record | None) -> str:
    """Return the outcome of a claim, its sentence, its numbers and a link to the
    record.
    """
    judgement = claim.judge(record) if record else None
    if record is None or not isinstance(judgement, tuple):
        return (
            "**No data here:** the rows that decide this are missing or ran out of "
            f"memory. {claim.sentence}"
        )
    mark = "" if (known_age := age(record)) == FRESH else f", {known_age}"
    holds, numbers = judgement
    outcome = "Holds" if holds else "Does not hold here"
    why = f" *Why this bar:* {claim.because}" if claim.because else ""
    text = f"{claim.sentence} {typeset(numbers)}{why} ({record_link(record)}{mark})"
    return f"**{outcome}:** {text}"

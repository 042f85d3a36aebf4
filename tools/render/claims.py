"""Claims: sentences of the write-up that a record can confirm or refute.

A claim stands beside the builder of its stem. It reads one record and says whether it
holds there, with the numbers that decide it. Both outcomes are printed, so measuring
again on another GPU never leaves a false sentence behind. Where it draws a line, it
says why there: from theory, or from what was known before the measurement.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from systems.records.record import Record
from tools.render.load import FRESH, age
from tools.render.markdown import in_words, record_link

# Whether it holds, and the numbers as a sentence. Anything false (an empty list, a
# missing number): the rows to judge by are not there.
Judgement = tuple[bool, str] | list[float] | float | None


@dataclass(frozen=True)
class Claim:
    """`sentence` says what holds, `because` argues for its threshold."""

    name: str
    stem: str
    problem: str
    sentence: str
    judge: Callable[[Record], Judgement]
    because: str


def claim(
    problem: str, sentence: str, because: str = ""
) -> Callable[[Callable[[Record], Judgement]], Claim]:
    """Make the claim that a function of a record judges, in the module of its stem."""

    def of(judge: Callable[[Record], Judgement]) -> Claim:
        stem = judge.__module__.split(".")[3]
        return Claim(judge.__name__, stem, problem, sentence, judge, because)

    return of


def claims_in(builder: ModuleType) -> list[Claim]:
    """The claims of a stem, in their order. A builder that is a folder may have them in
    its `claims`.
    """
    found = vars(builder) | vars(getattr(builder, "claims", builder))
    return [value for value in found.values() if isinstance(value, Claim)]


def verdict(claim: Claim, record: Record | None) -> str:
    """The outcome, the sentence, its numbers, and the record that they are of."""
    judgement = claim.judge(record) if record else None
    if record is None or not isinstance(judgement, tuple):
        return (
            "**No data here:** the rows that decide this are missing or ran out of "
            f"memory. {claim.sentence}"
        )
    old = "" if (known := age(record)) == FRESH else f", {known}"
    holds, numbers = judgement
    judged = "Holds" if holds else "Does not hold here"
    why = f" *Why this bar:* {claim.because}" if claim.because else ""
    told = f"{claim.sentence} {in_words(numbers)}{why} ({record_link(record)}{old})"
    return f"**{judged}:** {told}"

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
    """`sentence` says what holds. `otherwise` is what else is so where it does not, if
    that is more than "does not hold here". `because` argues for its threshold.
    """

    name: str
    stem: str
    problem: str
    sentence: str
    judge: Callable[[Record], Judgement]
    otherwise: str = ""
    because: str = ""


def claim(
    problem: str, sentence: str, otherwise: str = "", because: str = ""
) -> Callable[[Callable[[Record], Judgement]], Claim]:
    """Makes the claim that a function of a record judges, in the module of its stem."""

    def of(judge: Callable[[Record], Judgement]) -> Claim:
        stem = judge.__module__.split(".")[3]
        name = judge.__name__
        return Claim(name, stem, problem, sentence, judge, otherwise, because)

    return of


def claims_in(builder: ModuleType) -> list[Claim]:
    """The claims of a stem, in their order. A builder that is a folder may have them in
    its `claims`.
    """
    found = vars(builder) | vars(getattr(builder, "claims", builder))
    return [value for value in found.values() if isinstance(value, Claim)]


def verdict(claim: Claim, record: Record | None) -> str:
    """The outcome, the sentence that it is of, its numbers, the record that they are
    of.
    """
    judgement = claim.judge(record) if record else None
    if record is None or not isinstance(judgement, tuple):
        return (
            "**No data here:** the rows that decide this are missing or ran out of "
            f"memory. {claim.sentence}"
        )
    old = "" if (known := age(record)) == FRESH else f", {known}"
    link = f"({record_link(record)}{old})"
    holds, numbers = judgement
    said = claim.sentence if holds else claim.otherwise or claim.sentence
    # What a claim says otherwise is what was found.
    found = "; found instead" if claim.otherwise else ""
    judged = "Holds" if holds else f"Does not hold here{found}"
    why = f" *Why this bar:* {claim.because}" if claim.because else ""
    return f"**{judged}:** {said} {in_words(numbers)}{why} {link}"

"""Claims of the write-up, which a record confirms or refutes (a record holds the
measurements of one experiment on one GPU).

The module that renders an experiment also defines the claims about it. The write-up
prints whether each claim holds and the numbers that decide it, so a new measurement
leaves no false sentence. Limits come from theory or earlier knowledge.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from systems.records.record import Record
from tools.render.load import is_fresh
from tools.render.markdown import record_link, typeset

# Whether the claim holds, and a sentence with the numbers that decide it. If this is no
# tuple but, for example, an empty list, the record lacks rows that the claim needs.
Judgement = tuple[bool, str] | list[float] | float | None


@dataclass(frozen=True)
class Claim:
    """A claim (`sentence`) on a graded problem, about the results of experiment `stem`.
    `judge` checks a record; `because` gives the reason for the limit that `judge` uses.
    """

    name: str
    stem: str
    problem: str
    sentence: str
    judge: Callable[[Record], Judgement]
    because: str


def claim(
    problem: str, sentence: str, because: str = ""
) -> Callable[[Callable[[Record], Judgement]], Claim]:
    """Return a decorator that turns a function judging a record into a Claim."""

    def make_claim(judge: Callable[[Record], Judgement]) -> Claim:
        stem = judge.__module__.split(".")[3]
        return Claim(judge.__name__, stem, problem, sentence, judge, because)

    return make_claim


def list_claims(builder: ModuleType) -> list[Claim]:
    """Return the claims in the namespace of a module that renders an experiment."""
    return [value for value in vars(builder).values() if isinstance(value, Claim)]


def verdict(claim: Claim, record: Record) -> tuple[bool | None, str]:
    """Return whether a claim holds (None without data), and the verdict as Markdown."""
    judgement = claim.judge(record)
    untimed = "GPU time" in claim.sentence and not record.device.is_gpu
    if untimed or not isinstance(judgement, tuple):
        lost = "the rows that decide this are missing, untimed or out of memory"
        return None, f"**No data here:** {lost}. {claim.sentence}"
    mark = "" if is_fresh(record) else ", stale"
    holds, numbers = judgement
    outcome = "Holds" if holds else "Does not hold here"
    why = f" *Why this limit:* {claim.because}" if claim.because else ""
    text = f"{claim.sentence} {typeset(numbers)}{why} ({record_link(record)}{mark})"
    return holds, f"**{outcome}:** {text}"

"""Floating-point formats by arithmetic: what fits, how far neighbours are apart, and
where a running sum stops growing.

Exact, because every finite number of a format is a fraction. Imports no torch: the
pages' renderer reads it.
"""

import math
from dataclasses import dataclass
from fractions import Fraction


# --8<-- [start:format]
@dataclass(frozen=True)
class Format:
    """A binary format: one sign bit, a biased exponent, a fraction behind an implied
    leading 1.
    """

    exponent_bits: int
    fraction_bits: int

    @property
    def bias(self) -> int:
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def max_finite(self) -> Fraction:
        """The largest finite number."""
        return (2 - Fraction(1, 2**self.fraction_bits)) * Fraction(2) ** self.bias

    @property
    def smallest_normal(self) -> Fraction:
        return Fraction(2) ** (1 - self.bias)

    @property
    def smallest_subnormal(self) -> Fraction:
        """The smallest positive number: below the normal ones the spacing no longer
        shrinks.
        """
        return self.smallest_normal / 2**self.fraction_bits

    def spacing(self, value: Fraction) -> Fraction:
        """How far neighbours are apart in the binade of `value`."""
        return max(binade(value), self.smallest_normal) / 2**self.fraction_bits

    def round_to_nearest(self, value: Fraction) -> Fraction:
        """`value` rounded to this format, ties to even; it must be far below
        `largest`.
        """
        unit = self.spacing(value)
        return round(value / unit) * unit


# --8<-- [end:format]

# TF32 is no storage format: tensor cores read fp32 and drop its last 13 fraction bits.
FORMATS = {
    "fp64": Format(11, 52),
    "fp32": Format(8, 23),
    "tf32": Format(8, 10),
    "fp16": Format(5, 10),
    "bf16": Format(8, 7),
}


def binade(value: Fraction) -> Fraction:
    """The largest power of two that is not above `value`, which is positive."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    power = Fraction(2) ** exponent
    return power if power <= value else power / 2


# --8<-- [start:stall]
def find_stall(number_format: Format, term: Fraction) -> tuple[int, Fraction]:
    """Adding `term`, a number of this format, again and again: the last step that adds,
    and the sum there.

    A step is lost once the term is below half the spacing of the sum, or half of it,
    since ties go to even. Until then each binade, from one power of two to the next, is
    one multiplication: its numbers are equally far apart, so each step gains the same.
    """
    total, step, before = term, 1, None
    while gain := number_format.round_to_nearest(total + term) - total:
        top = 2 * binade(total)
        # A tie can go the other way in the first step of a binade: only a gain seen
        # twice is repeated.
        repeats = (
            max(1, math.ceil((top - term - total) / gain)) if gain == before else 1
        )
        total, step = total + repeats * gain, step + repeats
        before = gain if total < top else None
    return step, total


# --8<-- [end:stall]

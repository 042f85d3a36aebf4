"""Floating-point formats in exact rational arithmetic: range, spacing, rounding, and
the step at which a running sum stops growing. This module needs no torch.
"""

import math
from dataclasses import dataclass
from fractions import Fraction


# --8<-- [start:format]
@dataclass(frozen=True)
class Format:
    """Binary floating-point format: sign, biased exponent, fraction with implicit 1."""

    exponent_bits: int
    fraction_bits: int

    @property
    def bias(self) -> int:
        return 2 ** (self.exponent_bits - 1) - 1

    @property
    def max_finite(self) -> Fraction:
        return (2 - Fraction(1, 2**self.fraction_bits)) * Fraction(2) ** self.bias

    @property
    def smallest_normal(self) -> Fraction:
        return Fraction(2) ** (1 - self.bias)

    @property
    def smallest_subnormal(self) -> Fraction:
        """The smallest positive number, which is the spacing of subnormal numbers."""
        return self.smallest_normal / 2**self.fraction_bits

    def spacing(self, value: Fraction) -> Fraction:
        """Return the distance between adjacent numbers of the format near `value`."""
        return max(binade(value), self.smallest_normal) / 2**self.fraction_bits

    def round_to_nearest(self, value: Fraction) -> Fraction:
        """Round a positive value far below `max_finite` to nearest, ties to even."""
        unit = self.spacing(value)
        return round(value / unit) * unit

    # --8<-- [end:format]


# TF32 is not a storage format: tensor cores ignore the last 13 fraction bits of fp32.
FORMATS = {
    "fp64": Format(11, 52),
    "fp32": Format(8, 23),
    "tf32": Format(8, 10),
    "fp16": Format(5, 10),
    "bf16": Format(8, 7),
}


def binade(value: Fraction) -> Fraction:
    """Return the largest power of two that is at most `value`, which is positive."""
    exponent = value.numerator.bit_length() - value.denominator.bit_length()
    power = Fraction(2) ** exponent
    return power if power <= value else power / 2


# --8<-- [start:stall]
def find_stall(number_format: Format, term: Fraction) -> tuple[int, Fraction]:
    """Return the last step at which adding `term` increases a running sum, and the sum
    after this step. `term` must be representable in the format. Spacing is constant
    between powers of two, so steps there add equal amounts, and are computed at once.
    """
    total, step, before = term, 1, None
    while gain := number_format.round_to_nearest(total + term) - total:
        top = 2 * binade(total)
        # A tie can round differently in the first step after a power of two, so wait
        # for two equal gains.
        count = max(1, math.ceil((top - term - total) / gain)) if gain == before else 1
        total, step = total + count * gain, step + count
        before = gain if total < top else None
    return step, total
    # --8<-- [end:stall]

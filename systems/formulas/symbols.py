"""Symbolic integers. Formulas that are called with them return expressions, which the
web page's calculator evaluates. Supported: +, -, *, //, squares, minimum and maximum.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


def make_operator(name: str, swap: bool = False) -> Callable[[Any, Any], Any]:
    """Return a method for a binary operator; `swap` exchanges its operands."""
    if swap:
        return lambda self, other: apply_operator(name, other, self)
    return lambda self, other: apply_operator(name, self, other)


@dataclass(frozen=True)
class Expression:
    """An operation on integers or expressions; without operands, a named variable."""

    operator: str
    operands: tuple[Any, ...] = ()

    def __post_init__(self) -> None:
        # Cache the hash, because expressions are nested deeply.
        object.__setattr__(self, "hashed", hash((self.operator, self.operands)))

    def __hash__(self) -> int:
        return vars(self)["hashed"]

    __add__, __radd__ = make_operator("+"), make_operator("+", swap=True)
    __sub__, __rsub__ = make_operator("-"), make_operator("-", swap=True)
    __mul__, __rmul__ = make_operator("*"), make_operator("*", swap=True)
    __floordiv__ = make_operator("//")

    def __pow__(self, exponent: int) -> Any:
        if exponent != 2:
            raise TypeError(f"an expression is squared, not raised to {exponent}")
        return apply_operator("*", self, self)


# Pairs of operator and right operand that leave the left operand unchanged.
NEUTRAL = {("+", 0), ("-", 0), ("*", 1), ("//", 1)}


def apply_operator(name: str, left: Any, right: Any) -> Any:
    """Return `left` <name> `right`, simplified. Raise TypeError for other types."""
    for value in (left, right):
        if not isinstance(value, (int, Expression)):
            raise TypeError(f"an expression has no operand of {type(value).__name__}")
    if name == "*" and 0 in (left, right):
        return 0
    if (name, right) in NEUTRAL:
        return left
    if name in "+*" and (name, left) in NEUTRAL:
        return right
    return Expression(name, (left, right))


def minimum(left: Any, right: Any) -> Any:
    """Return the smaller of two numbers or expressions."""
    if isinstance(left, int) and isinstance(right, int):
        return min(left, right)
    return Expression("min", (left, right))


def maximum(left: Any, right: Any) -> Any:
    """Return the larger of two numbers or expressions."""
    if isinstance(left, int) and isinstance(right, int):
        return max(left, right)
    return Expression("max", (left, right))


class Program:
    """A list of instructions without duplicates, each an integer, a variable's name, or
    [operator, index, index], which refers to earlier instructions.
    """

    def __init__(self) -> None:
        self.instructions: list[Any] = []
        self.indices: dict[Any, int] = {}

    def index(self, value: Any) -> int:
        """Return the index of a value's instruction; add the instruction if needed."""
        if value not in self.indices:
            if isinstance(value, Expression) and value.operands:
                operands = [self.index(operand) for operand in value.operands]
                instruction: Any = [value.operator, *operands]
            else:
                instruction = value.operator if isinstance(value, Expression) else value
            self.indices[value] = len(self.instructions)
            self.instructions.append(instruction)
        return self.indices[value]

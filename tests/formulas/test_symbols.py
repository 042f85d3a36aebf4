"""Formulas evaluated with symbols agree with formulas evaluated with numbers."""

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from systems.formulas.memory_costs import Pass
from systems.formulas.memory_peak import peak_candidates
from systems.formulas.symbols import Expression, Program, maximum, minimum
from systems.model.sizes import ModelSize

NAMES = ("d_model", "d_ff", "num_layers", "num_heads", "context", "batch", "vocab")
SYMBOLS = {
    name: Expression(name)
    for name in (*NAMES, "checkpoint", "optimizer_states", "workspace_bytes")
}
counts = st.integers(1, 10**6)
OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul}
OPERATORS |= {"//": operator.floordiv, "min": min, "max": max}


def evaluate(program: Program, names: dict[str, int]) -> list[int]:
    """Return the value of each instruction, as the calculator's page does."""
    values: list[int] = []
    for instruction in program.instructions:
        match instruction:
            case [name, left, right]:
                values.append(OPERATORS[name](values[left], values[right]))
            case _:
                values.append(names.get(instruction, instruction))
    return values


def make_pass(precision, attention, remedy, numbers) -> Pass:
    # The number of heads divides the width, and a segment has at most all layers.
    width = numbers["d_model"] * numbers["num_heads"]
    layers = numbers["num_layers"] + numbers["checkpoint"]
    numbers = numbers | {"d_model": width, "num_layers": layers}
    fields = [numbers[name] for name in NAMES]
    run = numbers["checkpoint"] if remedy == "blocks" else 0
    given = ModelSize(*fields[:4]), fields[4], "step", precision, attention, run
    more = {name: numbers[name] for name in ("optimizer_states", "workspace_bytes")}
    again = (attention, remedy) == ("eager", "attention")
    return Pass(*given, again, *fields[5:], **more)


@given(
    st.sampled_from(("fp32", "bf16", "pure_bf16")),
    st.sampled_from(("eager", "flash")),
    st.sampled_from(("none", "blocks", "attention")),
    st.fixed_dictionaries({name: counts for name in SYMBOLS}),
)
def test_symbolic_peak_equals_numeric_peak(precision, attention, remedy, numbers):
    in_symbols = peak_candidates(make_pass(precision, attention, remedy, SYMBOLS))
    program = Program()
    places = {
        when: {category: program.index(value) for category, value in moment.items()}
        for when, moment in in_symbols.items()
    }
    values = evaluate(program, numbers)
    found = {
        when: {category: values[place] for category, place in moment.items()}
        for when, moment in places.items()
    }
    assert found == peak_candidates(make_pass(precision, attention, remedy, numbers))


def test_expressions_are_simplified_and_shared():
    d = Expression("d")
    program = Program()
    assert program.index(d**2 + 1) == program.index(d * d + 1)
    assert program.instructions == ["d", ["*", 0, 0], 1, ["+", 1, 2]]
    # Neutral operations are simplified.
    assert d + 0 == 0 + d == d - 0 == 1 * d == d * 1 == d // 1 == d
    assert 0 * d == d * 0 == 0
    assert minimum(2, 3) == 2
    assert maximum(2, 3) == 3


@pytest.mark.parametrize("wrong", [1.5, "3", None])
def test_expressions_reject_non_integers_and_cubes(wrong):
    with pytest.raises(TypeError, match=type(wrong).__name__):
        Expression("d") + wrong
    with pytest.raises(TypeError, match="raised to 3"):
        Expression("d") ** 3

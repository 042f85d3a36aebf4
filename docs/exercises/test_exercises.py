"""Test the exercises: solved ones pass, unsolved ones are skipped, and the message of
a wrong one says what is wrong.
"""

import pytest
from checks import CHECKS, HERE, Unsolved, Wrong, check


@pytest.mark.parametrize("name", CHECKS)
def test_exercise(name):
    problem = None
    try:
        check(name, HERE / f"{name}.py")
    except (Unsolved, Wrong) as error:
        # Reported after this block, so that pytest shows the message alone.
        problem = error
    if isinstance(problem, Unsolved):
        pytest.skip(str(problem))
    if problem is not None:
        pytest.fail(str(problem), pytrace=False)

"""Any rows may be missing, or lack numbers: whatever is rendered says so, and never
raises.
"""

import copy
import random
import re
from dataclasses import replace
from importlib import import_module

import pytest

from systems.experiments import STEMS
from systems.records.record import Record
from tests.factories import committed
from tools.render.claims import claims_in, verdict

# Which of n rows are lost.
LOST = {
    "all": lambda n: range(n),
    "first half": lambda n: range(n // 2),
    "second half": lambda n: range(n // 2, n),
    "first": lambda n: [0],
    "last": lambda n: [n - 1],
    "some": lambda n: random.Random(0).sample(range(n), n // 2),
    "most": lambda n: random.Random(0).sample(range(n), n - n // 5),
}


def record_of(stem: str) -> Record:
    return committed(stem, "meta" if stem == "model_sizes" else "nvidia-h200")


def without(record: Record, pattern: str, status: str | None) -> Record:
    """A copy without these rows, or with rows of this status in their place."""
    lost = set(LOST[pattern](len(record.rows)))
    smaller = copy.deepcopy(record)
    smaller.rows = [
        row if i not in lost else replace(row, status=status, metrics={}, reason="why")
        for i, row in enumerate(smaller.rows)
        if status or i not in lost
    ]
    return smaller


@pytest.mark.parametrize("status", [None, "out_of_memory", "unsupported", "failed"])
@pytest.mark.parametrize("pattern", LOST)
@pytest.mark.parametrize("stem", STEMS)
def test_numbers_and_claims_do_without_them(stem, pattern, status):
    builder = import_module(f"tools.render.stems.{stem}")
    smaller = without(record_of(stem), pattern, status)
    facts = builder.facts(smaller)
    assert facts.keys() == builder.facts(None).keys()
    told = [*facts.values()]
    told += [verdict(claim, smaller) for claim in claims_in(builder)]
    assert not re.search(r"\bnan\b|None", "\n".join(told))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("pattern", "status"),
    [("all", "out_of_memory"), ("first half", "unsupported"), ("some", None)],
)
@pytest.mark.parametrize("stem", STEMS)
def test_tables_and_figures_do_without_them(stem, pattern, status):
    """On the GPU of the sentences, and on a second one."""
    builder = import_module(f"tools.render.stems.{stem}")
    full = record_of(stem)
    smaller = without(full, pattern, status)
    second = replace(smaller, device=replace(full.device, name="X", slug="x"))
    records = [smaller, second] if pattern == "some" else [smaller]
    files = builder.fragments(records)
    shown = "\n".join(text for name, text in files.items() if name.endswith(".md"))
    assert not re.search(r"\bnan\b|None", shown)
    # Each figure that is shown is drawn.
    drawn = set(re.findall(rf"generated/{stem}-([\w.-]+\.svg)", shown))
    assert drawn <= files.keys()
    if status and pattern == "all":
        assert "out of memory" in shown

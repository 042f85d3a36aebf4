"""Test short names and categories of kernels, as profilers name them."""

import tomllib
from pathlib import Path

import pytest

from systems.profiling.kernel_names import CATEGORIES, kernel_category, short_name

# Full names by category and short name.
KERNELS = tomllib.loads(Path(__file__).with_name("kernel_names.toml").read_text())
KNOWN = [
    (name, short, category)
    for category, names in KERNELS.items()
    for short, name in names.items()
]


@pytest.mark.parametrize(("name", "short", "category"), KNOWN)
def test_known_kernels_have_short_names_and_categories(name, short, category):
    assert (short_name(name), kernel_category(name)) == (short, category)
    assert short_name(short) == short


def test_phase_decides_the_category_of_unfused_kernels():
    exp, mul = (KERNELS["elementwise"][f"elementwise {x}"] for x in ("exp", "mul"))
    assert kernel_category(exp, ("forward", "attention softmax")) == "softmax"
    assert kernel_category(mul, ("optimizer",)) == "optimizer"
    for path in (("forward",), ("forward", "attention mask")):
        assert kernel_category(exp, path) == "elementwise"
    # Kernels of the loss are no optimizer kernels, even in a step that has both.
    log_softmax = KERNELS["softmax"]["cunn_SoftMaxForward"]
    assert kernel_category(log_softmax, ("step", "loss")) == "softmax"


def test_any_text_has_a_category():
    for name in ("", "<>", "_Z", "_Z99", "void ", "((", "at::", "é" * 500, "_ZN2at"):
        assert kernel_category(name) in CATEGORIES and len(short_name(name)) <= 72

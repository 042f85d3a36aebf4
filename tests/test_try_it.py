"""Test results that the *Try it* sections of pages promise, if they need no GPU."""

import importlib.util
import re
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
import yaml
from triton import knobs

from systems import ROOT
from systems.experiments import accumulation, model_sizes, norm_precision
from systems.model import sizes
from tests.attention.checks import check_against_reference, make_inputs, run_class

interpreted = pytest.mark.skipif(
    not knobs.runtime.interpret, reason="lines are changed in Triton's interpreter"
)


def read_try_it(name: str) -> str:
    return (ROOT / f"docs/{name}.md").read_text(encoding="utf-8").split("## Try it")[1]


def inline_code(name: str) -> set[str]:
    """Return the texts in single backticks of a page's *Try it* section."""
    return set(re.findall(r"(?<!`)`([^`\n]+)`(?!`)", read_try_it(name)))


@pytest.fixture
def change_module(tmp_path, monkeypatch):
    """Return a function that loads the first kernel with a line of a page changed."""

    def change(old: str, new: str, on_page: str):
        source = (ROOT / "systems/attention/first.py").read_text(encoding="utf-8")
        assert source.count(old) == 1
        assert {old, new} <= inline_code(on_page)
        file = tmp_path / "changed.py"
        file.write_text(source.replace(old, new), encoding="utf-8")
        spec = importlib.util.spec_from_file_location("changed", file)
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, "changed", module)
        spec.loader.exec_module(module)
        return module

    return change


def run_first_kernel(module, **options):
    inputs = make_inputs(128, 128, 16, **options)
    return run_class(module.FlashAttentionFirst, *inputs, True), inputs


def test_pages_name_tests_that_exist():
    pages, tests = (
        "".join(path.read_text("utf-8") for path in (ROOT / folder).rglob(pattern))
        for folder, pattern in (("docs", "*.md"), ("tests", "test_*.py"))
    )
    assert {*re.findall(r"`(test_\w+)`", pages)} <= {*re.findall(r"def (\w+)", tests)}


@pytest.mark.slow
@interpreted
def test_without_the_maximum_large_scores_fail(change_module):
    change = "tl.maximum(m, tl.max(s, 1))", "tl.zeros_like(m)"
    module = change_module(*change, on_page="flash_forward")
    actual, inputs = run_first_kernel(module)
    check_against_reference(actual, *inputs, True)
    with np.errstate(over="ignore", invalid="ignore"):
        actual, _ = run_first_kernel(module, sigma=60.0)
    assert not actual["o"].isfinite().all()


@pytest.mark.slow
@interpreted
def test_without_delta_only_dv_is_correct(change_module):
    change = "p * (dp - delta[:, None])", "p * dp"
    module = change_module(*change, on_page="flash_backward")
    actual, inputs = run_first_kernel(module)
    right, _ = run_first_kernel(importlib.import_module("systems.attention.first"))
    wrong = {name for name in right if not torch.equal(right[name], actual[name])}
    assert wrong == {"dq", "dk"}
    with pytest.raises(AssertionError, match=r"\bdq\b"):
        check_against_reference(actual, *inputs, True)


@interpreted
def test_single_tile_hides_missing_rescaling(tmp_path):
    from tests.test_exercises import FORGOTTEN, fill_in, load_checks, read_key

    checks, name = load_checks(), "3_online_softmax"
    text = fill_in(checks, name, read_key(checks, name) | {"l": FORGOTTEN})
    assert {"COLUMNS=16", "COLUMNS=4"} <= inline_code("exercises")
    assert text.count("COLUMNS=4") == 1
    file = tmp_path / f"{name}.py"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(checks.Wrong):
        checks.check(name, file)
    file.write_text(text.replace("COLUMNS=4", "COLUMNS=16"), encoding="utf-8")
    checks.check(name, file)


@interpreted
def test_weighted_sum_example_prints_the_page_s_output(capsys):
    ((program, printed),) = re.findall(
        r'python -c "(.*?)"\n(.*?)```', read_try_it("weighted_sum"), re.S
    )
    exec(program.replace("\\\n> ", ""), {})
    assert capsys.readouterr().out == printed


def test_fp32_accumulator_fixes_a_bf16_sum():
    facts = yaml.safe_load((ROOT / "docs/generated/facts.yml").read_text())["facts"]
    for accumulator, fact in (("bf16", "bf16_in_bf16"), ("fp32", "bf16_in_fp32")):
        command = f"accumulation --value bf16 --accumulator {accumulator}"
        assert command in read_try_it("accumulation")
        found = accumulation.run(accumulation.Config("bf16", accumulator))
        value = float(facts["accumulation"][fact])
        assert found["cpu_result"] == pytest.approx(value, abs=1e-6)


def test_running_sum_error_grows_with_width():
    errors = {}
    for width in (256, 1024):
        assert f"--compute running --width {width}" in read_try_it("norm_precision")
        config = norm_precision.Config("layer", "bf16", width, "running")
        errors[width] = norm_precision.run(config)["output_error"]
    assert min(errors[1024]) > 4 * max(errors[256])


def count_parameters(config: model_sizes.Config) -> int:
    found = model_sizes.run(config)
    return sum(n for name, n in found.items() if name.endswith("_parameters"))


@pytest.mark.slow
def test_usual_swiglu_width_gives_2_7b_parameters(monkeypatch):
    config = model_sizes.Config("2.7B")
    as_it_is = count_parameters(config)
    assert {"2.7B", "6912"} <= inline_code("model_sizes")
    size = sizes.SIZES["2.7B"]
    assert 256 * -(-4 * size.d_model * 2 // 3 // 256) == 6912
    monkeypatch.setitem(sizes.SIZES, "2.7B", replace(size, d_ff=6912))
    assert abs(count_parameters(config) / 2.7e9 - 1) < 0.05 < abs(as_it_is / 2.7e9 - 1)

"""The calculator's results equal the formulas', and errors are explained."""

import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from systems.formulas.fit import find_largest, optimizer_moved_bytes, step_flops
from systems.formulas.gpus import GPUS
from systems.formulas.memory_costs import HOPPER_WORKSPACE, WORKSPACE, Pass
from systems.formulas.memory_peak import peak_candidates
from systems.model.sizes import ModelSize
from systems.profiling.memory.snapshot import CATEGORIES
from tests.tools.browser.looking import Page, expect
from tools.render.spanning import calculator

pytestmark = pytest.mark.browser


def random_step(number: int) -> tuple[Pass, dict]:
    """Return a random step, and the calculator's settings for it."""
    draw = random.Random(number)
    kv_heads = draw.randint(1, 16)
    heads = kv_heads * draw.randint(1, 4)
    shape = ModelSize(
        2 * heads * draw.randint(1, 200),
        draw.randint(1, 50_000),
        draw.randint(1, 200),
        heads,
    )
    attention = draw.choice(calculator.ATTENTIONS)
    kinds = calculator.RECOMPUTED[: 3 if attention == "eager" else 2]
    recomputed = draw.choice(kinds)
    numbers = {
        "context": draw.randint(1, 10**6),
        "batch": draw.randint(1, 10**4),
        "vocab": draw.randint(1, 300_000),
        "optimizer_states": draw.randint(0, 2),
        "workspace_bytes": draw.choice((HOPPER_WORKSPACE, WORKSPACE)),
        "kv_heads": kv_heads,
        "embeddings": draw.choice((1, 2)),
    }
    words = {"precision": draw.choice(calculator.PRECISIONS), "attention": attention}
    run = draw.randint(1, shape.num_layers)
    p = Pass(
        shape,
        mode="step",
        checkpoint=run if recomputed == "blocks" else 0,
        recompute_attention=recomputed == "attention",
        **words,
        **numbers,
    )
    asked = {**vars(shape), **numbers, **words, "recomputed": recomputed}
    return p, {**asked, "checkpoint": run}


def test_calculator_equals_the_formulas(page: Page, site: Path) -> None:
    page.goto((site / "calculator.html").as_uri())
    steps = [random_step(number) for number in range(500)]
    script = "asked => asked.map(window.CALCULATOR.evaluate)"
    answers = page.evaluate(script, [asked for _, asked in steps])
    for (p, asked), answer in zip(steps, answers, strict=True):
        got = json.loads(answer)
        assert int(got["flops"]) == step_flops(p), asked
        assert int(got["moved"]) == optimizer_moved_bytes(p), asked
        wanted = {
            when: [str(moment[category]) for category in CATEGORIES]
            for when, moment in peak_candidates(p).items()
        }
        assert got["moments"] == wanted, asked


def test_calculator_draws_the_peak_that_its_verdict_names(page, site):
    """With many blocks and tokens, but few words, the forward pass holds the peak."""
    page.goto((site / "calculator.html").as_uri())
    choices = {"precision": "bf16", "recomputed": "blocks", "optimizer_states": "0"}
    for name, choice in choices.items():
        page.locator(f"#calculator select[name={name}]").select_option(choice)
    counts = {"d_model": 1024, "d_ff": 4096, "num_layers": 48, "num_heads": 16}
    counts |= {"kv_heads": 16, "vocab": 256, "context": 256, "batch": 64}
    for name, count in (counts | {"checkpoint": 1}).items():
        page.locator(f"#calculator input[name={name}]").fill(str(count))
    bars = page.locator("#calculator .moment .total").all_inner_texts()
    largest = max(bars, key=lambda text: float(text.split()[0].replace(",", "")))
    expect(page.locator("#calculator .verdict")).to_contain_text(largest)


@pytest.mark.parametrize("gpu", ["h100", "rtx4090"])
def test_calculator_gives_a_gpu_the_same_memory_everywhere(page, site, gpu):
    step = Pass("small", 1, "step", "fp32", "flash", batch=1)
    step = replace(step, workspace_bytes=GPUS[gpu].workspace_bytes)
    longest = find_largest(step, "context", GPUS[gpu].free_bytes)
    choices = "#size=small&precision=fp32&attention=flash&batch=1&gpu="
    address = f"{(site / 'calculator.html').as_uri()}{choices}"
    smallest = f"The smallest GPU of the list on which it fits: {GPUS[gpu].name}."
    text = page.locator("#calculator .most")
    for chosen in (gpu, "a100-40", "h200"):
        page.goto("about:blank")
        page.goto(f"{address}{chosen}&context={longest}")
        expect(text).to_contain_text(smallest)
        if chosen == gpu:
            expect(text).to_contain_text(f"at batch 1: {longest:,}.")
        page.locator("#calculator input[name=context]").fill(str(longest + 1))
        expect(text).not_to_contain_text(smallest)


def test_calculator_shows_the_measured_ratios_in_both_bf16_modes(page, site):
    page.goto((site / "calculator.html").as_uri() + "#precision=bf16")
    steps = page.locator("#calculator .near li")
    before = steps.all_inner_texts()
    assert len(before) == 3
    page.locator("#calculator select[name=precision]").select_option("pure_bf16")
    expect(steps).to_have_text(before)


def test_calculator_responds_fast_and_explains_errors(page, site):
    page.goto((site / "calculator.html").as_uri() + "#size=xl&context=2048")
    root = page.locator("#calculator")
    verdict, context = root.locator(".verdict"), root.locator("input[name=context]")
    expect(context).to_have_value("2048")
    names = root.locator("select[name=size] option").all_inner_texts()
    assert {"2.7B (2026: xl)", "small"} <= set(names)
    expect(verdict).to_contain_text(re.compile("[Ff]it"))
    # Take the fastest of seven inputs, because other processes slow some down.
    milliseconds = page.evaluate("""() => {
        const input = document.querySelector("#calculator input[name=context]")
        const press = (value) => {
            input.value = value
            const start = performance.now()
            input.dispatchEvent(new Event("input", {bubbles: true}))
            return performance.now() - start
        }
        return Math.min(...[512, 1024, 2048, 4096, 8192, 3000, 5000].map(press))
    }""")
    assert milliseconds < 50
    assert "context=5000" in page.url
    wrong = {
        "num_heads": {"0": "from 1 to", "7": "does not split into 7 heads"},
        "context": {"1e9": "whole number", "9" * 12: "from 1 to", "long": "“long”"},
        "batch": {"": "whole number", "-1": "whole number"},
        "memory": {"none": "number above 0", "1e6": "and below 1,000,000"},
    }
    for name, entries in wrong.items():
        field = root.locator(f"input[name={name}]")
        before = field.input_value()
        for text, words in entries.items():
            field.fill(text)
            expect(verdict).to_contain_text(words)
            expect(field).to_have_attribute("aria-invalid", "true")
        field.fill(before)
        expect(field).not_to_have_attribute("aria-invalid", "true")
    # After a reload, the address restores the page's state.
    root.locator("select[name=gpu]").select_option("h200")
    root.locator("input[name=num_layers]").fill("30")
    expect(root.locator("select[name=size]")).to_have_value("")
    said = verdict.inner_text()
    page.reload()
    expect(verdict).to_have_text(said)
    expect(root.locator("input[name=num_layers]")).to_have_value("30")
    # An old address gives no number of KV heads.
    page.goto((site / "calculator.html").as_uri() + "#num_heads=10&d_model=640")
    expect(root.locator("input[name=kv_heads]")).to_have_value("10")
    root.locator("input[name=num_heads]").fill("20")
    expect(verdict).to_contain_text(re.compile("[Ff]it"))
    root.locator("input[name=kv_heads]").fill("3")
    expect(verdict).to_contain_text("do not share 3")
    # Half-typed heads don't count as equal.
    root.locator("input[name=kv_heads]").fill("1")
    root.locator("input[name=num_heads]").fill("")
    root.locator("input[name=num_heads]").press_sequentially("16")
    expect(root.locator("input[name=kv_heads]")).to_have_value("1")
    page.goto((site / "calculator.html").as_uri() + "#size=huge")
    expect(verdict).to_contain_text("no size is named “huge”")
    root.locator("input[name=batch]").fill("2")
    expect(verdict).to_contain_text(re.compile("[Ff]it"))
    expect(root.locator(".most")).to_contain_text("on which it fits: ")
    # An address that contradicts itself names neither a size nor a GPU.
    other = "#size=2.7B&d_model=512&gpu=h200&memory=9"
    page.goto((site / "calculator.html").as_uri() + other)
    for name in ("size", "gpu"):
        expect(root.locator(f"select[name={name}]")).to_have_value("")
    # The run length is hidden and unused, so an invalid one does no harm.
    page.goto((site / "calculator.html").as_uri() + "#recomputed=none&checkpoint=x")
    expect(verdict).to_contain_text(re.compile("[Ff]it"))

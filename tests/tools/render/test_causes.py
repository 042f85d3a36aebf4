"""Where forward and backward go, from a profile and a clock made here: every share can
be followed by hand.
"""

import copy

import pytest

from tests.factories import make_gpu, make_record, make_row
from tests.tools.render.test_kernel_profile import kernel_record
from tools.render.spanning import causes

H200 = make_gpu("NVIDIA H200")


def clock_record(fp32_ms: float = 20.0, bf16_ms: float = 10.0):
    """A clock that finds other wall times than the profile, whose host was slow."""
    rows = [
        make_row(
            {**row.config, "attention": "eager"},
            forward_ms=[ms / 4] * 3,
            loss_ms=[1.0] * 3,
            backward_ms=[ms * 3 / 4] * 3,
        )
        for row in kernel_record().rows
        if row.config["mode"] == "step"
        for ms in [fp32_ms if row.config["precision"] == "fp32" else bf16_ms]
    ]
    return make_record("end_to_end", *rows, device=H200)


def halve(profile, category: str):
    """In bf16 these kernels take half the time."""
    for row in profile.rows:
        if row.config["precision"] == "bf16":
            for kernel in row.metrics["kernels"]:
                if kernel["category"] == category:
                    kernel["total_ms"] /= 2
    return profile


def test_a_pass_is_divided_by_what_the_gpu_did():
    p = causes.split(kernel_record(), clock_record(), "2.7B", 512, "fp32")
    # Of forward, loss and backward, without the optimizer: 7 + 7.75 products, 2 copies,
    # 1 + 0.25 + 2 element-wise. The clock says 21, the profile's own would say 22.5.
    assert p.wall_ms == 21
    assert p.ms == {
        "idle": pytest.approx(1.0),
        "products": pytest.approx(14.75),
        "copies and casts": pytest.approx(2.0),
        "element-wise and reductions": pytest.approx(3.25),
    }
    assert sum(p.share(cause) for cause in causes.CAUSES) == pytest.approx(1)


def test_every_category_of_kernel_has_one_cause():
    from systems.profiling.kernel_names import CATEGORIES, OPTIMIZER

    named = [name for names in causes.CATEGORIES.values() for name in names]
    assert sorted([*named, OPTIMIZER]) == sorted(CATEGORIES)


def test_what_is_missing_of_a_gain_is_told_by_cause():
    profile = halve(kernel_record(), "matmul")
    g = causes.gain(profile, clock_record(bf16_ms=15.0), "2.7B", 512)
    # Products at the ratio of the data sheet's rates, all else as in fp32.
    assert g.rates == pytest.approx(989.5 / 67, rel=1e-3)
    assert g.expected_ms == pytest.approx(6.25 + 14.75 / g.rates)
    assert g.measured == pytest.approx(21 / 16)
    more = {cause: g.more(cause) for cause in causes.CAUSES}
    assert more[causes.PRODUCTS] == pytest.approx(7.375 - 14.75 / g.rates)
    assert more[causes.COPIES] == pytest.approx(0)
    assert sum(more.values()) == pytest.approx(16 - g.expected_ms)


def test_facts_and_tables_are_of_the_clock_of_the_same_gpu():
    profile, clock = kernel_record(), clock_record()
    found = {"kernel_profile": [profile], "end_to_end": [clock]}
    facts = causes.facts(found)
    assert facts.keys() == causes.facts({}).keys()
    # 17.25 ms of kernels would be more than bf16's clock: nothing is idle.
    assert facts["products_2_7B_512_fp32"] == "70 %"
    files = causes.fragments(found)
    assert "| 2.7B | 512 | fp32 | 21.0 |" in files["causes-told.md"]
    assert "14.8 (70 %)" in files["causes-told.md"]
    assert '<svg class="plot wide"' in files["causes-shares.md"]
    # Copies need no clock.
    named = {name for name, text in files.items() if "end_to_end.json" in text}
    assert named == files.keys() - {"causes-copies.md"}
    assert all("kernel_profile.json" in text for text in files.values())
    other = copy.deepcopy(clock)
    other.device.slug = "nvidia-a100"
    alone = causes.fragments({**found, "end_to_end": [other]})
    assert all("Not measured yet" in alone[f"causes-{n}.md"] for n in ("told", "gain"))
    told = causes.facts({**found, "end_to_end": [other]})
    assert told["products_2_7B_512_fp32"] == "not measured"


def test_without_records_everything_says_so():
    assert set(causes.facts({}).values()) == {"not measured"}
    assert all("Not measured yet" in text for text in causes.fragments({}).values())


def test_casts_are_told_from_copies():
    profile = kernel_record()
    row = profile.find(size="2.7B", context=128, precision="bf16", mode="step")
    row.metrics["kernels"].append(
        {
            "phase": "forward",
            "name": "void at::native::vectorized_elementwise_kernel<4, at::native::"
            "bfloat16_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda(float)#1}>",
            "category": "copy",
            "calls": 9,
            "total_ms": 3.0,
        }
    )
    found = {"kernel_profile": [profile], "end_to_end": [clock_record()]}
    assert causes.facts(found)["casts_2_7B_most"] == "3.0 ms"
    table = causes.fragments(found)["causes-copies.md"]
    head, _, *lines = [x.split(" | ") for x in table.splitlines() if x.startswith("|")]
    (line,) = [x for x in lines if x[:2] == ["| 2.7B", "128"]]
    assert line[head.index("casts to bf16 in it, ms")] == "3.0"


def test_a_slow_host_changes_idling_and_not_the_share_of_copies():
    clock, slow = clock_record(), clock_record()
    for row in slow.rows:
        row.metrics["forward_ms"] = [9 * ms for ms in row.metrics["forward_ms"]]
    facts, slowed = (
        causes.facts({"kernel_profile": [kernel_record()], "end_to_end": [of]})
        for of in (clock, slow)
    )
    changed = {name for name in facts if facts[name] != slowed[name]}
    assert "products_2_7B_512_fp32" in changed
    assert not any(name.startswith(("copies_", "element_")) for name in changed)
    assert any(
        facts[name].endswith("%") for name in facts if name.startswith("copies_")
    )

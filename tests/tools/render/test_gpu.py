"""The drawings and predictions of docs/gpu.md, and the words that its glossary
explains.
"""

import copy
import re

import pytest

from tests.factories import RESULTS
from tools.render import load
from tools.render.rows import NOT_MEASURED
from tools.render.spanning import envelope, glossary, gpu


@pytest.fixture(scope="module")
def found():
    return load.load(RESULTS)


def test_the_timelines_say_what_the_record_says(found):
    launches, softmax, products = envelope.regimes(load.ours(found, "kernel_profile"))
    text = gpu.fragments(found)["gpu-timelines.md"]
    assert f"{launches['calls']:.0f} kernels" in text
    # Launches bind where kernels are shorter than launches, and only there.
    assert launches["each_us"] < launches["launch_us"]
    assert launches["launch_us"] < softmax["each_us"] < products["each_us"]
    assert softmax["of_memory"] > softmax["of_fp32"]
    assert products["of_fp32"] > products["of_memory"]


def test_softmax_moves_what_its_five_kernels_read_and_write():
    scores = 12 * 12 * 4 * 512**2
    assert envelope.SOFTMAX.moved_bytes == 4 * 8 * scores


def test_the_products_of_a_pass_read_each_weight_once():
    work = envelope.all_products("2.7B", 512)
    weights = 4 * (3_406_809_600 - 10_000 * 2560)
    assert weights < work.moved_bytes < 4 * weights


def test_no_prediction_needs_a_record(found):
    without = envelope.facts({})
    assert without.keys() == envelope.facts(found).keys()
    assert without["kernel_profile"]["softmax_bytes"] == "4.83 GB"
    assert without["kernel_profile"]["softmax_over_floor"] == NOT_MEASURED
    assert "Not measured yet" in gpu.fragments({})["gpu-timelines.md"]


def test_another_gpu_has_no_parts_of_this_one(found, monkeypatch):
    other = copy.deepcopy(found["kernel_profile"][0])
    other.device.slug, other.device.name = "acme-gpu", "ACME GPU"
    for module in (envelope, load):
        monkeypatch.setattr(module, "primary_gpu", lambda: "acme-gpu")
    assert envelope.facts({"kernel_profile": [other]})["chip"]["sms"] == NOT_MEASURED


def test_every_word_is_explained_once():
    files = glossary.fragments()
    forms = re.findall(r"^\*\[(.+?)\]: ", files["glossary-tooltips.md"], re.MULTILINE)
    assert len(forms) == len(set(forms)) and {"warps", "Warps", "TMA"} <= set(forms)
    terms = re.findall(r'<dt id="(.+?)">', files["glossary-terms.md"])
    assert len(terms) == len(set(terms)) >= 25

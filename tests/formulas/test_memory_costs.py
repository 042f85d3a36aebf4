"""Formulas of memory against passes that ran: every category to the byte, the peak
within a percent or two.
"""

import pytest

from systems.experiments import peak_memory
from systems.experiments.peak_memory import MODES, Config, run
from systems.formulas import memory_costs
from systems.formulas.memory_costs import Pass, most, peak, residual_bytes
from systems.model.sizes import SIZES, ModelSize
from tests.cpu_allocator import allocator

# One where scores count, one where matrices do.
SHAPES = {"scores": ModelSize(256, 1024, 3, 8), "matrices": ModelSize(512, 2048, 2, 8)}
PLAIN = ("eager", "no")
REMEDIES = [("eager", "yes"), ("flash", "no"), ("flash", "yes")]
CASES = [(mode, p, *PLAIN) for mode in MODES for p in ("fp32", "bf16")]
CASES += [("step", p, *remedy) for remedy in REMEDIES for p in ("fp32", "bf16")]


def recorded(monkeypatch, *fields, **others) -> dict:
    """The row of a pass over fake tensors, recorded as on a GPU."""
    monkeypatch.setattr(peak_memory, "gpu", lambda: "cpu")
    with allocator(monkeypatch):
        return run(Config(*fields, batch=2, vocab=1000, warmup=0, steps=1, **others))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("mode", "precision", "attention", "checkpoint"), CASES)
def test_formulas_and_passes_agree(
    monkeypatch, shape, mode, precision, attention, checkpoint
):
    if attention == "flash":
        pytest.importorskip("triton")
    monkeypatch.setitem(SIZES, "tested", SHAPES[shape])
    fields = ("tested", 256, mode, precision, attention, checkpoint)
    row, p = recorded(monkeypatch, *fields), Pass(*fields, batch=2, vocab=1000)
    measured = {c["category"]: c for c in row["categories"]}
    assert {name: measured[name]["most_bytes"] for name in most(p)} == most(p)
    predicted = peak(p)
    assert predicted.keys() == measured.keys()
    # The two approximate moments are inside a feed-forward half.
    assert sum(predicted.values()) == pytest.approx(
        row["peak_requested_bytes"], rel=0.06 if checkpoint == "yes" else 0.03
    )


def test_the_residual_stream_is_as_large_as_its_tensor(monkeypatch):
    """A block's x + attention(...) is one saved tensor, fp32 in either precision."""
    for precision in ("fp32", "bf16"):
        row = recorded(monkeypatch, "small", 64, "forward_graph", precision)
        p = Pass("small", 64, "forward_graph", precision, batch=2, vocab=1000)
        assert row["residual_bytes"] == residual_bytes(p) == 2 * 64 * 768 * 4
        assert row["residual_dtype"] == "torch.float32"


def test_what_is_known_of_the_largest_model():
    """The figures that follow from the assignment's own: about 39.5 GiB with the graph,
    about 66 with two.
    """
    gib = {
        mode: sum(peak(Pass("2.7B", 512, mode, "fp32")).values()) / 2**30
        for mode in MODES
    }
    assert gib["forward"] == pytest.approx(13.2, abs=0.1)
    assert gib["forward_graph"] == pytest.approx(39.6, abs=0.1)
    assert gib["forward_two_graphs"] == pytest.approx(66.5, abs=0.1)
    assert gib["step"] == pytest.approx(65.3, abs=0.1)
    assert residual_bytes(Pass("2.7B", 512, "forward", "fp32")) == 20 * 2**20
    assert (
        memory_costs.weight_bytes(Pass("2.7B", 512, "forward", "fp32"))
        == 4 * 3_406_809_600
    )

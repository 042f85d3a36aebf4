"""Compare formulas of memory by category, and of peaks, with recorded passes."""

import random
from dataclasses import replace
from functools import partial
from itertools import accumulate

import pytest
from torch.profiler import ProfilerActivity, profile

from systems.experiments import peak_memory
from systems.experiments.peak_memory import MODES, Config, run
from systems.formulas import memory_costs, memory_peak
from systems.formulas.costs import INT64_BYTES
from systems.formulas.fit import peak_bytes
from systems.formulas.memory_costs import Pass, residual_bytes
from systems.formulas.memory_peak import bytes_at_peak, category_peaks, peak_candidates
from systems.model.sizes import SIZES, ModelSize
from tests.cpu_allocator import allocator, build_pass, cuda_autocast

pytestmark = pytest.mark.interpreted

# Attention scores take more memory than weights in the first shape, less in the other.
SHAPES = {"scores": ModelSize(256, 1024, 3, 8), "matrices": ModelSize(512, 2048, 2, 8)}
PLAIN = ("eager", False)
REMEDIES = [("eager", True), ("flash", False), ("flash", True)]
CASES = [
    (shape, mode, precision, *remedy)
    for precision in ("fp32", "bf16")
    for shape, mode, remedy in (
        *(("scores", mode, PLAIN) for mode in MODES),
        *(("scores", "step", remedy) for remedy in REMEDIES),
        *(("matrices", mode, PLAIN) for mode in ("forward", "step")),
    )
]


def record_pass(monkeypatch, *fields, **others) -> dict:
    """Return the row of a pass on fake tensors, recorded as on a GPU."""
    monkeypatch.setattr(peak_memory, "require_gpu", lambda: "cpu")
    with allocator(monkeypatch):
        return run(Config(*fields, batch=2, vocab=1000, warmup=0, steps=1, **others))


def allocator_peaks(monkeypatch, p: Pass) -> dict[int, int]:
    """Return the allocator's peaks in the second step of `p`, by interval: 0 until the
    gradient of the head's input exists, 1 backward of the final norm, then backward of
    each block from the last to the first, and the rest of the step.
    """
    peaks: dict[int, int] = {}
    with allocator(monkeypatch) as memory:

        def note_peak(place: int, *_: object) -> None:
            peaks[place] = max(peaks.get(place, 0), memory.peak)
            memory.reset_peak()

        def watch_gradient(place: int, _: object, inputs: tuple) -> None:
            if inputs[0].requires_grad:
                inputs[0].register_hook(partial(note_peak, place))

        model, run_pass = build_pass(p)
        watched = [model.lm_head, model.ln_final, *reversed(model.layers)]
        for place, module in enumerate(watched):
            module.register_forward_pre_hook(partial(watch_gradient, place))
        for _ in range(2):
            model.zero_grad()
            memory.reset_peak()
            peaks.clear()
            run_pass()
        note_peak(len(watched))
        # Free the tensors before the allocator that counts them.
        del model, run_pass, watched, module
    return peaks


@pytest.mark.parametrize("case", CASES, ids=str)
def test_category_formulas_equal_recorded_passes(monkeypatch, case):
    shape, mode, precision, attention, checkpoint = case
    if attention == "flash":
        pytest.importorskip("triton")
    monkeypatch.setitem(SIZES, "tested", SHAPES[shape])
    fields = ("tested", 256, mode, precision, attention)
    row = record_pass(monkeypatch, *fields, checkpoint)
    p = Pass(*fields, int(checkpoint), batch=2, vocab=1000, workspace_bytes=0)
    # The sum x + attention(...) of a block is one fp32 tensor, also in bf16.
    assert row["residual_bytes"] == residual_bytes(p) == 4 * 2 * 256 * p.shape.d_model
    measured = {c["category"]: c for c in row["categories"]}
    most = {name: measured[name]["most_bytes"] for name in category_peaks(p)}
    assert most == category_peaks(p)
    predicted = bytes_at_peak(p)
    assert predicted.keys() == measured.keys()
    # Formulas neglect small tensors, which count more in a pass without a graph.
    near = 0.01 if mode == "forward" else 0.001
    found = row["peak_requested_bytes"]
    assert sum(predicted.values()) == pytest.approx(found, rel=near)


def random_passes() -> list[Pass]:
    """Return random passes with every precision, attention and recomputation."""
    draw = random.Random(0)
    drawn = []
    for number in range(12):
        heads = draw.choice((2, 4, 8))
        width = heads * draw.choice((32, 64))
        layers = draw.randint(2, 7)
        shape = ModelSize(width, draw.choice((2, 4)) * width, layers, heads)
        precision = ("fp32", "bf16", "pure_bf16")[number % 3]
        context, plain = draw.choice((128, 256)), number % 3 == 0
        attention = "eager" if plain else draw.choice(("eager", "flash"))
        run = 0 if plain else draw.randint(0, layers)
        again = plain and draw.random() < 0.7
        sizes = {"batch": draw.choice((2, 4)), "vocab": draw.choice((300, 9000))}
        sizes["embeddings"] = 1 + (number % 2 or precision == "bf16")
        sizes["workspace_bytes"] = 0
        p = Pass(shape, context, "step", precision, attention, run, again, **sizes)
        drawn.append(p)
    return drawn


@pytest.mark.slow
@pytest.mark.parametrize("p", random_passes(), ids=str)
def test_peak_formula_equals_the_allocator_s_peak(monkeypatch, p):
    if p.attention == "flash":
        pytest.importorskip("triton")
    seen = allocator_peaks(monkeypatch, p)
    assert peak_bytes(p) == pytest.approx(max(seen.values()), rel=5e-3)
    most = category_peaks(p)
    lasting = most["weights"] + most["optimizer state"] + 2 * p.tokens * INT64_BYTES
    for block in range(1, p.shape.num_layers + 1):
        place = p.shape.num_layers + 2 - block
        at = memory_peak.BackwardBlock(block)
        if p.checkpoint:
            at = memory_peak.block_position(p, (block - 1) // p.checkpoint, block)
        halves = memory_peak.block_backward_bytes(p, at).values()
        expected = lasting + max(sum(half.values()) for half in halves)
        assert expected == pytest.approx(seen[place], abs=8)
    moments = {at: sum(moment.values()) for at, moment in peak_candidates(p).items()}
    # The formulas ignore small temporaries per token or vocabulary entry.
    for place, begins, near in (
        (0, ("forward", "after", "backward, the loss"), 0.006),
        (1, "backward, the last norm", 5e-5),
        (p.shape.num_layers + 2, ("backward, the embedding", "optimizer"), 0.03),
    ):
        expected = max(n for when, n in moments.items() if when.startswith(begins))
        assert expected == pytest.approx(seen[place], rel=near), begins


PRECISIONS = pytest.mark.parametrize("precision", ["fp32", "bf16", "pure_bf16"])
SMALL = partial(Pass, ModelSize(64, 128, 2, 2), workspace_bytes=0)


@PRECISIONS
@pytest.mark.parametrize("context, batch", [(16, 32), (512, 1)])
def test_forward_peak_in_head_or_attention(monkeypatch, context, batch, precision):
    p = SMALL(context, "forward", precision, batch=batch, vocab=1000)
    (seen,) = allocator_peaks(monkeypatch, p).values()
    assert peak_bytes(p) == pytest.approx(seen, rel=3e-3)


@PRECISIONS
def test_peak_with_tied_weights_equals_memory_of_real_tensors(monkeypatch, precision):
    """Fake tensors need more: in a dispatch mode, autograd adds nothing in place."""
    p = SMALL(16, "step", precision, batch=1, vocab=4000, embeddings=1)
    with cuda_autocast(monkeypatch):
        model, run_pass = build_pass(p)
        run_pass()
        model.zero_grad()
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as trace:
            run_pass()
    events = trace.profiler.kineto_results.events()
    memory = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    most = category_peaks(p)
    lasting = most["weights"] + most["optimizer state"] + 2 * p.tokens * INT64_BYTES
    seen = lasting + max(accumulate(size for _, size in sorted(memory)))
    assert peak_bytes(p) == pytest.approx(seen, rel=2e-3)


def test_formula_gives_published_parameter_counts():
    """Test grouped-query attention and tied embeddings; Qwen's biases don't count."""
    llama_8b, llama_1b = ModelSize(4096, 14336, 32, 32), ModelSize(2048, 8192, 16, 32)
    qwen = ModelSize(896, 4864, 24, 14)
    for shape, kv_heads, vocab, embeddings, count in (
        (llama_8b, 8, 128256, 2, 8_030_261_248),
        (llama_1b, 8, 128256, 1, 1_235_814_400),
        (qwen, 2, 151936, 1, 494_032_768 - 24 * (896 + 2 * 128)),
    ):
        p = Pass(shape, 512, "step", "pure_bf16", vocab=vocab)
        p = replace(p, kv_heads=kv_heads, embeddings=embeddings)
        assert memory_costs.weight_bytes(p) == 2 * count
        ungrouped = replace(p, kv_heads=shape.num_heads)
        assert bytes_at_peak(ungrouped) == bytes_at_peak(replace(p, kv_heads=None))

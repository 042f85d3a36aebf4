"""Claims of `peak_memory`."""

from systems.formulas.memory_costs import attention_saved, residual_bytes
from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.markdown import in_mib, percent
from tools.render.rows import span
from tools.render.stems.peak_memory.rows import (
    PREDICTED,
    agreement,
    at,
    largest,
    pass_of,
    tried,
    worst,
)


@claim(
    "memory_profiling",
    "The peak of a full fp32 step of 2.7B moves: at context 512 it holds most of the "
    "activations and few gradients, at 128 most of the gradients and few activations.",
)
def memory_peak_moves(record: Record) -> Judgement:
    names = ("gradients", "saved activations")
    ends = [at(record, context, "step", "fp32") for context in (128, 512)]
    short, long = ([c.category(n) / c.most(n) for n in names] for c in ends)
    said = [
        ", ".join(
            f"{percent(s)} of the {n}" for s, n in zip(shares, names, strict=True)
        )
        for shares in (short, long)
    ]
    holds = short[0] > 0.5 > short[1] and long[1] > 0.5 > long[0]
    numbers = f"Alive at the peak: context 128 {said[0]}; 512 {said[1]}."
    return (holds, numbers) if all(ends) else None


@claim(
    "memory_profiling",
    "At context 512 a forward pass of 2.7B while the previous graph is alive needs "
    "more than forward and backward together, in fp32.",
)
def two_graphs_exceed_training(record: Record) -> Judgement:
    two_graphs, both = (
        at(record, 512, mode, "fp32").allocated / 2**30
        for mode in ("forward_two_graphs", "forward_backward")
    )
    numbers = f"{two_graphs:.1f} GiB against {both:.1f} GiB."
    return two_graphs / both and (two_graphs > both, numbers)


@claim(
    "memory_profiling",
    "At context 512 autocast raises the forward peak of 2.7B, by its copies of the "
    "weights, and lowers that of a full step, whose activations shrink by more.",
)
def autocast_raises_forward(record: Record) -> Judgement:
    forward, step = (
        at(record, 512, m, "bf16").allocated / at(record, 512, m, "fp32").allocated
        for m in ("forward", "step")
    )
    numbers = f"bf16 over fp32: forward {forward:.2f}, full step {step:.2f}."
    return forward / step and (forward > 1 > step, numbers)


@claim(
    "memory_profiling",
    "A tensor of the residual stream has the derived size, batch x context x width x 4 "
    "bytes, under autocast too.",
)
def residual_as_derived(record: Record) -> Judgement:
    found = [c for c in tried(record) if c.get("residual_bytes", None)]
    same = sum(c["residual_bytes"] == residual_bytes(pass_of(c)) for c in found)
    sizes = span([c["residual_bytes"] for c in found], "{:,}")
    numbers = f"As derived in {same} of {len(found)} rows, {sizes} bytes."
    return (same == len(found), numbers) if found else None


@claim(
    "memory_profiling",
    "At context 512 the largest allocations of a forward pass of 2.7B in fp32 are "
    "score matrices, made by the code of attention.",
)
def largest_are_scores(record: Record) -> Judgement:
    c = at(record, 512, "forward", "fp32")
    if not (found := largest(c)):
        return None
    derived, size = attention_saved(pass_of(c))["exponentials"], found[0]["bytes"]
    attention = all("scaled_dot_product_attention" in g["code"] for g in found)
    numbers = f"Largest {in_mib(size)}, a score matrix {in_mib(derived)}."
    return size == derived and attention, numbers


@claim(
    "memory_profiling",
    "Wherever a pass fits, the most of its weights, gradients, optimizer state, weight "
    "copies and saved activations is what shapes predict, to the byte.",
)
def memory_as_predicted(record: Record) -> Judgement:
    ran = sum(map(bool, tried(record)))
    off = worst(record, *PREDICTED)
    return ran and (off == 0, f"Over {ran} rows they agree {agreement(off)}.")

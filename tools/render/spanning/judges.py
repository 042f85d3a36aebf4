"""What records say of the claims of `claims.py`: for each a function from a record to
the outcome and its numbers.

None means that the rows to judge by are missing. What a row says is read by the builder
of its stem.
"""

from systems.formulas.memory_costs import attention_saved, residual_bytes
from systems.model.sizes import SIZES
from systems.profiling.kernel_names import MATMUL
from systems.records.record import Record, Row
from systems.records.summary import summarize
from tools.render.claims import Judgement
from tools.render.markdown import percent
from tools.render.stems import (
    attention,
)
from tools.render.stems import compile as compiled_model
from tools.render.stems.attention import compiled as attention_compiled
from tools.render.stems.attention import memory as attention_memory
from tools.render.stems.attention.rows import LENGTHS
from tools.render.stems.attention.rows import cell as attention_cell
from tools.render.stems.end_to_end import gains as of_bf16
from tools.render.stems.end_to_end.rows import BATCH, CONTEXTS, median_ms, samples_ms
from tools.render.stems.kernel_profile import rows as kernel_rows
from tools.render.stems.peak_memory import rows as memory_rows


def span(values: list[float]) -> str:
    return f"{min(values):.2f} to {max(values):.2f}"


# Time ---------------------------------------------------------------------------------


def backward_is_about_twice(record: Record) -> Judgement:
    steps = [
        r
        for r in record.rows
        if (r.config["mode"], r.config["precision"]) == ("step", "fp32")
    ]
    times = [
        (median_ms(r, "backward"), median_ms(r, "forward"))
        for r in steps
        if r.config["batch"] == BATCH
    ]
    ratios = [b / f for b, f in times if b and f]
    if not ratios:
        return None
    return all(
        1.5 <= r <= 2.5 for r in ratios
    ), f"Ratios: {span(ratios)} over {len(ratios)} steps."


def passes_are_steady(record: Record) -> Judgement:
    timed = [
        r
        for r in record.rows
        if r.config["mode"] in ("forward", "forward_backward") and r.status == "ok"
    ]
    timed = [r for r in timed if r.config["batch"] == BATCH]
    if not timed:
        return None
    steady = sum(summarize(samples_ms(r)).variation < 0.02 for r in timed)
    return steady >= 0.75 * len(timed), f"Rows below it: {steady} of {len(timed)}."


# Precision ----------------------------------------------------------------------------


def gains(record: Record, context: int) -> list[float]:
    found = [of_bf16.speedup(record, size, context, *of_bf16.PASSES) for size in SIZES]
    return [gain for gain in found if gain is not None]


def gain_grows_with_the_model(record: Record) -> Judgement:
    found = gains(record, 512)
    if len(found) < len(SIZES):
        return None
    return found == sorted(
        found
    ), f"fp32 time over bf16 time: {', '.join(f'{gain:.2f}' for gain in found)}."


def slower_where_launches_bind(record: Record) -> Judgement:
    cells = [(size, context) for size in SIZES for context in CONTEXTS[:-1]]
    slower = [
        c
        for c in cells
        if (gain := of_bf16.speedup(record, *c, *of_bf16.PASSES)) is not None
        and gain < 1
    ]
    if not gains(record, CONTEXTS[0]):
        return None
    doubled = [
        d for c in slower if (d := of_bf16.doubling(record, *c, "bf16")) is not None
    ]
    numbers = (
        f"Time at twice the context over this: {span(doubled)}."
        if doubled
        else "No cell is slower."
    )
    return all(0.8 < d < 1.2 for d in doubled), numbers


# Memory -------------------------------------------------------------------------------


def memory_peak_moves(record: Record) -> Judgement:
    rows = [memory_rows.cell(record, context, "step", "fp32") for context in (128, 512)]
    if not all(map(memory_rows.fits, rows)):
        return None
    names = ("gradients", "saved activations")
    shares = [
        [memory_rows.at_peak(r, n) / memory_rows.most_of(r, n) for n in names]
        for r in rows
        if r
    ]
    (early, kept_early), (late, kept_late) = shares
    texts = [
        ", ".join(f"{s:.0%} of the {n}" for s, n in zip(pair, names, strict=True))
        for pair in shares
    ]
    holds = early > 0.5 > kept_early and kept_late > 0.5 > late
    return holds, f"Alive at the peak: context 128 {texts[0]}; 512 {texts[1]}."


def forward_peak_is_weights(record: Record) -> Judgement:
    rows = [
        memory_rows.cell(record, context, "forward", "fp32")
        for context in memory_rows.CONTEXTS
    ]
    found = [
        peak / memory_rows.at_peak(row, "weights")
        for row in rows
        if row and (peak := memory_rows.allocated(row))
    ]
    if not found:
        return None
    return max(found) < 1.1, f"Peak over weights: {span(found)}."


def two_graphs_exceed_training(record: Record) -> Judgement:
    modes = ("forward_two_graphs", "forward_backward")
    two, both = (
        memory_rows.allocated(memory_rows.cell(record, 512, mode, "fp32"))
        for mode in modes
    )
    if two is None or both is None:
        return None
    return two > both, f"{two / 2**30:.1f} GiB against {both / 2**30:.1f} GiB."


def autocast_raises_forward(record: Record) -> Judgement:
    peaks = {
        (mode, p): memory_rows.allocated(memory_rows.cell(record, 512, mode, p))
        for mode in ("forward", "step")
        for p in memory_rows.PRECISIONS
    }
    if None in peaks.values():
        return None
    forward, step = (
        (peaks[m, "bf16"] or 0) / (peaks[m, "fp32"] or 1) for m in ("forward", "step")
    )
    return forward > 1.25 and abs(
        step - 1
    ) < 0.1, f"bf16 over fp32: forward {forward:.2f}, full step {step:.2f}."


def residual_as_derived(record: Record) -> Judgement:
    rows = [row for row in record.rows if "residual_bytes" in row.metrics]
    if not rows:
        return None
    same = sum(
        row.metrics["residual_bytes"] == residual_bytes(memory_rows.pass_of(row))
        for row in rows
    )
    sizes = sorted({row.metrics["residual_bytes"] for row in rows})
    return same == len(
        rows
    ), f"As derived in {same} of {len(rows)} rows, {sizes[0]:,} to {sizes[-1]:,} bytes."


def largest_are_scores(record: Record) -> Judgement:
    row = memory_rows.cell(record, 512, "forward", "fp32")
    if row is None or not memory_rows.fits(row):
        return None
    derived = attention_saved(memory_rows.pass_of(row))["exponentials"]
    largest = row.metrics["tenth"][0]["bytes"]
    named = [g["code"] for g in row.metrics["tenth"] if g["bytes"] == largest]
    holds = largest == derived and all(
        "scaled_dot_product_attention" in code for code in named
    )
    return (
        holds,
        f"Largest {largest / 2**20:.0f} MiB, a score matrix {derived / 2**20:.0f} MiB.",
    )


def memory_as_predicted(record: Record) -> Judgement:
    rows = [row for row in record.rows if memory_rows.fits(row)]
    if not rows:
        return None
    lasting, passing = (
        ("weights", "gradients", "optimizer state"),
        ("saved activations", "weight copies"),
    )
    worst = [memory_rows.worst(record, names) or 0.0 for names in (lasting, passing)]
    numbers = f"Off by {worst[0]:.2%} and {worst[1]:.2%} at most over {len(rows)} rows."
    return not memory_rows.misses(record), numbers


# Attention ----------------------------------------------------------------------------


def saved_memory_is_two_matrices(record: Record) -> Judgement:
    kept = attention_memory.kept_bytes(attention_cell(record, LENGTHS[-1]))
    if kept is None:
        return None
    per_square = kept / LENGTHS[-1] ** 2
    return abs(
        per_square / 64 - 1
    ) < 0.05, f"Kept per N²: {per_square:.1f} bytes at N = {LENGTHS[-1]:,}."


def time_grows_with_the_square(record: Record) -> Judgement:
    factors = [attention.growth(record, name) for name in attention.PASSES]
    if factors[0] is None or factors[1] is None:
        return None
    numbers = f"From N = {LENGTHS[-2]:,} to twice that: forward {factors[0]:.2f}, backward {factors[1]:.2f}."
    return all(3 <= factor <= 5 for factor in factors if factor), numbers


def compiled_attention_is_faster(record: Record) -> Judgement:
    rows = attention_compiled.compiled_rows(record)
    found = [
        ratio
        for row in rows
        if (ratio := attention_compiled.speedup(record, row)) is not None
    ]
    if not found:
        return None
    return min(
        found
    ) > 1, f"Eager time over compiled time: {span(found)} over {len(found)} cells."


def compiling_the_model_gains(record: Record) -> Judgement:
    found = compiled_model.step_speedups(record)
    if not found:
        return None
    return min(found) > 1, f"Eager time over compiled time of a step: {span(found)}."


def bf16_gains_more_from_compiling(record: Record) -> Judgement:
    rows = [
        compiled_model.cell(record, "2.7B", precision, "compiled")
        for precision in ("fp32", "bf16")
    ]
    fp32, bf16 = (compiled_model.speedup(record, row) for row in rows)
    if fp32 is None or bf16 is None:
        return None
    return bf16 > fp32, f"fp32 {fp32:.2f}, bf16 {bf16:.2f}."


def forward_passes(record: Record) -> list[Row]:
    wanted = {"mode": "forward", "precision": "fp32"}
    return [
        row for row in kernel_rows.ran(record) if wanted.items() <= row.config.items()
    ]


def small_is_launch_bound(record: Record) -> Judgement:
    cells = (("small", 128), ("2.7B", 512))
    small, large = (
        kernel_rows.idle_share(kernel_rows.cell(record, *c, "forward")) for c in cells
    )
    if small is None or large is None:
        return None
    return (
        small > 1 / 3 and large < 1 / 20,
        f"Idle: small {percent(small)}, 2.7B {percent(large)}.",
    )


def top_kernel_multiplies(record: Record) -> Judgement:
    found = []
    for row in kernel_rows.ran(record):
        for mode, phases in (
            kernel_rows.PASSES[name] for name in ("forward", "forward and backward")
        ):
            if (row.config["mode"], row.config["precision"]) == (mode, "fp32"):
                found.append(kernel_rows.by_name(row, phases)[0][1])
    if not found:
        return None
    return set(found) == {MATMUL}, f"{found.count(MATMUL)} of {len(found)} passes."


def training_dilutes_products(record: Record) -> Judgement:
    found = []
    for row in forward_passes(record):
        cell = row.config["size"], row.config["context"]
        inference, step = (
            kernel_rows.matmul_share(record, *cell, passes)
            for passes in ("forward", "full step")
        )
        if inference is not None and step is not None:
            found.append(step / inference)
    if not found:
        return None
    return (
        max(found) < 1,
        f"Share in a full step over share in inference: {span(found)}, {len(found)} cells.",
    )


def softmax_is_memory_traffic(record: Record) -> Judgement:
    flops, times = [], []
    for row in forward_passes(record):
        softmax, *products = (
            kernel_rows.part(row, n)
            for n in ("attention softmax", *kernel_rows.PRODUCTS)
        )
        if softmax is None or None in products:
            continue
        costs = kernel_rows.part_costs(row)
        flops.append(
            sum(costs[name][0] for name in kernel_rows.PRODUCTS)
            / costs["attention softmax"][0]
        )
        times.append(sum(found[1] for found in products if found) / softmax[1])
    if not flops:
        return None
    holds = min(flops) > 10 and max(times) < 2
    return holds, f"Products over softmax: FLOPs {span(flops)}, time {span(times)}."


def kernels_are_attributed(record: Record) -> Judgement:
    rows = kernel_rows.ran(record)
    if not rows:
        return None
    lost = max(map(kernel_rows.unattributed, rows))
    # Nsight Systems' export does not tell operations.
    gaps = [
        abs(gap) for row in rows if (gap := kernel_rows.disagreement(row)) is not None
    ]
    said = f"Without a phase at most {percent(lost)}; names against operations at most {percent(max(gaps, default=0))}."
    return lost < 0.01 and all(gap < 0.03 for gap in gaps), said

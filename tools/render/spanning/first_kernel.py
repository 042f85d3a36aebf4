"""What the pages on the first kernels predict on the back of an envelope, beside what
was measured: from `systems.formulas`, a data sheet and the records.
"""

from systems.formulas.costs import KERNELS, attention_flops
from systems.records.record import Record
from tools.render.load import Found, ours, primary_gpu
from tools.render.markdown import per_device
from tools.render.plots import plot
from tools.render.rows import cell, data_sheet, say
from tools.render.spanning.ladder import waterfall
from tools.render.stems.flash_ablation import (
    FORWARD,
    gain,
    gain_at_the_end,
    ms_at_the_end,
)
from tools.render.stems.flash_ablation import ms as fastest_ms
from tools.render.stems.flash_benchmarking import PLAIN_MOVES

# One head under a causal mask, as `flash_benchmarking` measures it; `flash_ablation`
# measures 16.
N, D, BYTES, HEADS = 16384, 64, 2, 16

# The steps of `flash_ablation` from the kernel of the first one's design to the one for
# any shape. A record from before the first kernel was timed begins with the design.
STEPS = [step for step in FORWARD if step != "first_forward"]
LADDER = STEPS[STEPS.index("skip") : STEPS.index("plain_forward") + 1]


def ladder(ablation: Record) -> str:
    """What each step from the first kernel to the one for any shape takes, as bars."""
    timed = cell(ablation, step="first_forward")
    steps = {step: FORWARD[step].name for step in LADDER}
    steps["skip"] = (
        "other tiles, one in flight" if timed else "the first kernel's design"
    )
    if timed:
        steps = {"first_forward": "the first kernel", **steps}
    times = {words: fastest_ms(ablation, step) for step, words in steps.items()}
    first, *_, last = times.values()
    return plot(
        ablation,
        "first",
        lambda figure: waterfall(figure, times),
        f"{'Seven' if timed else 'Six'} steps, of which some lose, make the same "
        f"algorithm {say(first / last, '{:.1f}')} times as fast.",
        f"Forward pass, {HEADS} heads of {N:,} tokens, head dimension {D}, bf16, "
        "causal; each step keeps the techniques of those above it, not always their "
        "tiles. Blue: saved by the step; orange: added.",
        height=36 + 28 * len(times),
    )


def fragments(found: Found) -> dict[str, str]:
    return {"first-ladder.md": per_device(found.get("flash_ablation", []), ladder)}


def facts(found: Found) -> dict[str, str]:
    """What one forward pass moves and multiplies with the scores in memory and without,
    how long the primary GPU would take by its data sheet, and what was measured.
    """
    peak = data_sheet(primary_gpu())
    bandwidth, rate = peak.bandwidth, peak.bf16
    plain_bytes = sum(PLAIN_MOVES["forward"].values()) * N**2 * BYTES
    work = KERNELS["forward"]
    flash_bytes = N * (work.tensors * D * BYTES + work.vectors * 4)
    shape = {"d": D, "batch": 1, "n": N, "causal": True}
    forward = attention_flops("forward", heads=1, **shape)
    backward = attention_flops("backward", heads=HEADS, **shape)

    benchmark = ours(found, "flash_benchmarking")
    ablation = ours(found, "flash_ablation")
    plain, flash = (
        cell(benchmark, implementation=name, dtype="bf16", d=D, n=N).kernel_ms(
            "forward"
        )
        for name in ("plain", "ours")
    )

    def step(name: str) -> float:
        return fastest_ms(ablation, name)

    ms, hundredths = "{:.3g} ms", "{:.2f} ms"
    tuned = "first_forward", "plain_forward"
    return {
        "plain_bytes": f"{plain_bytes / 1e9:.1f} GB",
        "flash_bytes": f"{flash_bytes / 1e6:.1f} MB",
        "bytes_ratio": f"{plain_bytes / flash_bytes:,.0f}",
        "bandwidth": say(bandwidth / 1e12, "{:g} TB/s"),
        "rate": say(rate / 1e12, "{:.0f} TFLOP/s"),
        "plain_moved": say(1e3 * plain_bytes / bandwidth, ms),
        "flash_moved": say(1e3 * flash_bytes / bandwidth, "{:.4f} ms"),
        "multiplied": say(1e3 * forward / rate, "{:.3f} ms"),
        "plain": say(plain, ms),
        "ours": say(flash, ms),
        "plain_over_predicted": say(plain / (1e3 * plain_bytes / bandwidth), "{:.1f}"),
        "plain_over_ours": say(plain / flash, "{:.0f}"),
        "this_forward": say(step("first_forward"), hundredths),
        "this_backward": say(step("first_backward"), hundredths),
        "backward_over": say(step("first_backward") / step("backward"), "{:.1f}"),
        "any_shape": say(step("plain_forward"), hundredths),
        "over_any_shape": say(gain(ablation, *tuned), "{:.1f}"),
        "over_any_shape_at_the_end": say(gain_at_the_end(ablation, *tuned), "{:.1f}"),
        "better_tiles": say(step("first_forward") / step("forward"), "{:.1f}"),
        "hopper": say(step("forward"), hundredths),
        "five": say(1e3 * backward / rate, "{:.2f} ms"),
        "seven": say(1e3 * backward * 7 / 5 / rate, "{:.2f} ms"),
        "atomic": say(step("atomic_backward"), hundredths),
        "two_passes": say(step("plain_backward"), hundredths),
        "a_head": say(ms_at_the_end(ablation, "plain_forward") / HEADS, ms),
    }

"""Tables and facts of `flash_leaderboard`: the course's test, and lower bounds of its
kernels.
"""

from typing import Any

from systems.formulas.chips import chip_of
from systems.formulas.costs import KERNELS, attention_flops, count_scores, find_peak
from systems.records.record import Record
from systems.records.summary import summarize
from tools.render.frame import Frame, Line, frame, texts
from tools.render.markdown import format_ms, per_device, percent
from tools.render.rows import MISSING, measured
from tools.render.stems.flash_passes import peak_tflops

NAMES = {
    "ours": "this guide, Hopper",
    "sdpa_cudnn": "SDPA, cuDNN",
    "flex": "FlexAttention, compiled",
    "sdpa_flash": "SDPA, FlashAttention-2",
    "plain": "plain PyTorch",
}
# In one pass there are kernels for delta and for rounding dQ.
ROLES = {
    "forward": "forward",
    "delta": "δ",
    "one_pass": "dK, dV and dQ",
    "dkdv": "dK and dV",
    "dq": "dQ",
    "round": "dQ rounded",
    "rest": "the rest: sum, copy of dO, gradients gathered",
}
# Matmuls bound a kernel: nothing passes tensor cores at their highest clock.
FLOOR = "products"
LIMITS = {
    FLOOR: "matmuls",
    "exponentials": "exponentials",
    "bytes": "HBM",
    "additions": "additions of dQ",
}
# The test's shape, and the bytes of a bf16 and of an fp32 number.
SHAPE = {"heads": 16, "n": 16384, "d": 64}
HALF, SINGLE = 2, 4
CAPTIONS = {
    "table.md": "**The test of 2025 by each implementation.** They ran one after the "
    "other; the interleaved comparison is above.",
    "kernels.md": "**The kernels of one call of the test,** their times, and how long "
    "each job takes by itself.",
}


# Columns ------------------------------------------------------------------------------


def role_of(kernel: str) -> str:
    """Return the role of one of this guide's kernels by its name; "rest" for PyTorch's,
    whose C++ names have "::" or a return type.
    """
    if "::" in kernel or " " in kernel or kernel.startswith("triton_"):
        return "rest"
    return next((role for role in ROLES if role in kernel), "rest")


def rates_of(record: Record) -> dict[str, float]:
    """Return how much this GPU does per second: FLOPs and exponentials at the highest
    clock of its maker or record, bytes by the data sheet, bytes added to memory as
    measured.
    """
    peak, chip = find_peak(record.device.slug), chip_of(record.device.slug)
    if not (peak and chip):
        return dict.fromkeys(LIMITS, MISSING)
    seen = 1e6 * max(record.device.sm_clocks_mhz, default=0)
    clocks = chip.sms * max(seen, chip.clock)
    top = frame(record).one(implementation="ceiling")
    return {
        "products": clocks * chip.bf16_flops_per_clock,
        "exponentials": clocks * chip.exponentials_per_clock,
        "bytes": peak.bandwidth,
        # By all copy engines; only on Hopper.
        "additions": top.get("added_bytes") / (top.get("addition_ms") / 1e3),
    }


def limits_ms(record: Record, role: str, shape: dict[str, Any]) -> dict[str, float]:
    """Return how long a kernel takes at least for each of its jobs."""
    work, d = KERNELS[role], shape["d"]
    rows = shape["heads"] * shape["n"]
    entries = count_scores(batch=1, heads=shape["heads"], n=shape["n"], causal=True)
    shares = entries / work.keys_per_share if work.keys_per_share else 0
    needed = {
        "products": work.matmuls * 2 * d * entries,
        "bytes": rows * (work.tensors * d * HALF + work.vectors * SINGLE),
        "exponentials": work.exponentials * entries,
        "additions": shares * d * SINGLE,
    }
    rates = rates_of(record)
    return {name: 1e3 * n / rates[name] for name, n in needed.items() if n}


def kernels(record: Record | None) -> Frame:
    """Return the kernels of one call in their order, each with its median time and its
    lower bounds.
    """
    ours = frame(record).one(implementation="ours")
    times = dict.fromkeys(ROLES, 0.0)
    for kernel in ours.get("kernels", []) if ours else []:
        times[role_of(kernel["name"])] += summarize(kernel["time_ms"]).median
    found = Frame(Line(role=role, ms=ms) for role, ms in times.items() if ms)
    for x in found:
        x |= dict.fromkeys(LIMITS, "")
        if record and x["role"] in KERNELS:
            x |= limits_ms(record, x["role"], {key: ours[key] for key in SHAPE})
    return found.derive(
        share=lambda x: x["ms"] / sum(times.values()),
        over_floor=lambda x: x["ms"] / x[FLOOR] if x[FLOOR] != "" else "",
    )


# Tables -------------------------------------------------------------------------------


def fragments(records: list[Record]) -> dict[str, str]:
    ours = measured(records)
    reported = [record for record in records if record.kind == "reported"]
    return {
        "table.md": per_device(ours, test_table),
        "kernels.md": per_device(ours, kernels_table),
        "reported.md": per_device(reported, entries_table),
    }


def test_table(record: Record) -> str:
    found = (
        frame(record)
        .arrange(implementation=NAMES)
        .derive(
            # Counting the FLOPs that attention needs.
            tflops=lambda x: (
                attention_flops(
                    "both", batch=1, causal=True, **{k: x[k] for k in SHAPE}
                )
                / (x["both_ms"] * 1e9)
            ),
            peak=lambda x: x["tflops"] / peak_tflops(record, "bf16"),
        )
    )
    return found.table(
        ("implementation", lambda x: NAMES[x["implementation"]]),
        ("median, ms", "both_ms", format_ms),
        ("GPU, ms", lambda x: x.gpu_ms("both") or "", format_ms),
        ("TFLOP/s", "tflops", "{:.0f}"),
        ("share of peak", "peak", percent),
    )


def kernels_table(record: Record) -> str:
    return kernels(record).table(
        ("kernel", lambda x: ROLES[x["role"]]),
        ("time, ms", "ms", "{:.2f}"),
        ("share", "share", percent),
        *((f"{head}, ms", name, "{:.2f}") for name, head in LIMITS.items()),
        ("time / matmuls", "over_floor", "{:.2f}"),
    )


def entries_table(record: Record) -> str:
    """Print the entries of a leaderboard, of attention or of a training step."""
    found = frame(record)
    if any("step_ms" in x.metrics for x in found):
        return found.table("place", ("training step, ms", "step_ms", "{:,.0f}"))
    return found.table("place", ("time, ms", "both_ms", "{:.2f}"))


# Facts --------------------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    found = kernels(record)
    forward, one_pass = (found.one(role=role) for role in ("forward", "one_pass"))
    return {
        **texts(
            "{:.2f} ms",
            {
                "forward_products": forward[FLOOR],
                "one_pass_products": one_pass[FLOOR],
                "one_pass_additions": one_pass["additions"],
            },
        ),
        **texts(
            "{:.1f}",
            {
                "forward_over_floor": forward["over_floor"],
                "one_pass_over_floor": one_pass["over_floor"],
            },
        ),
    }

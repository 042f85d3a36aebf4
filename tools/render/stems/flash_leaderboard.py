"""Tables and facts of `flash_leaderboard`: the course's test, and lower bounds."""

from typing import Any

from systems.formulas.costs import KERNELS, PEAKS, count_scores
from systems.formulas.gpus import CHIPS
from systems.records.record import Record
from systems.records.summary import summarize
from tools.render.fragments import Fragments
from tools.render.frame import Frame, Line, frame
from tools.render.markdown import format_ms, percent
from tools.render.rows import MISSING, fmt
from tools.render.stems.flash_passes import count_flops, peak_tflops

NAMES = {
    "ours": "this guide",
    "sdpa_cudnn": "SDPA, cuDNN",
    "flex": "FlexAttention, compiled",
    "sdpa_flash": "SDPA, FlashAttention-2",
    "plain": "plain PyTorch",
}
# Labels of kernels by role, in the order in which they run.
ROLES = {
    "forward": "forward",
    "delta": "δ",
    "one_pass": "dK, dV and dQ",
    "dkdv": "dK and dV",
    "dq": "dQ",
    "round": "dQ rounded",
    "rest": "the rest: sum, copy of dO, gradients gathered",
}
# The resource that gives a kernel's lower bound: matmuls on tensor cores.
FLOOR = "products"
LIMITS = {
    FLOOR: "matmuls",
    "exponentials": "exponentials",
    "bytes": "HBM",
    "additions": "additions of dQ",
}
# The test's shape, and the bytes of a bf16 and an fp32 number.
SHAPE = {"heads": 16, "n": 16384, "d": 64}
HALF, SINGLE = 2, 4
fragments = Fragments()


def kernel_role(kernel: str) -> str:
    """Return the key of ROLES that a kernel's name contains; "rest" for others."""
    if "::" in kernel or " " in kernel or kernel.startswith("triton_"):
        return "rest"
    return next((role for role in ROLES if role in kernel), "rest")


def device_rates(record: Record) -> dict[str, float]:
    """Return a GPU's rates per second by resource in LIMITS: FLOPs and exponentials at
    its highest clock rate, bytes by the data sheet, atomic additions as measured.
    """
    peak, chip = PEAKS.get(record.device.slug), CHIPS.get(record.device.slug)
    if not (peak and chip):
        return dict.fromkeys(LIMITS, MISSING)
    seen = 1e6 * max(record.device.sm_clocks_mhz, default=0)
    clocks = chip.sms * max(seen, chip.clock)
    top = frame(record).one(implementation="ceiling")
    return {
        "products": clocks * chip.bf16_flops_per_clock,
        "exponentials": clocks * chip.exponentials_per_clock,
        "bytes": peak.bandwidth,
        # Atomic additions to memory (TMA reductions), measured on Hopper only.
        "additions": top.get("added_bytes") / (top.get("addition_ms") / 1e3),
    }


def bounds_ms(record: Record, role: str, shape: dict[str, Any]) -> dict[str, float]:
    """Return {resource: lower bound in ms} of the kernel `role` at a causal `shape`."""
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
    rates = device_rates(record)
    return {name: 1e3 * n / rates[name] for name, n in needed.items() if n}


def kernel_rows(record: Record | None) -> Frame:
    """Return a row per kernel role ("dq"): ms, share of GPU time, least ms by limit."""
    ours = frame(record).one(implementation="ours")
    times = dict.fromkeys(ROLES, 0.0)
    for kernel in ours.get("kernels", []) if ours else []:
        times[kernel_role(kernel["name"])] += summarize(kernel["time_ms"]).median
    found = Frame(Line(role=role, ms=ms) for role, ms in times.items() if ms)
    for x in found:
        x |= dict.fromkeys(LIMITS, "")
        if record and x["role"] in KERNELS:
            x |= bounds_ms(record, x["role"], {key: ours[key] for key in SHAPE})
    return found.derive(
        share=lambda x: x["ms"] / sum(times.values()),
        over_floor=lambda x: x["ms"] / x[FLOOR] if x[FLOOR] != "" else "",
    )


@fragments.add(
    "table.md",
    "**The leaderboard test of 2025.** `do_bench` (median, TFLOP/s) times one "
    "implementation after the other; for GPU times, calls alternate. Rates are lower "
    "than above: the test also sums o, and `do_bench` counts gaps between kernels.",
)
def leaderboard_table(record: Record) -> str:
    found = frame(record).arrange(implementation=NAMES)
    found.derive(
        tflops=lambda x: count_flops(x, "both") / x["both_ms"] / 1e9,
        peak=lambda x: x["tflops"] / peak_tflops(record, "bf16"),
    )
    return found.table(
        ("implementation", lambda x: NAMES[x["implementation"]]),
        ("median, ms", "both_ms", format_ms),
        ("GPU, ms", lambda x: x.gpu_ms("both"), format_ms),
        ("TFLOP/s", "tflops", "{:.0f}"),
        ("share of peak", "peak", percent),
    )


@fragments.add(
    "kernels.md",
    "**Each kernel in one call of the test:** its time, and the time that each job "
    "(matmuls, exponentials, ...) would take alone.",
)
def kernels_table(record: Record) -> str:
    return kernel_rows(record).table(
        ("kernel", lambda x: ROLES[x["role"]]),
        ("time, ms", "ms", "{:.2f}"),
        ("share of the call", "share", percent),
        *((f"{head}, ms", name, "{:.2f}") for name, head in LIMITS.items()),
        ("time / matmul time", "over_floor", "{:.2f}"),
    )


@fragments.add("reported.md", measured=False, reported=True)
def entries_table(record: Record) -> str:
    """Return a table of a leaderboard's entries, for attention or a training step."""
    found = frame(record)
    if any("step_ms" in x.metrics for x in found):
        return found.table("place", ("training step, ms", "step_ms", "{:,.0f}"))
    return found.table("place", ("time, ms", "both_ms", "{:.2f}"))


def facts(record: Record | None) -> dict[str, str]:
    found = kernel_rows(record)
    forward, one_pass = (found.one(role=role) for role in ("forward", "one_pass"))
    return {
        "one_pass_products": fmt(one_pass[FLOOR], "{:.5f} ms"),
        "one_pass_additions": fmt(one_pass["additions"], "{:.5f} ms"),
        "forward_over_floor": fmt(forward["over_floor"], "{:.5f}"),
        "one_pass_over_floor": fmt(one_pass["over_floor"], "{:.5f}"),
    }

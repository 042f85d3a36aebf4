"""Tables, figure and facts of `flash_leaderboard`: the course's test, and each kernel
against what it can't do without.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

from matplotlib.figure import Figure

from systems.formulas.chips import chip_of
from systems.formulas.costs import KERNELS, attention_flops, count_scores, find_peak
from systems.records.device import slug_of
from systems.records.record import Record
from systems.records.summary import summarize
from tools.render.drawing import SMALL, Drawing, drawn
from tools.render.load import primary_gpu
from tools.render.markdown import columns, milliseconds, per_device, percent, table
from tools.render.plots import (
    ACCENT,
    GREY,
    PALE,
    bars,
    panels,
    plot,
    value,
    without_numbers,
)
from tools.render.rows import (
    MISSING,
    NOT_MEASURED,
    Cell,
    cell,
    cells,
    data_sheet,
    known,
    measured,
    say,
)
from tools.render.stems.flash_passes import TFLOPS, peak_flops

NAMES = {
    "ours": "ours",
    "sdpa_cudnn": "SDPA, cuDNN",
    "sdpa_flash": "SDPA, FlashAttention-2",
    "flex": "FlexAttention, compiled",
    "plain": "plain PyTorch",
}
# One pass on Hopper has kernels for D and for rounding dQ; in two passes dQ's kernel
# computes D.
ROLES = {
    "forward": "forward",
    "delta": "δ",
    "one_pass": "dK, dV and dQ",
    "dkdv": "dK and dV",
    "dq": "dQ",
    "round": "dQ rounded",
}
# What a kernel must do. Products are a floor: nothing passes tensor cores at their
# highest clock. The L2 cache may hold bytes, a polynomial on other units can stand for
# an exponential, and how fast copy engines add was measured.
FLOOR = "products"
LIMITS = {
    FLOOR: "products",
    "bytes": "memory",
    "exponentials": "exponentials",
    "additions": "additions",
}
# The test's shape, and the bytes of a bf16 and of an fp32 number.
SHAPE = {"heads": 16, "n": 16384, "d": 64}
HALF, SINGLE = 2, 4
# Of a kernel's own name in a table: those of PyTorch's templates run on for lines.
SHOWN = 64


class Rates(NamedTuple):
    """What a GPU does in a second: FLOPs and exponentials at its highest clock, bytes
    by its data sheet, bytes added to memory as measured.
    """

    products: float
    bytes: float
    exponentials: float
    additions: float


# What a record says -------------------------------------------------------------------


def at(record: Record | None, name: str) -> Cell:
    return cell(record, implementation=name)


def role_of(kernel: str) -> str:
    """Which of our kernels this is by its name; "rest" for PyTorch's, whose C++ names
    have "::" or a return type.
    """
    if "::" in kernel or " " in kernel or kernel.startswith("triton_"):
        return "rest"
    return next((role for role in ROLES if role in kernel), "rest")


def kernels_ms(c: Cell) -> dict[str, float]:
    """Median time in one call of each kernel by name, longest first."""
    kernels = c.get("kernels", []) if c else []
    found = {k["name"]: summarize(k["time_ms"]).median for k in kernels}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def roles_ms(c: Cell) -> dict[str, float]:
    """Time by role; everything that is not ours is "rest"."""
    found: dict[str, float] = {}
    for kernel, time in kernels_ms(c).items():
        found[role_of(kernel)] = found.get(role_of(kernel), 0.0) + time
    return found


def rates(slug: str, clock: float = 0.0, added: float = MISSING) -> Rates:
    """Of this GPU, at this clock in Hz, or at the highest that its maker names."""
    peak, chip = find_peak(slug), chip_of(slug)
    if not (peak and chip):
        return Rates(*[MISSING] * 4)
    clocks = chip.sms * (clock or chip.clock)
    return Rates(
        clocks * chip.bf16_flops_per_clock,
        peak.bandwidth,
        clocks * chip.exponentials_per_clock,
        added,
    )


def rates_of(record: Record) -> Rates:
    """As `rates`, at the highest clock that was seen if that is higher."""
    seen = 1e6 * max(record.device.sm_clocks_mhz, default=0)
    chip = chip_of(record.device.slug)
    clock = max(seen, chip.clock if chip else 0)
    return rates(record.device.slug, clock, additions_per_s(record))


def additions_per_s(record: Record | None) -> float:
    """Bytes per second that all SMs add to memory which the L2 cache holds;
    missing but on Hopper.
    """
    top = at(record, "ceiling")
    if "addition_ms" not in top.metrics:
        return MISSING
    return top["added_bytes"] / (top.ms("addition") / 1e3)


def limits_ms(rates: Rates, role: str, shape: dict[str, int]) -> dict[str, float]:
    """How long a kernel needs for each thing that it must do, did it nothing else."""
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
    return {name: 1e3 * n / getattr(rates, name) for name, n in needed.items() if n}


class Kernel(NamedTuple):
    """One of ours in one call: its time, and how long it needs for what it must do."""

    role: str
    ms: float
    share: float
    limits: dict[str, float]

    @property
    def label(self) -> str:
        return ROLES.get(self.role, "the rest: sum, dO written out, gradients gathered")

    @property
    def over_floor(self) -> float:
        """Missing where it multiplies nothing."""
        return self.ms / self.limits.get(FLOOR, MISSING)


def kernels(record: Record | None) -> list[Kernel]:
    """Those of one call in their order, and the rest of the call at the end."""
    ours = at(record, "ours")
    times = roles_ms(ours)
    total = sum(times.values())

    def limits(role: str) -> dict[str, float]:
        if not record or role not in KERNELS:
            return {}
        shape = {key: ours.config[key] for key in SHAPE}
        return limits_ms(rates_of(record), role, shape)

    return [
        Kernel(role, times[role], times[role] / total, limits(role))
        for role in (*ROLES, "rest")
        if role in times
    ]


def large(record: Record | None) -> list[Kernel]:
    """Those that multiply; D and rounding take next to nothing."""
    return [k for k in kernels(record) if FLOOR in k.limits]


# Tables -------------------------------------------------------------------------------


def fragments(records: list[Record]) -> dict[str, str]:
    """The test for every implementation; our kernels against what they can't do
    without, drawn and in a table; every kernel that ran; what others reported.
    """
    ours = measured(records)
    reported = [record for record in records if record.kind == "reported"]
    return {
        "lanes.md": lanes(),
        "table.md": per_device(ours, test_table),
        "figure.md": per_device(ours, kernels_figure),
        "kernels.md": per_device(ours, kernels_table),
        "names.md": per_device(ours, names_table),
        "reported.md": per_device(reported, entries_table),
    }


def test_rate(c: Cell) -> float:
    """FLOP/s of the test, by the FLOPs that attention needs."""
    if not c:
        return c.missing
    shape = {key: c.config[key] for key in SHAPE}
    return attention_flops("both", batch=1, causal=True, **shape) / (c.ms("both") / 1e3)


def test_table(record: Record, *more: tuple[Any, ...]) -> str:
    """Median and spread of the test, and further columns."""
    return columns(
        [c for name in NAMES if (c := at(record, name)).row is not None],
        ("implementation", lambda c: NAMES[c.config["implementation"]]),
        ("median, ms", lambda c: c.ms("both"), milliseconds),
        ("GPU, ms", lambda c: c.gpu_ms("both") or "", milliseconds),
        ("p20", lambda c: c.summary("both").p20, milliseconds),
        ("p80", lambda c: c.summary("both").p80, milliseconds),
        ("TFLOP/s", lambda c: test_rate(c) / TFLOPS, "{:.0f}"),
        ("share of peak", lambda c: test_rate(c) / peak_flops(record, "bf16"), percent),
        *more,
        ("measured for, ms", lambda c: c.config["rep_ms"] if c else MISSING, "{:,}"),
    )


def kernels_table(record: Record) -> str:
    """Where the time of one call goes, and how far each kernel is from its floor."""
    found = kernels(record)
    shown = [name for name in LIMITS if any(k.limits.get(name) for k in found)]
    return columns(
        found,
        ("kernel", lambda k: k.label),
        ("time, ms", lambda k: k.ms, "{:.3f}"),
        ("share", lambda k: k.share, percent),
        *(
            (f"{LIMITS[name]}, ms", lambda k, n=name: k.limits.get(n) or "", "{:.3f}")
            for name in shown
        ),
        ("time / floor", lambda k: k.over_floor or "", "{:.2f}"),
    )


def names_table(record: Record) -> str:
    """Every kernel of one call of the test, by its own name."""
    rows = []
    for name, label in NAMES.items():
        for kernel, time in kernels_ms(at(record, name)).items():
            short = kernel if len(kernel) <= SHOWN else f"{kernel[:SHOWN]}…"
            rows.append([label, f"`{short.replace('|', '')}`", f"{time:.3f}"])
    return table(["implementation", "kernel", "time, ms"], rows, left=2)


def entries_table(record: Record) -> str:
    """Of a leaderboard. Where attention is timed, its rate on that GPU."""
    entries = cells(record)
    if any("step_ms" in c.metrics for c in entries):
        step = ("training step, ms", lambda c: c["step_ms"], "{:,.0f}")
        return columns(entries, ("place", lambda c: str(c.config["place"])), step)
    peak = data_sheet(slug_of(record.device.name))
    flops = attention_flops("both", batch=1, causal=True, **SHAPE)

    def rate(c: Cell) -> float:
        return flops / (c["both_ms"] / 1e3)

    return columns(
        entries,
        ("place", lambda c: str(c.config["place"])),
        ("time, ms", lambda c: c["both_ms"], "{:.3f}"),
        ("TFLOP/s", lambda c: rate(c) / TFLOPS, "{:.0f}"),
        ("share of peak", lambda c: rate(c) / peak.bf16, percent),
    )


# Figures ------------------------------------------------------------------------------


def lanes() -> str:
    """Products and exponentials of six tiles, in turn and overlapped."""

    def blocks(overlapped: bool) -> Iterator[tuple[int, int, str]]:
        for tile in range(6):
            yield 0, tile if overlapped else 2 * tile, "fill-blue"
            yield 1, tile + 1 if overlapped else 2 * tile + 1, "fill-grey"

    def draw(d: Drawing) -> None:
        left = 118 if d.wide else 84
        each = (d.width - left) / 12
        y = 0
        for words, overlapped in (("one after the other", False), ("overlapped", True)):
            d.text(left, y + 12, words, SMALL, bold=True)
            for lane, name in enumerate(("tensor cores", "exponentials")):
                d.text(0, y + 34 + 24 * lane, name, SMALL)
                d.line(left, y + 40 + 24 * lane, d.width, y + 40 + 24 * lane, "faint")
            for lane, slot, style in blocks(overlapped):
                d.box(left + slot * each, y + 20 + 24 * lane, each - 3, 18, style)
            y += 78

    return drawn(
        draw,
        "One after the other, products and exponentials take their sum; overlapped, "
        "the longer of the two.",
        "Overlapped, a kernel takes the longer of two; one after the other, their sum.",
        "Six tiles of the forward pass at head dimension 64, where both take equally "
        "long.",
    )


def kernels_figure(record: Record) -> str:
    """Each kernel that multiplies, beside what it can't do without."""
    shown = large(record)
    if not shown:
        return ""

    def draw(figure: Figure) -> None:
        longest = max(k.ms for k in shown)
        most = 1 + max(len(k.limits) for k in shown)
        for axes, kernel in zip(panels(figure, len(shown)), shown, strict=True):
            found = {"measured": kernel.ms} | {
                LIMITS[name]: ms for name, ms in kernel.limits.items() if known([ms])
            }
            looks = [ACCENT, *(GREY if n == FLOOR else PALE for n in kernel.limits)]
            floor = LIMITS[FLOOR]
            bars(axes, [f"{n}, a floor" if n == floor else n for n in found])
            axes.set_ylim(most - 0.4, -0.6)
            axes.barh(range(len(found)), list(found.values()), 0.6, color=looks)
            for y, ms in enumerate(found.values()):
                value(axes, f"{ms:.2f}", ms, y)
            without_numbers(axes)
            axes.set_xlim(0, 1.18 * longest)
            axes.set_title(f"{kernel.label}, ms")

    told = " and ".join(f"{say(k.over_floor, '{:.2f}')} ({k.label})" for k in shown)
    return plot(
        record,
        "kernels",
        draw,
        f"Time over the floor of the products: {told}.",
        "First bar: the kernel in one call of the test. Below it, how long each of "
        "its jobs takes by itself. Nothing is faster than its products: they are the "
        "floor.",
        height=190,
        narrow=120 + 130 * len(shown),
    )


# Facts --------------------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    """The test's medians and ours over the others; each kernel's time and distance
    from its floor; how fast copy engines add; and what was predicted.
    """
    found, ours = {}, at(record, "ours")
    for name in NAMES:
        found[name] = say(
            at(record, name).ms("both"), lambda t: f"{milliseconds(t)} ms"
        )
    plain = at(record, "plain").ms("both") / ours.ms("both")
    kernel = {k.role: k for k in kernels(record)}
    rest = kernel.get("rest", Kernel("rest", MISSING, MISSING, {}))
    adding = additions_per_s(record)
    both = [f"{k.label} {k.ms:.2f} ms" for k in kernel.values() if k.role in ROLES]
    over = [f"{say(k.over_floor, '{:.2f}')} ({k.label})" for k in large(record)]
    return found | {
        "rate": say(test_rate(ours) / TFLOPS, "{:.0f} TFLOP/s"),
        "share": say(test_rate(ours) / peak_flops(record, "bf16"), percent),
        "plain_over_ours": say(plain, "{:.0f}"),
        "additions_rate": say(adding / TFLOPS, "{:.1f} TB/s"),
        "times": ", ".join(both) or NOT_MEASURED,
        "over_floors": " and ".join(over) or NOT_MEASURED,
        "time_rest": say(rest.ms, "{:.2f} ms"),
        "share_rest": say(rest.share, percent),
        **predictions(record, kernel),
    }


def predictions(record: Record | None, kernel: dict[str, Kernel]) -> dict[str, str]:
    """What the primary GPU needs for the test's products, exponentials, bytes and
    additions, forward and backward in one kernel; and what was measured.
    """
    of_gpu, found = rates(primary_gpu(), added=additions_per_s(record)), {}
    ms = "{:.2f} ms"
    for role in ("forward", "one_pass"):
        limits = limits_ms(of_gpu, role, SHAPE)
        took = kernel[role].ms if role in kernel else MISSING
        alone = limits[FLOOR] + limits["exponentials"]
        found |= {f"{role}_{name}": say(time, ms) for name, time in limits.items()}
        found[f"{role}_took"] = say(took, ms)
        found[f"{role}_over_floor"] = say(took / limits[FLOOR], "{:.2f}")
        found[f"{role}_over_sum"] = say(took / alone, "{:.2f}")
    return found

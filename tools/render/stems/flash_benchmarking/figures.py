"""Figures of `flash_benchmarking`: rates and memory by length."""

from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from systems.records.record import Record
from tools.render.markdown import percent
from tools.render.plots import (
    ACCENT,
    DARK,
    GREY,
    INK,
    line,
    note,
    panels,
    plain_log_scale,
    plot,
    power_of_two_axis,
)
from tools.render.rows import Cell, say
from tools.render.stems.flash_benchmarking.rows import (
    DTYPES,
    LIMB_PRODUCTS,
    MIB,
    NAMES,
    D,
    at,
    lengths,
    memory_bytes,
    rate,
    share,
)
from tools.render.stems.flash_passes import TFLOPS, peak_flops


def curves(
    axes: Axes, record: Record, dtype: str, of: Callable[[Cell], float], **dashes: str
) -> None:
    """A line for each implementation, by length; ours last, over the others."""
    ns = lengths(record)
    for name, label in reversed(NAMES.items()):
        ys = [of(at(record, name, dtype, D, n)) for n in ns]
        color = ACCENT if name == "ours" else GREY
        line(axes, ns, ys, color=color, label=label, ls=dashes.get(name, "-"))
    power_of_two_axis(axes.xaxis, ns[1::4], "sequence length N")


def rates_figure(record: Record) -> str:
    """With the data sheet's peaks, and that of fp32 products made of bf16 ones."""
    if not lengths(record):
        return ""
    of_limbs = peak_flops(record, "bf16") / LIMB_PRODUCTS

    def limit(axes: Axes, rate: float, name: str) -> None:
        if rate:
            axes.axhline(rate / TFLOPS, color=DARK, ls="--", lw=1)
            note(
                axes,
                name,
                lengths(record)[0],
                rate / TFLOPS,
                offset=(0, 3),
                ha="left",
                color=INK,
                weight="normal",
            )

    def draw(figure: Figure) -> None:
        for axes, dtype in zip(panels(figure, 2), DTYPES, strict=True):
            curves(axes, record, dtype, lambda c: rate(c, "both") / TFLOPS)
            limit(axes, peak_flops(record, dtype), f"{dtype} peak")
            if dtype == "fp32":
                limit(axes, of_limbs, f"bf16 peak / {LIMB_PRODUCTS}")
            plain_log_scale(axes.yaxis, subs=(1,))
            axes.set_title(f"{dtype}, TFLOP/s")

    n = max(lengths(record), default=0)
    reached, plain = (
        say(share(record, at(record, name, "bf16", D, n), "both"), percent)
        for name in ("ours", "plain")
    )
    return plot(
        record,
        "rates",
        draw,
        f"At {n:,} tokens in bf16 ours runs at {reached} of the data sheet's peak, "
        f"plain PyTorch at {plain}.",
        f"Forward and backward of one head, head dimension {D}, by the GPU's time. "
        f"Ours forms each fp32 product from {LIMB_PRODUCTS} of bf16.",
        height=320,
        narrow=560,
    )


def memory_figure(record: Record) -> str:
    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        # Ours and SDPA can need the same to the byte: dashes over a line let both show.
        curves(axes, record, "bf16", lambda c: memory_bytes(c) / MIB, ours="--")
        plain_log_scale(axes.yaxis, subs=(1,))
        axes.set_title("memory above the inputs, MiB")

    n = max(lengths(record), default=0)
    ours, plain = (
        say(memory_bytes(at(record, of, "bf16", D, n)) / MIB, "{:,.0f} MiB")
        for of in ("ours", "plain")
    )
    return plot(
        record,
        "memory",
        draw,
        f"Ours needs {ours} for {n:,} tokens, plain PyTorch {plain}.",
        f"Peak of forward and backward, bf16, head dimension {D}. Both axes are "
        "logarithmic: a line twice as steep grows with the square of N.",
        height=280,
    )

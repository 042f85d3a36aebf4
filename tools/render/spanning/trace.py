"""Draw the NVTX ranges, launches and kernels of a layer, from an nsys trace."""

import lzma
import sqlite3
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from systems import ROOT
from systems.profiling import nsys
from systems.profiling.marks import LAYER, PARTS, SOFTMAX, STEP
from systems.profiling.trace import Kernel, Span
from systems.records.record import PHASES
from tools.render import plots
from tools.render.plots import ACCENT, DARK, GREY, TINT

# The third profiled training step of `small` at context 512 in fp32.
EXPORT = "assets/step-small-512.sqlite.xz"
MARKS = (STEP, *PHASES, LAYER, *PARTS)
# Index of the drawn layer: the second of the forward pass.
SHOWN_LAYER = 1
# How the trace names GPU work that is no kernel.
NO_KERNELS = ("memcpy", "memset")
LANES = ("CPU: ranges", "CPU: launches", "GPU: kernels")
LOOKS = {SOFTMAX: ACCENT, "rest of attention": TINT, "rest of the layer": GREY}


@dataclass(frozen=True)
class Layer:
    """A layer: its range, its kernels and the (start, end) of their launches, in ns."""

    span: Span
    calls: Sequence[tuple[int, int]]
    kernels: Sequence[Kernel]

    @property
    def launching_ms(self) -> float:
        return (self.span.end - self.span.start) / 1e6

    @property
    def busy_ms(self) -> float:
        return sum(kernel.ms for kernel in self.kernels)

    @property
    def tally(self) -> str:
        """The number of kernels and memory operations: "57 kernels and 1 memset"."""
        kinds = Counter(
            name if name in NO_KERNELS else "kernel"
            for name in (kernel.name.split()[0].lower() for kernel in self.kernels)
        )
        return " and ".join(
            f"{kinds[kind]} {kind}{'s' * (kinds[kind] > 1)}"
            for kind in ("kernel", *NO_KERNELS)
            if kinds[kind]
        )

    def at_ms(self, at: float) -> float:
        """Return the time since the layer's range began, in ms."""
        return (at - self.span.start) / 1e6


def load_step() -> tuple[list[Kernel], list[tuple[int, int]]]:
    """Return the kernels in EXPORT, and (start, end) of their launches, in ns."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.deserialize(lzma.decompress((ROOT / "docs" / EXPORT).read_bytes()))
        calls = database.execute(
            "SELECT start, end FROM CUPTI_ACTIVITY_KIND_RUNTIME ORDER BY start"
        ).fetchall()
        kernels = nsys.query_kernels(database, MARKS, EXPORT)
        return nsys.select_process(database, kernels, EXPORT), calls


def select_layer(kernels: list[Kernel], calls: list[tuple[int, int]]) -> Layer:
    layers = {s for k in kernels for s in k.marks if s.name == LAYER}
    span = sorted(layers, key=lambda layer: layer.start)[SHOWN_LAYER]
    inside = [call for call in calls if span.start <= call[0] <= span.end]
    return Layer(span, inside, [k for k in kernels if span in k.marks])


def fragments() -> dict[str, str]:
    kernels, calls = load_step()
    shown = select_layer(kernels, calls)
    return {
        "nsys-layer.md": plots.make_figure(
            "nsys-layer",
            lambda figure: draw_layer(figure, shown),
            f"The CPU takes {shown.launching_ms:.1f} ms to launch one layer's "
            f"{shown.tally}, which run in {shown.busy_ms:.1f} ms, so the GPU waits.",
            "Nsight Systems 2025.3 recorded the second layer of a forward pass of "
            "small at context 512, fp32, on an NVIDIA H200. The profiler itself "
            "slows launching. Lines join each launch of softmax with its kernel.",
            numbers=EXPORT,
            height=210,
            narrow=260,
        )
        + "\n"
    }


def draw_layer(figure: Figure, shown: Layer) -> None:
    axes = figure.subplots()
    for kernel, call in zip(shown.kernels, shown.calls, strict=True):
        part = layer_part(kernel)
        for lane, (start, end) in enumerate((call, (kernel.start, kernel.end)), 1):
            draw_span(axes, lane, shown.at_ms(start), shown.at_ms(end), LOOKS[part])
        if part == SOFTMAX:
            starts = (shown.at_ms(call[0]), shown.at_ms(kernel.start))
            axes.plot(starts, (1.3, 1.7), color=ACCENT, linewidth=1)
    draw_span(axes, 0, 0, shown.launching_ms, DARK)
    inner = {s for k in shown.kernels for s in k.marks if s.name in PARTS}
    for span in sorted(inner, key=lambda span: span.start):
        color = ACCENT if span.name == SOFTMAX else TINT
        draw_span(axes, 0, shown.at_ms(span.start), shown.at_ms(span.end), color)
    narrow = plots.is_narrow(figure)
    names = [lane.split(": ")[1] if narrow else lane for lane in LANES]
    axes.set_yticks(range(3), names)
    axes.set_ylim(2.5, -0.5)
    axes.grid(False)
    axes.set_xlabel("ms since the layer's range began")
    colors = {**LOOKS, "range of the layer": DARK}
    plots.draw_legend(figure, colors, ncols=2 if narrow else 4)


def layer_part(kernel: Kernel) -> str:
    if SOFTMAX in kernel.path:
        return SOFTMAX
    inside = any(part in kernel.path for part in PARTS)
    return "rest of attention" if inside else "rest of the layer"


def draw_span(axes: Axes, lane: int, begin: float, end: float, color: str) -> None:
    axes.broken_barh(
        [(begin, end - begin)], (lane - 0.3, 0.6), color=color, linewidth=0
    )

"""Figures of `kernel_profile`: shares by category, one layer's kernels in time,
attention's parts on a roofline.
"""

from matplotlib.patches import Patch

from systems.formulas.costs import peak_of
from systems.model.sizes import SIZES
from systems.profiling.kernel_names import CATEGORIES
from systems.records.record import Record, Row
from tools.render.figures import (
    FAINT,
    INK,
    MARKERS,
    SERIES,
    canvas,
    plain_log_scale,
    svg_pair,
)
from tools.render.markdown import figure, per_device, percent
from tools.render.stems.kernel_profile.rows import (
    CONTEXTS,
    PARTS,
    cell,
    matmul_share,
    part,
    part_costs,
    rates,
    share,
)

# Told apart by hatch as well as by colour.
LOOKS: dict[str, tuple[str, str]] = dict(
    zip(
        CATEGORIES,
        zip(
            (*SERIES, INK, SERIES[2], FAINT),
            ("", "//", "++", "xx", "\\\\", "", "--", ""),
            strict=True,
        ),
        strict=True,
    )
)
BARS_AT, LAYER_AT = 512, ("small", 512)
SHARES = f"Share of kernel time by category at context {BARS_AT}, fp32, for the phases of a full step."
LAYER = "The kernels of one layer's forward pass, small at context 512, fp32, by the part of the layer that launched them."
ROOFLINE = (
    "Attention's parts in fp32 forward passes, every size and context. Lines: what the data sheet allows. Intensity "
    "counts the bytes that the operations must move, which the cache can make fewer."
)


def fragments(measured: list[Record]) -> dict[str, str]:
    files = {
        "shares.md": per_device(measured, shares_body),
        "layer.md": per_device(measured, layer_body),
        "roofline.md": per_device(measured, roofline_body),
    }
    for record in measured:
        if bars_of(record):
            files |= shares_figure(record)
        if cell(record, *LAYER_AT, "forward"):
            files |= layer_figure(record)
        if points_of(record) and peak_of(record.device.slug):
            files |= roofline_figure(record)
    return files


def bars_of(record: Record) -> list[tuple[str, str, Row]]:
    """(size, phase, row) of each bar."""
    rows = [(size, cell(record, size, BARS_AT, "step")) for size in SIZES]
    phases = ("forward", "backward", "optimizer")
    return [
        (size, phase, row) for size, row in rows if row is not None for phase in phases
    ]


def shares_body(record: Record) -> str:
    if not bars_of(record):
        return ""
    shares = [
        s
        for size in SIZES
        if (s := matmul_share(record, size, BARS_AT, "full step")) is not None
    ]
    alt = f"Matrix products take from {percent(min(shares))} to {percent(max(shares))} of a full step's kernel time."
    return figure(f"kernel_profile-shares-{record.device.slug}", alt, SHARES)


def shares_figure(record: Record) -> dict[str, str]:
    with canvas(width=6.4, height=4.6) as fig:
        axes = fig.subplots()
        places, labels = [], []
        for i, (size, phase, row) in enumerate(bars_of(record)):
            # A gap after the three phases of a size.
            place, bottom = i + i // 3 * 0.6, 0.0
            places.append(place)
            labels.append(f"{size}\n{phase}" if phase == "backward" else phase)
            for category, (color, hatch) in LOOKS.items():
                height = 100 * (share(row, category, (phase,)) or 0.0)
                axes.bar(
                    place,
                    height,
                    0.9,
                    bottom,
                    color=color,
                    hatch=hatch,
                    edgecolor=INK,
                    linewidth=0.4,
                )
                bottom += height
        axes.set_xticks(
            places, [label.split("\n")[-1] for label in labels], rotation=90, fontsize=9
        )
        for j, size in enumerate(dict.fromkeys(size for size, *_ in bars_of(record))):
            axes.text(3 * j + j * 0.6 + 1, 102, size, ha="center", fontsize=9)
        axes.set_ylabel("share of kernel time, %")
        axes.set_ylim(0, 100)
        axes.grid(False, axis="x")
        used = [
            c
            for c in CATEGORIES
            if any(share(row, c, (phase,)) for _, phase, row in bars_of(record))
        ]
        legend(fig, used)
        return svg_pair(f"shares-{record.device.slug}", fig)


def legend(fig, categories: list[str]) -> None:
    handles = [
        Patch(
            facecolor=LOOKS[c][0],
            hatch=LOOKS[c][1],
            edgecolor=INK,
            linewidth=0.4,
            label=c,
        )
        for c in categories
    ]
    fig.legend(
        handles=handles,
        loc="outside lower center",
        ncols=4,
        handlelength=1.4,
        columnspacing=1.2,
    )


def layer_body(record: Record) -> str:
    row = cell(record, *LAYER_AT, "forward")
    if row is None:
        return ""
    timeline = row.metrics["timeline"]
    busy = sum(item["duration_ms"] for item in timeline)
    span = max(item["start_ms"] + item["duration_ms"] for item in timeline)
    alt = f"{len(timeline)} kernels fill {percent(busy / span)} of the {span:.2f} ms of one layer's forward pass."
    return figure(f"kernel_profile-layer-{record.device.slug}", alt, LAYER)


def layer_figure(record: Record) -> dict[str, str]:
    row = cell(record, *LAYER_AT, "forward")
    assert row is not None
    lanes = {f"forward/{name}": i for i, name in enumerate(PARTS, 1)}
    with canvas(width=6.4, height=3.6) as fig:
        axes = fig.subplots()
        for item in row.metrics["timeline"]:
            color, hatch = LOOKS[item["category"]]
            bar = (item["start_ms"], item["duration_ms"])
            axes.broken_barh(
                [bar],
                (lanes.get(item["phase"], 0) - 0.4, 0.8),
                facecolor=color,
                hatch=hatch,
                edgecolor=INK,
                linewidth=0.3,
            )
        axes.set_yticks(
            range(len(PARTS) + 1),
            ["rest of the layer", *(name.removeprefix("attention ") for name in PARTS)],
        )
        # Every lane whole, the first on top, whether a kernel ran in it or not.
        axes.set_ylim(len(PARTS) + 0.5, -0.5)
        axes.set_xlabel("ms since the layer's first kernel")
        legend(
            fig,
            [
                c
                for c in CATEGORIES
                if any(item["category"] == c for item in row.metrics["timeline"])
            ],
        )
        return svg_pair(f"layer-{record.device.slug}", fig)


def points_of(record: Record) -> list[tuple[str, float, float]]:
    """(part, FLOP per byte, FLOP/s) of each part in each fp32 forward pass."""
    rows = [
        row
        for size in SIZES
        for n in CONTEXTS
        if (row := cell(record, size, n, "forward")) is not None
    ]
    points = []
    for row in rows:
        for name in PARTS:
            if part(row, name) and (reached := rates(row, name)):
                flops, moved = part_costs(row)[name]
                points.append((name, flops / moved, reached[0]))
    return points


def roofline_body(record: Record) -> str:
    peak, points = peak_of(record.device.slug), points_of(record)
    if peak is None or not points:
        return ""
    best = max(
        rate / intensity
        for name, intensity, rate in points
        if name == "attention softmax"
    )
    moved = percent(best / peak.bandwidth)
    alt = f"Softmax moves at best {moved} of the data sheet's bytes per second; the products do more FLOPs per byte."
    return figure(f"kernel_profile-roofline-{record.device.slug}", alt, ROOFLINE)


def roofline_figure(record: Record) -> dict[str, str]:
    peak = peak_of(record.device.slug)
    assert peak is not None
    points = points_of(record)
    with canvas(height=4.4) as fig:
        axes = fig.subplots()
        lowest, highest = (
            0.8 * min(x for _, x, _ in points),
            1.5 * max(peak.fp32 / peak.bandwidth, *(x for _, x, _ in points)),
        )
        ridge = peak.fp32 / peak.bandwidth
        roof = [
            (x, min(peak.fp32, x * peak.bandwidth) / 1e12)
            for x in (lowest, ridge, highest)
        ]
        axes.plot(*zip(*roof, strict=True), color=INK, linewidth=1.2)
        for name, color, marker in zip(PARTS, SERIES, MARKERS, strict=False):
            if mine := [(x, y / 1e12) for label, x, y in points if label == name]:
                label = name.removeprefix("attention ")
                axes.plot(
                    *zip(*mine, strict=True),
                    marker,
                    color=color,
                    label=label,
                    linestyle="none",
                )
        axes.set_xscale("log")
        plain_log_scale(axes.yaxis)
        axes.set_xlabel("FLOP per byte moved")
        axes.set_ylabel("TFLOP/s")
        fig.legend(
            loc="outside upper center", ncols=4, handlelength=1.2, columnspacing=1.2
        )
        return svg_pair(f"roofline-{record.device.slug}", fig)

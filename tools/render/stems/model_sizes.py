"""Tables and figure of `model_sizes`: what each model is made of."""

from typing import Any

from systems.formulas.costs import FP32_BYTES
from systems.records.record import Record
from tools.render import figures
from tools.render.markdown import columns, figure, gib, per_device
from tools.render.rows import axis, cell, say

PARTS = ("embedding", "attention", "feed_forward", "norms", "head")
SHAPE = {"d_model": "d_model", "d_ff": "d_ff", "num_layers": "layers"}
SHAPE["num_heads"] = "heads"


def parameters(record: Record | None, size: str, *parts: str) -> int:
    c = cell(record, size=size)
    return sum(c[f"{part}_parameters"] for part in parts or PARTS)


def share(record: Record | None, size: str, part: str) -> float:
    """In percent."""
    return 100 * parameters(record, size, part) / parameters(record, size)


def weights(record: Record | None, size: str) -> float:
    return FP32_BYTES * parameters(record, size)


def fragments(records: list[Record]) -> dict[str, str]:
    """`table.md`, `parts.md`, and the figure of the parts."""
    ours = records[:1]
    return {
        "table.md": per_device(ours, sizes_table, tabbed=False),
        "parts.md": per_device(ours, parts_body, tabbed=False),
        **figures.of_each(ours, parts_figure),
    }


def sizes_table(record: Record) -> str:
    def tera(context: int):
        return lambda s: cell(record, size=s, context=context)["forward_flops"] / 1e12

    return columns(
        axis(record, "size"),
        ("size", str),
        *((head, lambda s, k=k: cell(record, size=s)[k]) for k, head in SHAPE.items()),
        ("parameters", lambda s: parameters(record, s), "{:,}"),
        ("fp32 weights, GiB", lambda s: weights(record, s), gib),
        *(
            (f"forward TFLOP at {context}", tera(context), "{:.2f}")
            for context in axis(record, "context")
        ),
    )


def parts_body(record: Record) -> str:
    held = say(share(record, "2.7B", "feed_forward"), "{:.0f}")
    drawn = figure(
        "model_sizes-parts",
        "Share of parameters by part: the feed-forward matrices hold "
        f"{held} percent of the 2.7B model.",
        "Share of the parameters by part. Norms are too few to see.",
    )
    shown = columns(
        axis(record, "size"),
        ("size", str),
        *(
            (p.replace("_", "-"), lambda s, p=p: parameters(record, s, p), "{:,}")
            for p in PARTS
        ),
        ("all", lambda s: parameters(record, s), "{:,}"),
    )
    return f"{drawn}\n\n{shown}"


def parts_figure(record: Record) -> dict[str, str]:
    sizes = [size for size in axis(record, "size") if parameters(record, size)]
    hatches = ("", "//", "", "", "\\\\")
    with figures.canvas(height=2.9) as fig:
        axes = fig.subplots()
        left = [0.0] * len(sizes)
        for part, color, hatch in zip(PARTS, figures.SERIES, hatches, strict=True):
            shares = [share(record, size, part) for size in sizes]
            style: dict[str, Any] = {"hatch": hatch, "edgecolor": "#ffffff"}
            look = {"color": color, "linewidth": 0, "label": part.replace("_", "-")}
            axes.barh(sizes, shares, left=left, **style, **look)
            left = [a + b for a, b in zip(left, shares, strict=True)]
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("share of parameters, %")
        figures.legend_above(fig, ncols=3)
        return figures.svg_pair("parts", fig)


def facts(record: Record | None) -> dict[str, str]:
    """How large the largest model is, and how much of it the feed-forward matrices
    hold.
    """
    return {
        "parameters_2_7B": say(parameters(record, "2.7B"), "{:,}"),
        "feed_forward_share_2_7B": say(
            share(record, "2.7B", "feed_forward"), "{:.0f} %"
        ),
        "weights_2_7B": say(weights(record, "2.7B"), lambda v: f"{gib(v)} GiB"),
    }

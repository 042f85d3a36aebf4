"""Tables and figure of `model_sizes`: what each model is made of."""

from typing import Any

from matplotlib.figure import Figure

from systems.formulas.costs import FP32_BYTES
from systems.model.sizes import SIZES, VOCAB_SIZE, ModelSize
from systems.records.record import Record
from tools.render.markdown import columns, gib, per_device
from tools.render.plots import ACCENT, DARK, GROUND, PALE, TINT, key, plot, stacked
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


CAPTIONS = {
    "table.md": (
        "The models: parameters, memory of their weights, and FLOPs of a forward pass."
    ),
}


def fragments(records: list[Record]) -> dict[str, str]:
    ours = records[:1]
    return {
        "table.md": per_device(ours, sizes_table, tabbed=False),
        "parts.md": per_device(ours, parts_body, tabbed=False),
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
    shown = columns(
        axis(record, "size"),
        ("size", str),
        *(
            (p.replace("_", "-"), lambda s, p=p: parameters(record, s, p), "{:,}")
            for p in PARTS
        ),
        ("all", lambda s: parameters(record, s), "{:,}"),
    )
    return f"{parts_figure(record)}\n\n{shown}"


COLORS = {"embedding": PALE, "attention": TINT, "feed_forward": ACCENT, "head": DARK}


def parts_figure(record: Record) -> str:
    sizes = [size for size in axis(record, "size") if parameters(record, size)]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        shares = {part: [share(record, s, part) for s in sizes] for part in COLORS}
        stacked(axes, sizes, shares, COLORS)
        for y, size in enumerate(sizes):
            x = share(record, size, "embedding") + share(record, size, "attention")
            held = share(record, size, "feed_forward")
            look: dict[str, Any] = {"color": GROUND, "weight": "bold"}
            look |= {"va": "center", "ha": "center"}
            axes.text(x + held / 2, y, f"{held:.0f} %", **look)
        axes.set_xlim(0, 100)
        axes.set_xlabel("share of parameters, %")
        key(figure, {p.replace("_", "-"): color for p, color in COLORS.items()})

    held = say(share(record, "2.7B", "feed_forward"), "{:.0f} %")
    return plot(
        record,
        "parts",
        draw,
        f"The feed-forward matrices hold {held} of the parameters of 2.7B.",
        "Norms are too few to see.",
        height=220,
    )


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
        "lasting_10B": say(4 * weights(record, "10B") / 2**30, "{:.0f} GiB"),
        "named_2_7B": f"{with_two_matrices(SIZES['2.7B']) / 1e9:.2f}",
    }


def with_two_matrices(s: ModelSize) -> int:
    """The parameters that a size would have if its feed-forward halves had no gate: in
    billions what its name says.
    """
    block = 4 * s.d_model**2 + 2 * s.d_model * s.d_ff
    return s.num_layers * block + 2 * VOCAB_SIZE * s.d_model

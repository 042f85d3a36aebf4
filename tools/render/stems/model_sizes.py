"""Tables and figure of `model_sizes`: what each model is made of."""

from systems.formulas.costs import FP32_BYTES
from systems.model.sizes import SIZES
from systems.records.record import Record
from tools.render.figures import SERIES, canvas, svg_pair
from tools.render.markdown import NOT_MEASURED, banner, figure, gib, provenance, table

PARTS = ("embedding", "attention", "feed_forward", "norms", "head")
CONTEXTS = (128, 256, 512, 1024)


def parameters(record: Record, size: str, *parts: str) -> int:
    row = record.find(size=size)
    assert row is not None
    return sum(row.metrics[f"{part}_parameters"] for part in parts or PARTS)


def fragments(records: list[Record]) -> dict[str, str]:
    """`table.md`, `parts.md`, and the figure of the parts."""
    if not records:
        return {
            name: "Not counted yet: run `python tools/regen_tables.py`.\n"
            for name in ("table.md", "parts.md")
        }
    record = records[0]
    return {
        "table.md": sizes_table(record),
        "parts.md": parts_table(record),
        **parts_figure(record),
    }


def sizes_table(record: Record) -> str:
    rows = []
    for size in SIZES:
        of_size = {
            row.config["context"]: row.metrics
            for row in record.rows
            if row.config["size"] == size
        }
        first, total = of_size[CONTEXTS[0]], parameters(record, size)
        shape = [
            str(first[key]) for key in ("d_model", "d_ff", "num_layers", "num_heads")
        ]
        flops = [
            f"{of_size[context]['forward_flops'] / 1e12:.2f}" for context in CONTEXTS
        ]
        rows.append([size, *shape, f"{total:,}", gib(FP32_BYTES * total), *flops])
    header = [
        "size",
        "d_model",
        "d_ff",
        "layers",
        "heads",
        "parameters",
        "fp32 weights, GiB",
    ]
    header += [f"forward TFLOP at {context}" for context in CONTEXTS]
    return (
        "\n\n".join([*banner(record), table(header, rows), provenance(record)]) + "\n"
    )


def parts_table(record: Record) -> str:
    rows = [
        [
            size,
            *(f"{parameters(record, size, p):,}" for p in PARTS),
            f"{parameters(record, size):,}",
        ]
        for size in SIZES
    ]
    header = ["size", *(part.replace("_", "-") for part in PARTS), "all"]
    name = "model_sizes-parts"
    share = (
        100 * parameters(record, "2.7B", "feed_forward") / parameters(record, "2.7B")
    )
    alt = f"Share of parameters by part: the feed-forward matrices hold {share:.0f} percent of the 2.7B model."
    drawn = figure(
        name, alt, "Share of the parameters by part. Norms are too few to see."
    )
    return (
        "\n\n".join([*banner(record), drawn, table(header, rows), provenance(record)])
        + "\n"
    )


def parts_figure(record: Record) -> dict[str, str]:
    with canvas(height=2.9) as fig:
        axes = fig.subplots()
        left = [0.0] * len(SIZES)
        hatches = ("", "//", "", "", "\\\\")
        for part, color, hatch in zip(PARTS, SERIES, hatches, strict=True):
            shares = [
                100 * parameters(record, size, part) / parameters(record, size)
                for size in SIZES
            ]
            style = {
                "color": color,
                "hatch": hatch,
                "edgecolor": "#ffffff",
                "linewidth": 0,
            }
            axes.barh(
                list(SIZES), shares, left=left, label=part.replace("_", "-"), **style
            )
            left = [a + b for a, b in zip(left, shares, strict=True)]
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("share of parameters, %")
        fig.legend(loc="outside upper center", ncols=3)
        return svg_pair("parts", fig)


def facts(record: Record | None) -> dict[str, str]:
    """Total parameters by size, and how much of the largest model the feed-forward
    matrices hold.
    """
    names = {f"parameters_{size.replace('.', '_')}": size for size in SIZES}
    if record is None:
        return dict.fromkeys(
            [*names, "feed_forward_share_2_7B", "weights_2_7B"], NOT_MEASURED
        )
    total = parameters(record, "2.7B")
    return {
        **{name: f"{parameters(record, size):,}" for name, size in names.items()},
        "feed_forward_share_2_7B": f"{100 * parameters(record, '2.7B', 'feed_forward') / total:.0f} %",
        "weights_2_7B": f"{gib(FP32_BYTES * total)} GiB",
    }

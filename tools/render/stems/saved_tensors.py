"""Tables, figure, facts and claim of `saved_tensors`: bytes that each operation of a
block saves for backward, counted and predicted, and the example in CS336's handout.
"""

from collections import Counter
from typing import Any

from matplotlib.figure import Figure

from systems.formulas.memory_costs import (
    Bytes,
    Pass,
    attention_bytes,
    feed_forward_bytes,
)
from systems.records.record import Record
from tools.render import plots
from tools.render.claims import Judgement, claim
from tools.render.fragments import Drawn, Fragments
from tools.render.frame import Frame, Line, frame
from tools.render.markdown import device_tabs, format_mib, percent
from tools.render.plots import ACCENT, INK
from tools.render.rows import dropna, fmt, measured_records

MIB = 2**20
CONTEXTS = (128, 512, 2048)
# For each operation: the code that saves its tensors, and their names in the formulas.
OPERATIONS = {
    "softmax": (
        "softmax",
        ("exponentials", "row sums", "positions of the maxima, int64"),
    ),
    "attention's matmuls and mask": (
        "scaled_dot_product_attention",
        ("probabilities", "v", "q and k, rotated", "mask"),
    ),
    "rotation": ("RotaryEmbedding", ("cosines and sines for q and k",)),
    "projections": (
        "Linear",
        (
            "input of q, k, v",
            "input of the output projection",
            "input of w1, w3",
            "gated value, the input of w2",
        ),
    ),
    "SiLU": ("silu", ("gate w1 x", "sigmoid")),
    "SwiGLU's product": ("SwiGLU", ("silu", "value w3 x")),
    "both norms": (
        "RMSNorm",
        ("norm before its weight, fp32", "inverse rms, fp32", "residual stream, fp32"),
    ),
}
NAMES = {
    "norm": "RMSNorm",
    "block": "a block",
    "four_blocks": "four blocks",
    "four_blocks_by_twos": "four blocks, recomputed two by two",
}
fragments = Fragments()


def rows(record: Record | None) -> Frame:
    """Return all rows with the bytes that autograd saves for the backward pass: a dict
    by operation (`counted`), and their sum (`total`).
    """
    found = frame(record).derive(counted=bytes_by_operation)
    return found.derive(total=lambda x: sum(x["counted"].values()) if x else x.missing)


def blocks(record: Record | None) -> Frame:
    """Return an eager 2.7B block's row by context, with `predicted` saved bytes."""
    found = rows(record).arrange(context=CONTEXTS)
    return found.where(part="block", heads=32, compiled=False).derive(
        predicted=lambda x: predict_bytes(x["context"])
    )


def bytes_by_operation(x: Line) -> Bytes:
    """Return {operation: saved bytes}, the largest first."""
    found = Counter[str]()
    for tensor in x.get("tensors") or [] if x else []:
        by = tensor["by"][0].split(":")[0]
        name = next((n for n, (line, _) in OPERATIONS.items() if line == by), by)
        found[name] += tensor["bytes"]
    return dict(found.most_common())


def predict_bytes(context: int) -> Bytes:
    p = Pass("2.7B", context, "step", "fp32")
    halves = [*attention_bytes(p).items(), *feed_forward_bytes(p).items()]
    return {
        name: sum(size for tensor, size in halves if tensor in tensors)
        for name, (_, tensors) in OPERATIONS.items()
    }


def largest_operations(record: Record | None) -> Frame:
    """Return rows: the five operations that save most at each context, in MiB."""
    return Frame(
        Line(
            context=x["context"],
            operation=name,
            counted=size / MIB,
            predicted=x["predicted"].get(name, 0) / MIB,
            share=size / x["total"],
        )
        for x in blocks(record)
        for name, size in list(x["counted"].items())[:5]
    )


@fragments.add(
    "shares.md", "The five largest shares of what a block of `2.7B` saves, in fp32."
)
def shares_table(record: Record) -> str:
    return largest_operations(record).table(
        "context",
        "operation",
        ("counted, MiB", "counted", "{:,.1f}"),
        ("predicted, MiB", "predicted", "{:,.1f}"),
        ("share", "share", percent),
        shown_first=lambda x: x["context"] == CONTEXTS[0],
    )


@fragments.add_file(
    "example.md",
    "CS336's handout example: 16 heads, context 512 (norm) or 2048 (blocks).",
)
def example_file(records: list[Record]) -> str:
    reported = next((r for r in records if r.kind == "reported"), None)
    return device_tabs(measured_records(records), lambda r: example_table(r, reported))


def example_table(record: Record, reported: Record | None) -> str:
    """Return a table of saved tensors and bytes, counted here and in the handout."""
    found = rows(record).where(heads=16)
    found.join("handout", frame(reported), ("part", "compiled"))

    def format_reported(metric: str, text: str) -> Any:
        return lambda x: "".join(map(text.format, dropna([x["handout"].get(metric)])))

    return found.table(
        ("part", lambda x: NAMES[x["part"]]),
        ("run", lambda x: "compiled" if x["compiled"] else "as written"),
        ("tensors saved", "saved"),
        ("tensors saved, handout", format_reported("saved", "{}")),
        ("MiB, each storage once", lambda x: x["total"] / MIB, "{:,.2f}"),
        ("MiB, each save", lambda x: x["bytes_if_counted_each_time"] / MIB, "{:,.2f}"),
        ("MiB, handout", format_reported("mib", "{:,.7g}")),
        left=2,
    )


@fragments.figure("figure.md", "operations", height=230, narrow=460)
def operations_figure(record: Record) -> Drawn:
    if not (found := blocks(record).where(bool, context=CONTEXTS[1:])):
        return None

    def draw(figure: Figure) -> None:
        for axes, x in zip(plots.panels(figure, len(found)), found, strict=True):
            names = list(x["counted"])
            sizes = [x["counted"][name] / MIB for name in names]
            axes.barh(range(len(names)), sizes, 0.62, color=ACCENT, linewidth=0)
            expected = [x["predicted"].get(name, 0) / MIB for name in names]
            style: dict[str, Any] = {"color": INK, "linestyle": "", "marker": "|"}
            style |= {"markersize": 19, "markeredgewidth": 2}
            axes.plot(expected, range(len(names)), **style)
            plots.label_bars(axes, names)
            axes.set_title(f"context {x['context']:,}, MiB")

    def attention_share(x: Line) -> str:
        held = sum(x["counted"].get(name, 0) for name in list(OPERATIONS)[:2])
        return f"{percent(held / x['total'])} at context {x['context']:,}"

    return (
        draw,
        "Of a block's saved bytes, softmax and attention's matmuls and mask hold "
        f"{' and '.join(map(attention_share, found))}.",
        "Bars show fp32 bytes that hooks count; each storage counts once, for the "
        "operation that saves it first. Upright marks are predictions.",
    )


def facts(record: Record | None) -> dict[str, str]:
    block = blocks(record).one(context=CONTEXTS[-1])
    example = rows(record).where(heads=16)
    norm, compiled = (example.one(part="norm", compiled=c) for c in (False, True))
    five = (
        f"{x['operation']} {percent(x['share'])}"
        for x in largest_operations(record).where(context=CONTEXTS[-1])
    )
    return {
        **{
            f"block_{c}": format_mib(blocks(record).one(context=c)["total"])
            for c in CONTEXTS
        },
        "five": "; ".join(five) or fmt(block.missing),
        "parameter_gradients": format_mib(block["parameter_gradient_bytes"]),
        "input_gradient": format_mib(block["input_gradient_bytes"]),
        "norm_saved": fmt(norm["saved"]),
        "norm_compiled_saved": fmt(compiled["saved"]),
    }


@claim(
    "memory_profiling",
    "Shapes predict to the byte what each operation of a block saves, at every "
    "context.",
)
def saved_bytes_as_predicted(record: Record) -> Judgement:
    found = blocks(record).where(bool)
    numbers = "; ".join(
        f"context {x['context']}: {x['total']:,} bytes counted, "
        f"{sum(x['predicted'].values()):,} predicted"
        for x in found
    )
    right = all(x["counted"] == x["predicted"] for x in found)
    return (right, f"{numbers}.") if found else None

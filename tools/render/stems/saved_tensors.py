"""Tables, figure and facts of `saved_tensors`: what a block saves for its backward
pass, by operation, counted beside predicted; and the example of CS336's handout.
"""

from collections import defaultdict
from typing import Any

from matplotlib.figure import Figure

from systems.formulas.memory_costs import (
    Bytes,
    Pass,
    attention_saved,
    block_matrix_entries,
    feed_forward_saved,
    residual_bytes,
)
from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.markdown import columns, in_mib, per_device, percent, table
from tools.render.plots import ACCENT, INK, bars, panels, plot
from tools.render.rows import Cell, cell, cells, measured, say

MIB = 2**20
SIZE = "2.7B"
CONTEXTS = (128, 512, 2048)
# Where the counted memory was saved first: how a line of the model begins; and the
# tensors of the formula that stand there.
OPERATIONS = {
    "softmax": (
        "softmax",
        ("exponentials", "row sums", "positions of the maxima, int64"),
    ),
    "attention's products and mask": (
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

CAPTIONS = {
    "shares.md": "The five largest shares of what a block of `2.7B` saves, in fp32.",
    "tensors.md": "Every memory that a block of `2.7B` saves at context 512, in fp32.",
    "example.md": (
        "The example of CS336's handout, context 2048 but for the norm's 512, 16 heads."
    ),
}


def fragments(records: list[Record]) -> dict[str, str]:
    """The shares by operation and as a figure, every tensor, and the example."""
    ours = measured(records)[:1]
    reported = next((r for r in records if r.kind == "reported"), None)

    def shown(body: Any) -> str:
        return per_device(ours, body, tabbed=False)

    return {
        "figure.md": shown(figure_of),
        "shares.md": shown(shares_table),
        "tensors.md": shown(tensors_table),
        "example.md": shown(lambda r: example_table(r, reported)),
    }


def block(record: Record | None, context: int) -> Cell:
    return cell(record, part="block", context=context, heads=32, compiled=False)


def counted(c: Cell) -> Bytes:
    """Bytes by operation."""
    found: Bytes = defaultdict(int)
    for tensor in c.get("tensors", []):
        by = tensor["by"][0].split(":")[0]
        name = next((n for n, (line, _) in OPERATIONS.items() if line == by), by)
        found[name] += tensor["bytes"]
    return dict(sorted(found.items(), key=lambda one: -one[1]))


def predicted(context: int) -> Bytes:
    """The same by formula."""
    p = Pass(SIZE, context, "step", "fp32")
    halves = [*attention_saved(p).items(), *feed_forward_saved(p).items()]
    return {
        name: sum(size for tensor, size in halves if tensor in tensors)
        for name, (_, tensors) in OPERATIONS.items()
    }


def total(c: Cell) -> Any:
    return sum(counted(c).values()) if c else c.missing


def shares_table(record: Record) -> str:
    """The five largest operations at each context."""
    lines = []
    for context in CONTEXTS:
        c = block(record, context)
        by_formula = predicted(context)
        for name, size in list(counted(c).items())[:5]:
            share = percent(size / total(c))
            told = f"{by_formula.get(name, 0) / MIB:,.1f}"
            lines.append([str(context), name, f"{size / MIB:,.1f}", told, share])
    head = ["context", "operation", "counted, MiB", "predicted, MiB", "share"]
    return table(head, lines, left=2, telling=[at == "128" for at, *_ in lines])


def tensors_table(record: Record) -> str:
    return columns(
        block(record, 512).get("tensors", []),
        ("MiB", lambda tensor: tensor["bytes"] / MIB, "{:.3f}"),
        ("shape", lambda tensor: " × ".join(map(str, tensor["shape"]))),
        ("dtype", lambda tensor: tensor["dtype"].removeprefix("torch.")),
        ("saved by", lambda tensor: " and ".join(f"`{by}`" for by in tensor["by"])),
        left=1,
    )


NAMES = {
    "norm": "RMSNorm",
    "block": "a block",
    "four_blocks": "four blocks",
    "four_blocks_by_twos": "four blocks, two by two computed again",
}


def example_table(record: Record, reported: Record | None) -> str:
    """What the handout prints, beside what is counted here."""

    def told(c: Cell, metric: str, text: str) -> Any:
        keys = ("part", "compiled")
        theirs = cell(reported, **{key: c.config[key] for key in keys})
        value = theirs.metrics.get(metric)
        return "" if value is None else text.format(value)

    return columns(
        cells(record, heads=16),
        ("what", lambda c: NAMES[c.config["part"]]),
        ("run", lambda c: "compiled" if c.config["compiled"] else "as written"),
        ("tensors saved", lambda c: c["saved"]),
        ("handout, tensors", lambda c: told(c, "saved", "{}")),
        ("MiB, each memory once", lambda c: total(c) / MIB, "{:,.2f}"),
        ("MiB, each time", lambda c: c["bytes_if_counted_each_time"] / MIB, "{:,.2f}"),
        ("handout, MiB", lambda c: told(c, "mib", "{:,.7g}")),
        left=2,
    )


def figure_of(record: Record) -> str:
    contexts = [context for context in CONTEXTS[1:] if block(record, context)]
    if not contexts:
        return ""

    def draw(figure: Figure) -> None:
        for axes, context in zip(panels(figure, len(contexts)), contexts, strict=True):
            found, by_formula = counted(block(record, context)), predicted(context)
            names = list(found)
            sizes = [found[name] / MIB for name in names]
            axes.barh(range(len(names)), sizes, 0.62, color=ACCENT, linewidth=0)
            expected = [by_formula.get(name, 0) / MIB for name in names]
            style: dict[str, Any] = {"color": INK, "linestyle": "", "marker": "|"}
            style |= {"markersize": 19, "markeredgewidth": 2}
            axes.plot(expected, range(len(names)), **style)
            bars(axes, names)
            axes.set_title(f"context {context:,}, MiB")

    attention = {
        context: sum(
            size
            for name, size in counted(block(record, context)).items()
            if name in list(OPERATIONS)[:2]
        )
        / total(block(record, context))
        for context in contexts
    }
    shares = " and ".join(
        f"{percent(share)} at context {context:,}"
        for context, share in attention.items()
    )
    return plot(
        record,
        "operations",
        draw,
        f"Softmax and attention's products save {shares} of what a block saves.",
        "Bars: counted by hooks, each memory once, at the operation that saved it "
        "first. Upright marks: predicted from shapes. fp32, as written.",
        height=230,
        narrow=460,
    )


# Facts --------------------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    """Bytes of a block, shares and gradients, and the handout's example."""
    found: dict[str, str] = {}
    for context in CONTEXTS:
        found[f"block_{context}"] = in_mib(total(block(record, context)))
    c = block(record, 512)
    five = list(counted(c).items())[:5]
    listed = "; ".join(f"{n} {percent(size / total(c))}" for n, size in five)
    p = Pass(SIZE, 512, "step", "fp32")
    example = {
        f"{part}{'_compiled' * compiled}": cell(
            record, part=part, heads=16, compiled=compiled
        )
        for part in NAMES
        for compiled in (False, True)
    }
    gradients = block_matrix_entries(p) + 2 * p.shape.d_model
    return {
        **found,
        "five": listed or say(c.missing),
        "each_time": in_mib(c["bytes_if_counted_each_time"]),
        "gradients_as_predicted": say(
            c["parameter_gradient_bytes"] == 4 * gradients
            and c["input_gradient_bytes"] == residual_bytes(p)
        ),
        "parameter_gradients": in_mib(c["parameter_gradient_bytes"]),
        "parameter_gradients_predicted": in_mib(4 * gradients),
        "input_gradient": in_mib(c["input_gradient_bytes"]),
        "input_gradient_predicted": in_mib(residual_bytes(p)),
        "norm_saved": say(example["norm"]["saved"]),
        "norm_compiled_saved": say(example["norm_compiled"]["saved"]),
        "example_block": in_mib(total(example["block"])),
        "example_compiled": in_mib(total(example["block_compiled"])),
        "example_four": in_mib(total(example["four_blocks_compiled"])),
        "example_twos": in_mib(total(example["four_blocks_by_twos_compiled"])),
    }


# Claims -------------------------------------------------------------------------------


@claim(
    "memory_profiling",
    "What a block saves is predicted from shapes to the byte, operation by operation, "
    "at every context.",
)
def saved_as_predicted(record: Record) -> Judgement:
    found = [(c, counted(block(record, c))) for c in CONTEXTS if block(record, c)]
    numbers = "; ".join(
        f"context {c}: {sum(of.values()):,} bytes counted, "
        f"{sum(predicted(c).values()):,} predicted"
        for c, of in found
    )
    if not found:
        return None
    return all(of == predicted(c) for c, of in found), f"{numbers}."

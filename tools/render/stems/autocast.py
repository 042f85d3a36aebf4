"""Tables and facts of `autocast`: dtypes by part of a model, and the lists of
operations against what was found.
"""

from systems.records.record import Record, Row
from tools.render.markdown import NOT_MEASURED, per_device, table

TOY = {
    "parameters": "parameters, inside autocast",
    "fc1": "output of fc1",
    "relu": "output of ReLU",
    "ln": "output of the layer norm",
    "logits": "logits",
    "loss": "loss",
    "gradients": "gradients of the parameters",
    "logits_gradient": "gradient of the logits",
    "fc1_output_gradient": "gradient of the output of fc1",
    "optimizer_state": "optimizer state",
    "optimizer_update": "optimizer update",
}
TRANSFORMER = {
    "parameters": "parameters, inside autocast",
    "embedding": "token embedding",
    "rmsnorm_square": "RMSNorm: x²",
    "rmsnorm_rsqrt": "RMSNorm: 1 / rms",
    "rmsnorm": "RMSNorm: output",
    "q_projection": "projection of q",
    "rotary": "q after rotary embedding",
    "scores": "attention: Q Kᵀ",
    "softmax_max": "softmax: max",
    "softmax_subtract": "softmax: subtract",
    "softmax_exp": "softmax: exp",
    "softmax_sum": "softmax: sum",
    "softmax_divide": "softmax: divide",
    "weighted_values": "attention: P V",
    "attention": "attention: output",
    "residual": "residual stream",
    "swiglu_gate": "SwiGLU: gate",
    "swiglu_sigmoid": "SwiGLU: sigmoid",
    "swiglu_product": "SwiGLU: gate × value",
    "swiglu": "SwiGLU: output",
    "logits": "logits",
    "loss": "cross-entropy",
    "gradients": "gradients of the parameters",
    "logits_gradient": "gradient of the logits",
    "optimizer_state": "optimizer state",
    "optimizer_update": "optimizer update",
}
# The parts that the page's sentences name, by (part, dtype of autocast).
ASKED = ("parameters", "fc1", "ln", "logits", "loss", "gradients")
NAMED = {
    ("toy", "fp16"): (*ASKED, "logits_gradient", "optimizer_update"),
    ("toy", "bf16"): ASKED,
    ("transformer", "bf16"): ("rotary", "residual"),
}
LOWER, WIDE, PROMOTE, NOT_LISTED = "lower precision", "fp32", "promote", "not listed"
# What PyTorch's documentation lists for CUDA: operations that autocast to float16, that
# autocast to float32, and that promote to the widest input type. Of einsum and
# scaled_dot_product_attention only PyTorch's source says it.
DOCUMENTED = {
    **dict.fromkeys(
        ("matmul", "bmm", "addmm", "einsum", "linear", "scaled_dot_product_attention"),
        LOWER,
    ),
    **dict.fromkeys(
        (
            "exp",
            "log",
            "pow",
            "rsqrt",
            "reciprocal",
            "softmax",
            "log_softmax",
            "sum",
            "cumsum",
        ),
        WIDE,
    ),
    **dict.fromkeys(
        ("norm", "softplus", "layer_norm", "cross_entropy", "mse_loss"), WIDE
    ),
    **dict.fromkeys(("addcmul", "atan2", "dot", "cross", "scatter_add"), PROMOTE),
}


def fragments(records: list[Record]) -> dict[str, str]:
    """Dtypes of the toy model and of the Transformer, and of single operations, for all
    devices.
    """
    return {
        "toy.md": per_device(records, lambda r: parts_table(r, "toy", TOY)),
        "transformer.md": per_device(
            records, lambda r: parts_table(r, "transformer", TRANSFORMER)
        ),
        "operations.md": per_device(records, operations_table),
        "counts.md": per_device(records, counts_table),
    }


def row_of(record: Record | None, part: str, dtype: str) -> Row | None:
    return record.find(part=part, dtype=dtype) if record else None


def parts_table(record: Record, part: str, names: dict[str, str]) -> str:
    """A line for each part that the record has, a column for each dtype of autocast."""
    found = {
        dtype: row
        for dtype in ("fp16", "bf16")
        if (row := row_of(record, part, dtype)) is not None
    }
    lines = [
        [text, *(row.metrics.get(name, "") for row in found.values())]
        for name, text in names.items()
        if any(name in row.metrics for row in found.values())
    ]
    return (
        table(["part", *(f"under {dtype} autocast" for dtype in found)], lines)
        if lines
        else ""
    )


def behaviour(cells: list[str], low: str) -> str:
    """What an operation does, by its results for low, fp32 and mixed inputs, and for
    mixed ones without autocast.
    """
    narrow, wide, mixed, without = cells
    if wide == low:
        return LOWER
    if narrow == "fp32":
        return WIDE
    if mixed == "fp32":
        return PROMOTE if without == "raises" else "widest input"
    return "mixed inputs raise" if mixed == "raises" else "dtype of its input"


def as_documented(name: str, cells: list[str], low: str) -> bool:
    """Whether an operation does what the list that it is on says; off the lists
    autocast changes nothing.
    """
    found, listed = behaviour(cells, low), DOCUMENTED.get(name, NOT_LISTED)
    if listed == NOT_LISTED:
        return cells == [low, "fp32", cells[3], cells[3]]
    # PyTorch's ordinary rules promote elementwise operations too, so autocast has
    # nothing to add.
    return found == listed or (listed == PROMOTE and found == "widest input")


def operations_table(record: Record) -> str:
    rows = []
    row = row_of(record, "operations", "bf16")
    for name, cells in row.metrics.items() if row else ():
        agrees = "yes" if as_documented(name, cells, "bf16") else "no"
        rows.append(
            [
                f"`{name}`",
                DOCUMENTED.get(name, NOT_LISTED),
                behaviour(cells, "bf16"),
                *cells,
                agrees,
            ]
        )
    header = [
        "operation",
        "PyTorch's list",
        "found",
        "bf16 in",
        "fp32 in",
        "mixed in",
        "mixed, no autocast",
        "agrees",
    ]
    return table(header, rows, left=3) if rows else ""


def counts_table(record: Record) -> str:
    rows = []
    for dtype in ("fp32", "fp16", "bf16"):
        row = row_of(record, "transformer", dtype)
        if row is not None and "forward_operations" in row.metrics:
            operations, casts = (
                row.metrics["forward_operations"],
                row.metrics["forward_casts"],
            )
            name = "none (fp32)" if dtype == "fp32" else dtype
            rows.append([name, str(operations), str(casts), str(operations - casts)])
    return (
        table(
            ["autocast", "operations in a forward pass", "of them casts", "others"],
            rows,
        )
        if rows
        else ""
    )


def facts(record: Record | None) -> dict[str, str]:
    """The cells that the page names, the counts, and how many operations are as
    documented.
    """
    found: dict[str, str] = {}
    for (part, dtype), names in NAMED.items():
        row = row_of(record, part, dtype)
        found |= {
            f"{part}_{name}_{dtype}": row.metrics[name] if row else NOT_MEASURED
            for name in names
        }
    plain, cast = (
        row_of(record, "transformer", "fp32"),
        row_of(record, "transformer", "bf16"),
    )
    operations = row_of(record, "operations", "bf16")
    agreeing = (
        [
            as_documented(name, cells, "bf16")
            for name, cells in operations.metrics.items()
        ]
        if operations
        else []
    )
    return found | {
        "operations_fp32": str(plain.metrics["forward_operations"])
        if plain
        else NOT_MEASURED,
        "operations_bf16": str(cast.metrics["forward_operations"])
        if cast
        else NOT_MEASURED,
        "casts_bf16": str(cast.metrics["forward_casts"]) if cast else NOT_MEASURED,
        "as_documented": f"{sum(agreeing)} of {len(agreeing)}"
        if agreeing
        else NOT_MEASURED,
    }

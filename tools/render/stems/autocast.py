"""Tables and facts of `autocast`: dtypes by part of a model and by operation."""

from functools import partial

from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.markdown import columns, per_device, table
from tools.render.rows import MISSING, cell, cells, counted, say

NAMES = {
    "parameters": "parameters, inside autocast",
    "fc1": "output of fc1",
    "relu": "output of ReLU",
    "ln": "output of the layer norm",
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
    "loss": "loss",
    "gradients": "gradients of the parameters",
    "logits_gradient": "gradient of the logits",
    "fc1_output_gradient": "gradient of the output of fc1",
    "optimizer_state": "optimizer state",
    "optimizer_update": "optimizer update",
}
# What the page's sentences name, by (part, dtype of autocast).
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
LISTS = {
    LOWER: "matmul bmm addmm einsum linear scaled_dot_product_attention",
    WIDE: "exp log pow rsqrt reciprocal softmax log_softmax sum cumsum norm softplus "
    "layer_norm cross_entropy mse_loss",
    PROMOTE: "addcmul atan2 dot cross scatter_add",
}
DOCUMENTED = {name: kind for kind, names in LISTS.items() for name in names.split()}

CAPTIONS = {
    "toy.md": "The dtype of each part of the toy model.",
    "counts.md": (
        "Operations that one forward pass runs, and how many of them are casts."
    ),
}


def fragments(records: list[Record]) -> dict[str, str]:
    """Dtypes of the toy model, of the Transformer and of single operations."""
    return {
        "toy.md": per_device(records, partial(parts_table, "toy")),
        "transformer.md": per_device(records, partial(parts_table, "transformer")),
        "operations.md": per_device(records, operations_table),
        "counts.md": per_device(records, counts_table),
    }


def parts_table(part: str, record: Record) -> str:
    """A line for each part that the record has, a column for each dtype of autocast."""
    found = [c for c in cells(record, part=part) if c.config["dtype"] != "fp32"]
    has = {name for c in found if c for name in c.metrics}
    return columns(
        [name for name in NAMES if name in has],
        ("part", NAMES.__getitem__),
        *(
            (f"under {c.config['dtype']} autocast", lambda name, c=c: c.get(name))
            for c in found
        ),
        telling=ASKED.__contains__,
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


def operations(record: Record | None) -> dict[str, list[str]]:
    """What each operation gave under bf16 autocast."""
    return cell(record, part="operations", dtype="bf16").metrics


def operations_table(record: Record) -> str:
    rows = []
    for name, found in operations(record).items():
        listed, kind = DOCUMENTED.get(name, NOT_LISTED), behaviour(found, "bf16")
        agrees = "yes" if as_documented(name, found, "bf16") else "no"
        rows.append([f"`{name}`", listed, kind, *found, agrees])
    header = ["operation", "PyTorch's list", "found", "bf16 in", "fp32 in", "mixed in"]
    header += ["mixed, no autocast", "agrees"]
    return table(header, rows, left=3, alike=["agrees"])


def counts_table(record: Record) -> str:
    tried = cells(record, part="transformer")
    return columns(
        # Without autocast first.
        sorted(tried, key=lambda c: c.config["dtype"] != "fp32"),
        ("autocast", lambda c: c.config["dtype"].replace("fp32", "none (fp32)")),
        ("operations in a forward pass", lambda c: c["forward_operations"]),
        ("of them casts", lambda c: c["forward_casts"]),
        ("others", lambda c: c["forward_operations"] - c["forward_casts"]),
    )


def facts(record: Record | None) -> dict[str, str]:
    """The cells that the page names, counts, and how much is as documented."""
    found: dict[str, str] = {}
    for (part, dtype), names in NAMED.items():
        c = cell(record, part=part, dtype=dtype)
        found |= {f"{part}_{name}_{dtype}": say(c[name]) for name in names}
    plain, cast = (cell(record, part="transformer", dtype=d) for d in ("fp32", "bf16"))
    agreeing = [as_documented(*item, "bf16") for item in operations(record).items()]
    same = f"all {len(agreeing)}" if all(agreeing) else counted(agreeing)
    return found | {
        "operations_fp32": say(plain["forward_operations"]),
        "operations_bf16": say(cast["forward_operations"]),
        "casts_bf16": say(cast["forward_casts"]),
        "as_documented": say(same if agreeing else MISSING),
    }


@claim(
    "benchmarking_mixed_precision",
    "Under fp16 autocast the products (first layer, logits) are fp16; parameters, "
    "layer norm, loss and gradients are fp32.",
)
def autocast_dtypes(record: Record) -> Judgement:
    c = cell(record, part="toy", dtype="fp16")
    found = {name: c[name] for name in ASKED}
    narrow = [name for name, dtype in found.items() if dtype == "fp16"]
    wide = [name for name, dtype in found.items() if dtype == "fp32"]
    holds = narrow == ["fc1", "logits"] and len(narrow) + len(wide) == len(ASKED)
    told = ", ".join(f"{name} {dtype}" for name, dtype in found.items())
    return bool(c) and (holds, f"Found: {told}.")

"""Tables, facts and claim of `autocast`: dtypes by model part and by operation."""

from functools import partial

from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.fragments import Fragments
from tools.render.frame import frame
from tools.render.markdown import items_table
from tools.render.rows import fmt

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
# The parts of the toy model that the assignment asks about.
ASKED = ("parameters", "fc1", "ln", "logits", "loss", "gradients")
# The parts whose dtypes are facts, by (model, dtype of autocast).
FACT_PARTS = {
    ("toy", "fp16"): ASKED,
    ("toy", "bf16"): ("ln",),
    ("transformer", "bf16"): ("rotary", "residual"),
}

fragments = Fragments()


def parts_table(part: str, record: Record) -> str:
    """Return a table of dtypes in the model `part` ("toy", ...) under autocast."""
    found = frame(record, part=part, dtype=("fp16", "bf16"))
    has = {name for x in found if x and x.row for name in x.row.metrics}
    return items_table(
        [name for name in NAMES if name in has],
        ("part", NAMES.__getitem__),
        *(
            (f"under {x['dtype']} autocast", lambda name, x=x: x.get(name))
            for x in found
        ),
        shown_first=ASKED.__contains__,
    )


TITLES = {"toy": "The dtype of each part of the toy model.", "transformer": ""}
for model, title in TITLES.items():
    fragments.add(f"{model}.md", title, reported=True)(partial(parts_table, model))


@fragments.add(
    "operations.md",
    "Dtype of each result by the dtypes of its inputs, under bf16 autocast (last "
    "column: no autocast).",
    reported=True,
)
def operations_table(record: Record) -> str:
    found = frame(record).one(part="operations", dtype="bf16")
    alike: dict[tuple[str, ...], list[str]] = {}
    for name, dtypes in found.metrics.items():
        alike.setdefault(tuple(dtypes), []).append(f"`{name}`")
    inputs = ("bf16 inputs", "fp32 inputs", "one of each", "one of each, no autocast")
    return items_table(
        alike.items(),
        ("operations", lambda one: ", ".join(one[1])),
        *((head, lambda one, i=i: one[0][i]) for i, head in enumerate(inputs)),
    )


def facts(record: Record | None) -> dict[str, str]:
    passes = frame(record, part="transformer")
    plain, cast = (passes.one(dtype=dtype) for dtype in ("fp32", "bf16"))
    return {
        f"{part}_{name}_{dtype}": fmt(x[name])
        for (part, dtype), names in FACT_PARTS.items()
        for x in [frame(record).one(part=part, dtype=dtype)]
        for name in names
    } | {
        "operations_fp32": fmt(plain["forward_operations"]),
        "operations_bf16": fmt(cast["forward_operations"]),
        "casts_bf16": fmt(cast["forward_casts"]),
    }


@claim(
    "benchmarking_mixed_precision",
    "Under fp16 autocast the results of matmuls (first layer, logits) are fp16; "
    "parameters, layer norm, loss and gradients are fp32.",
)
def dtypes_follow_autocast(record: Record) -> Judgement:
    x = frame(record).one(part="toy", dtype="fp16")
    found = {name: x[name] for name in ASKED}
    expected = {name: "fp16" if name in ("fc1", "logits") else "fp32" for name in ASKED}
    text = ", ".join(f"{name} {dtype}" for name, dtype in found.items())
    return bool(x) and (found == expected, f"Found: {text}.")

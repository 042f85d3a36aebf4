"""Table and facts of `model_sizes`: parameters, weight memory and FLOPs."""

from systems.formulas.costs import FP32_BYTES
from systems.model.sizes import SIZES, VOCAB_SIZE, ModelSize
from systems.records.record import Record
from tools.render.fragments import Fragments
from tools.render.frame import Frame, frame
from tools.render.markdown import gib
from tools.render.rows import fmt

PARTS = ("embedding", "attention", "feed_forward", "norms", "head")
fragments = Fragments()


def models(record: Record | None) -> Frame:
    """Return a row per size: parameters, weight bytes, a row per context (`at_512`)."""
    contexts = frame(record).values("context")
    found = frame(record).derive(
        parameters=lambda x: sum(x[f"{part}_parameters"] for part in PARTS),
        weights=lambda x: FP32_BYTES * x["parameters"],
        tflop=lambda x: x["forward_flops"] / 1e12,
    )
    for context in contexts:
        found.join(f"at_{context}", context=context)
    return found.where(context=contexts[:1])


@fragments.add(
    "table.md",
    "The models: parameters, memory of their weights, and FLOPs of a forward pass.",
)
def sizes_table(record: Record) -> str:
    return models(record).table(
        "size",
        ("d_model", "d_model"),
        ("d_ff", "d_ff"),
        ("layers", "num_layers"),
        ("heads", "num_heads"),
        ("parameters", "parameters", "{:,}"),
        ("fp32 weights, GiB", "weights", gib),
        *(
            (f"forward TFLOP at {context}", f"at_{context}.tflop", "{:.2f}")
            for context in frame(record).values("context")
        ),
    )


def facts(record: Record | None) -> dict[str, str]:
    """Return {name: number as text} on parameters of 2.7B and memory of 10B."""
    large, larger = (models(record).one(size=size) for size in ("2.7B", "10B"))
    share = 100 * large["feed_forward_parameters"] / large["parameters"]
    return {
        "parameters_2_7B": fmt(large["parameters"] / 1e9, "{:.1f} billion"),
        "feed_forward_share_2_7B": fmt(share, "{:.0f} %"),
        "lasting_10B": fmt(4 * larger["weights"] / 2**30, "{:.0f} GiB"),
        "named_2_7B": f"{ungated_parameters(SIZES['2.7B']) / 1e9:.2f}",
    }


def ungated_parameters(s: ModelSize) -> int:
    """Return the parameters without gate matrices, a count that gives 2.7B its name."""
    block = 4 * s.d_model**2 + 2 * s.d_model * s.d_ff
    return s.num_layers * block + 2 * VOCAB_SIZE * s.d_model

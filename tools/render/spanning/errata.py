"""What pages say of figures that others reported: what follows from them, worked out
from the records of them, and from the shapes of the model.
"""

from dataclasses import asdict

from systems.formulas.costs import PEAKS, forward_flops, pass_flops
from systems.model.sizes import SIZES, TABLE_1
from tools.render.load import Found
from tools.render.markdown import captioned, columns, percent
from tools.render.rows import MISSING, Cell, cells, least, most, say

SXM, PCIE = "a100-sxm4-40gb", "a100-80gb-pcie"


def fragments() -> dict[str, str]:
    return {"errata-calls.md": f"{calls_table()}\n"}


def calls_table() -> str:
    """How often one forward pass multiplies by a weight, the wide w1 and w3 apart from
    the others, and what a token costs each group in a layer.
    """
    table = columns(
        TABLE_1,
        ("size", lambda size: size),
        ("calls: q, k, v, o, w2, head", lambda size: calls(size)[0]),
        ("calls: w1, w3", lambda size: calls(size)[1]),
        ("millions a token: q, k, v, o, w2", lambda size: macs(size)[0], "{:.2f}"),
        ("millions a token: w1, w3", lambda size: macs(size)[1], "{:.2f}"),
    )
    return captioned(
        "Products with weights in one forward pass, in two groups, and the "
        "multiplications that a token costs each group in a layer.",
        table,
    )


def calls(size: str) -> tuple[int, int]:
    """Products with q, k, v, o and w2 of every layer and with the head; those with w1
    and w3, whose results are wide.
    """
    layers = SIZES[size].num_layers
    return 5 * layers + 1, 2 * layers


def macs(size: str) -> tuple[float, float]:
    """Millions of multiplications that a token costs each group in one layer."""
    d, wide = SIZES[size].d_model, SIZES[size].d_ff
    return (4 * d**2 + d * wide) / 1e6, 2 * d * wide / 1e6


def facts(found: Found) -> dict[str, str]:
    """Ratios, deviations and rates of the reported passes; "not measured" where a
    record is gone.
    """
    reported = {
        r.device.slug.removeprefix("reported-"): r
        for r in found.get("end_to_end", [])
        if r.kind == "reported"
    }
    sxm, pcie = (cells(reported.get(name)) for name in (SXM, PCIE))
    totals = [c.get("total_mean_ms") / c.get("forward_mean_ms") for c in sxm]
    spreads = [
        c.get(f"{p}_std_ms") / c.get(f"{p}_mean_ms")
        for c in sxm
        for p in ("forward", "total")
    ]
    rates = [teraflops(c) for c in pcie if c.config.get("precision") == "tf32"]
    two, whole = "{:.2f}".format, "{:.0f} TFLOP/s".format
    return {
        "total_over_forward_least": say(least(totals), two),
        "total_over_forward_most": say(most(totals), two),
        "backward_over_forward_least": say(least(totals) - 1, two),
        "backward_over_forward_most": say(most(totals) - 1, two),
        "spread_most": say(most(spreads), percent),
        "rate_least": say(least(rates), whole),
        "rate_most": say(most(rates), whole),
        "a100_fp32": f"{PEAKS['nvidia-a100'].fp32 / 1e12:.1f} TFLOP/s",
    }


def teraflops(cell: Cell) -> float:
    """Matrix FLOPs over the reported mean."""
    c = cell.config
    if c["size"] not in SIZES:
        return MISSING
    shape = {
        "vocab_size": c["vocab"],
        **asdict(SIZES[c["size"]]),
        "context": c["context"],
        "batch": c["batch"],
    }
    forward = sum(forward_flops(**shape).values())
    if total := cell.get("total_mean_ms"):
        return pass_flops(forward, "forward", "backward") / total / 1e9
    return forward / cell.get("forward_mean_ms") / 1e9

"""What rows of `flash_peers` say: times over those of another implementation that was
measured in turns, rates, errors, what repeats.
"""

from collections.abc import Iterable
from typing import Any

from systems.records.record import Record
from systems.records.summary import summarize
from tools.render.rows import MISSING, Cell, cell, cells, known, most, say
from tools.render.stems.flash_passes import flops, peak_flops, waits

NAMES = {
    "ours": "ours",
    "ours_high": 'ours, "high"',
    "ours_triton": "ours, plain Triton",
    "sdpa_cudnn": "cuDNN",
    "fa4": "FlashAttention-4",
    "fa4_ordered": "FlashAttention-4, ordered",
    "sdpa_flash": "FlashAttention-2",
    "sdpa_flash_ordered": "FlashAttention-2, ordered",
    "sdpa_efficient": "memory-efficient",
    "flex": "FlexAttention",
}
RESULTS = ("o", "dq", "dk", "dv")
# Against whom each dtype is measured.
RIVAL = {"bf16": "sdpa_cudnn", "fp32": "sdpa_efficient"}
# What is asked for gradients that repeat, and the same as it comes.
ORDERED = {"fa4_ordered": "fa4", "sdpa_flash_ordered": "sdpa_flash"}
# Of the row whose calls are so short that the host decides.
SHORT = 128
# What the leaderboard's test computes.
TEST = {"batch": 1, "heads": 16, "n": 16384, "d": 64, "causal": True, "dtype": "bf16"}
SHAPE = "B, H, N, d, mask"


def beside(record: Record | None, c: Cell, name: str = "") -> Cell:
    """The same shape by another implementation, which was measured in turns with it;
    by its rival where none is named.
    """
    name = name or RIVAL.get(c.config.get("dtype", ""), "")
    return cell(record, **c.config | {"implementation": name})


def long_cells(
    record: Record | None, dtype: str, name: str = "ours", **wanted: Any
) -> list[Cell]:
    """Of an implementation at every shape but the one so short that the host decides
    every pass, and the one that is stored as NVIDIA stores it.
    """
    found = cells(record, dtype=dtype, implementation=name, **wanted)
    return [c for c in found if c.config["n"] > SHORT and not as_published(c)]


def as_published(c: Cell) -> bool:
    """Whether heads are stored inside tokens, as in what NVIDIA publishes."""
    return c.config.get("layout") == "bnhd"


def short_cell(record: Record | None, name: str = "ours") -> Cell:
    return cell(record, n=SHORT, dtype="bf16", implementation=name)


def ratio(record: Record | None, c: Cell, of: str, over: str = "") -> float:
    """The time of a pass over another implementation's: below one, this is faster."""
    return c.ms(of) / beside(record, c, over).ms(of)


def ratios(
    record: Record | None, found: Iterable[Cell], of: str, over: str = ""
) -> list[float]:
    """`ratio` of each, but where the host decides the time of both passes together of
    either.
    """
    kept = [
        c
        for c in found
        if of != "both" or not (waits(c) or waits(beside(record, c, over)))
    ]
    return known(ratio(record, c, of, over) for c in kept)


def call_ratio(record: Record | None, c: Cell) -> float:
    """Wall time of a call over FlashAttention-2's: the median over rounds, for all in a
    round meet the same host.
    """
    pair = (c.get("call_ms"), beside(record, c, "sdpa_flash").get("call_ms"))
    if not all(pair):
        return MISSING
    return summarize([a / b for a, b in zip(*pair, strict=True)]).median


def over_fastest(record: Record, c: Cell) -> str:
    """Our time for forward and backward over that of whoever else takes least."""
    others = {name: beside(record, c, name) for name in NAMES}
    times = {
        name: other.ms("both")
        for name, other in others.items()
        if other and not name.startswith("ours")
    }
    name = min(times, key=times.__getitem__, default="")
    over = say(c.ms("both") / times.get(name, MISSING), "{:.2f}")
    return f"{over} ({NAMES[name]})" if name else over


def rate(c: Cell, of: str) -> float:
    """FLOP/s, by the FLOPs that attention needs."""
    return flops(c, of) / (c.ms(of) / 1e3)


def share(record: Record | None, c: Cell, of: str) -> float:
    """`rate` over the data sheet's."""
    return rate(c, of) / peak_flops(record, c.config["dtype"])


def error(c: Cell, *results: str) -> float:
    """The largest relative error of the named results."""
    return most(c.get(f"{of}_relative_error") for of in results) if c else c.missing


def error_ratios(record: Record | None, found: list[Cell]) -> list[float]:
    """The error over the rival's, for each result of each shape."""
    return known(
        error(c, of) / (error(beside(record, c), of) or MISSING)
        for c in found
        for of in RESULTS
    )


def shape_text(c: Cell) -> str:
    """ "1, 16, 16384, 64, causal"; "64/8" where 8 heads of keys are
    shared.
    """
    mask = "causal" if c.config["causal"] else "full"
    numbers = {key: str(c.config[key]) for key in ("batch", "heads", "n", "d")}
    if (group := c.config.get("group", 1)) > 1:
        numbers["heads"] += f"/{c.config['heads'] // group}"
    stored = ["BNHD"] if as_published(c) else []
    # The numbers stay on a line.
    shape = ",\N{NO-BREAK SPACE}".join(numbers.values())
    return ", ".join([shape, mask, *stored])


def repeats(c: Cell) -> Any:
    """ "yes", or "not dq"; missing in a record from before it was looked at."""
    if "repeats" not in c.metrics:
        return c.missing
    return "yes" if c["repeats"] else f"not {c['varies']}"


def judged(record: Record | None, name: str, **wanted: Any) -> list[Cell]:
    """Of an implementation, at each shape where repeats were compared."""
    found = cells(record, implementation=name, **wanted)
    return [c for c in found if "repeats" in c.metrics]


def order_costs(record: Record | None, c: Cell, name: str) -> float:
    """The time of an ordered implementation over the same one's as it comes."""
    ordered, free = (beside(record, c, of) for of in (name, ORDERED[name]))
    return ordered.ms("both") / free.ms("both")

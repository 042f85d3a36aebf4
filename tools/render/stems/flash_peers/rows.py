"""What rows of `flash_peers` say: times over those of another implementation that was
measured in turns, rates, errors, what repeats.
"""

from collections.abc import Iterable
from typing import Any

from systems.records.record import Record
from systems.records.summary import summarize
from tools.render.load import constant
from tools.render.rows import (
    MISSING,
    Cell,
    Missing,
    cell,
    cells,
    known,
    most,
    say,
)
from tools.render.stems.flash_passes import flops, peak_flops, time_ratio, waits

NAMES = {
    "ours": "ours",
    "ours_high": 'ours, "high"',
    "ours_triton": "ours, for any GPU",
    "sdpa_cudnn": "cuDNN",
    "fa3": "FlashAttention-3",
    "fa4": "FlashAttention-4",
    "fa4_ordered": "FlashAttention-4, ordered",
    "sdpa_fa4": "SDPA with FlashAttention-4",
    "sdpa_fa4_ordered": "SDPA with FlashAttention-4, ordered",
    "sdpa_flash": "FlashAttention-2",
    "sdpa_flash_ordered": "FlashAttention-2, ordered",
    "sdpa_efficient": "memory-efficient",
    "flex": "FlexAttention",
}
RESULTS: tuple[str, ...] = constant("flash_peers", "RESULTS")
# A larger relative error is no rounding: the result is wrong, its time says little.
WRONG = 0.1
# Against whom each dtype is measured.
RIVAL = {"bf16": "sdpa_cudnn", "fp32": "sdpa_efficient"}
# What is asked for gradients that repeat, and the same as it comes.
ORDERED = {
    "fa4_ordered": "fa4",
    "sdpa_fa4_ordered": "sdpa_fa4",
    "sdpa_flash_ordered": "sdpa_flash",
}
# Of the row whose calls are so short that the host decides.
SHORT = 128
# What the leaderboard's test computes.
TEST = {"batch": 1, "heads": 16, "n": 16384, "d": 64, "causal": True, "dtype": "bf16"}
SHAPE = "tokens · d · mask · heads"


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


# Of the long shapes, those that are shown first where there are many: tokens, head
# dimension, mask, heads of keys.
TELLING = {
    (16384, 64, True, 16),
    (16384, 128, True, 16),
    (4096, 128, False, 16),
    (4096, 64, True, 32),
    (1024, 64, True, 32),
    (65536, 64, True, 1),
    (8192, 128, True, 8),
    (512, 64, True, 16),
}


def telling(record: Record | None) -> list[Cell]:
    """Ours at the shapes that are shown first."""
    found = long_cells(record, "bf16")

    def name(c: Cell) -> tuple[Any, ...]:
        n, d, causal, heads = (c.config[key] for key in ("n", "d", "causal", "heads"))
        return n, d, causal, heads // c.config.get("group", 1)

    few = [c for c in found if name(c) in TELLING]
    return few if len(found) > len(TELLING) else found


def as_published(c: Cell) -> bool:
    """Whether heads are stored inside tokens, as in what NVIDIA publishes."""
    return c.config.get("layout") == "bnhd"


def short_cell(record: Record | None, name: str = "ours") -> Cell:
    return cell(record, n=SHORT, dtype="bf16", implementation=name)


def ratio(record: Record | None, c: Cell, of: str, over: str = "") -> float:
    """The time of a pass over another implementation's: below one, this is faster."""
    return time_ratio(c, beside(record, c, over), of)


def ratios(
    record: Record | None, found: Iterable[Cell], of: str, over: str = ""
) -> list[float]:
    """`ratio` of each, but where the other's results are wrong. Missing where the host
    decides the time of both passes together of either.
    """

    def compared(c: Cell, other: Cell) -> float:
        waiting = [x.row for x in (c, other) if of == "both" and waits(x)]
        if not waiting:
            return ratio(record, c, of, over)
        return Missing("the host decides", waiting[0])

    pairs = ((c, beside(record, c, over)) for c in found)
    return [compared(c, other) for c, other in pairs if not is_wrong(other, of)]


def is_wrong(c: Cell, of: str = "both") -> bool:
    """Whether what a pass computed is."""
    results = RESULTS[:1] if of == "forward" else RESULTS
    return any(c.get(f"{each}_relative_error", 0.0) > WRONG for each in results)


def call_ratio(record: Record | None, c: Cell, over: str = "sdpa_flash") -> float:
    """Wall time of a call over another's: the median over rounds, for all in a round
    meet the same host.
    """
    pair = (c.get("call_ms"), beside(record, c, over).get("call_ms"))
    if not all(pair):
        return MISSING
    return summarize([a / b for a, b in zip(*pair, strict=True)]).median


def over_fastest(record: Record, c: Cell) -> str:
    """Our time for forward and backward over that of whoever else takes least, and the
    name of that library, ordered or not.
    """
    others = {name: beside(record, c, name) for name in NAMES}
    over = {
        name: ratio(record, c, "both", name)
        for name, other in others.items()
        if other and not name.startswith("ours")
    }
    name = max(over, key=over.__getitem__, default="")
    most = say(over.get(name, MISSING), "{:.2f}")
    library = NAMES.get(ORDERED.get(name, name), "")
    short = library.replace("FlashAttention-", "FA")
    return f"{most} ({short})" if name else most


def rate(c: Cell, of: str) -> float:
    """FLOP/s, by the FLOPs that attention needs."""
    return flops(c, of) / (c.kernel_ms(of) / 1e3)


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
    """ "16k · d 64 · causal · 16 heads", "8k · d 128 · full · 2 × 64/8 heads": tokens,
    head dimension, mask, batch and heads, of keys too where these are fewer.
    """
    batch, heads, n, d = (c.config[key] for key in ("batch", "heads", "n", "d"))
    tokens = f"{n // 1024}k" if n % 1024 == 0 else f"{n:,}"
    mask = "causal" if c.config["causal"] else "full"
    group = c.config.get("group", 1)
    of_keys = f"/{heads // group}" if group > 1 else ""
    batches = f"{batch} × " if batch > 1 else ""
    counted = f"{batches}{heads}{of_keys} head{'s' if heads > 1 else ''}"
    stored = ["heads inside tokens"] if as_published(c) else []
    parts = [tokens, f"d {d}", mask, counted, *stored]
    # A line ends between two of them.
    return " · ".join(part.replace(" ", "\N{NO-BREAK SPACE}") for part in parts)


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
    """The time of an ordered implementation over the same one's as it comes; missing as
    in `ratios`.
    """
    ordered = beside(record, c, name)
    return only(ratios(record, [ordered], "both", ORDERED[name]))


def only(found: list[float]) -> float:
    """The ratio of the one shape that was asked for."""
    return next(iter(found), MISSING)

"""Rows of `flash_peers` by shape: the times of each implementation relative to another
one that ran interleaved with it.
"""

from functools import partial
from typing import Any

from systems.records.record import Record
from tools.render.frame import Frame, Line, frame
from tools.render.load import constant
from tools.render.rows import MISSING, Cell, Missing, cell, most
from tools.render.stems.flash_passes import (
    PASSES,
    TFLOPS,
    flops,
    peak_flops,
    time_ratio,
    waits,
)

NAMES = {
    "ours": "this guide, Hopper",
    "ours_triton": "this guide, any GPU",
    "ours_high": 'this guide, "high"',
    "fa4": "FlashAttention-4",
    "fa4_ordered": "FlashAttention-4, deterministic",
    "sdpa_fa4": "SDPA, FlashAttention-4",
    "sdpa_fa4_ordered": "SDPA, FlashAttention-4, deterministic",
    "sdpa_cudnn": "cuDNN",
    "sdpa_flash": "FlashAttention-2",
    "sdpa_flash_ordered": "FlashAttention-2, deterministic",
    "sdpa_efficient": "memory-efficient",
    "flex": "FlexAttention",
}
RESULTS: tuple[str, ...] = constant("flash_peers", "RESULTS")
# A larger relative error is no rounding error: the result is wrong.
WRONG = 0.1
RIVAL = {"bf16": "sdpa_cudnn", "fp32": "sdpa_efficient"}
# The length whose calls are launch-bound.
SHORT = 128
# The shape of the leaderboard's test.
TEST = {"batch": 1, "heads": 16, "n": 16384, "d": 64, "causal": True, "dtype": "bf16"}
SHAPE = "tokens · d · mask · heads"


def shapes(record: Record | None, dtype: str = "bf16") -> Frame:
    """Return a row for each shape, without the short one and NVIDIA's layout. Under the
    name of each implementation stands its row; "both / fa4" is the relative time of the
    Hopper kernel.
    """
    found = every_shape(record).where(dtype=dtype)
    return found.where(lambda x: x["n"] > SHORT and not as_published(x.config | x))


def every_shape(record: Record | None) -> Frame:
    found = frame(record).pivot("implementation", *NAMES).derive(shape=shape_text)
    return found.derive(
        tflops=lambda x: rate(x["ours"], "both") / TFLOPS,
        peak=lambda x: rate(x["ours"], "both") / peak_flops(record, x["dtype"]),
        **{
            f"{of} / {name}": partial(relative_time, of=of, name=name)
            for of in PASSES
            for name in NAMES
        },
        **{"error / rival": error_ratio},
    )


def relative_time(x: Line, of: str, name: str, whose: str = "ours") -> float:
    """Return the time of a pass over that of another implementation, missing where its
    result is wrong or either is launch-bound.
    """
    own, other = x[whose].cell, x[name].cell
    if error(other, *RESULTS[: 1 if of == "forward" else None]) > WRONG:
        return Missing("wrong gradient")
    slow = [c for c in (own, other) if of == "both" and waits(c)]
    return Missing("launch-bound", slow[0].row) if slow else time_ratio(own, other, of)


def ratio(record: Record | None, c: Cell, of: str) -> float:
    """Return the time of a pass over cuDNN's; in fp32, memory-efficient attention's."""
    rival = RIVAL.get(c.config.get("dtype", ""), "")
    return time_ratio(c, cell(record, **c.config | {"implementation": rival}), of)


def rate(x: Line, of: str) -> float:
    """Return FLOP/s, counting the FLOPs that attention needs."""
    return flops(x.cell, of) / (x.cell.kernel_ms(of) / 1e3)


def error(c: Cell, *results: str) -> float:
    """Return the largest relative error of these results."""
    return most(c.get(f"{of}_relative_error") for of in results) if c else c.missing


def error_ratio(x: Line) -> float:
    """Return the largest error of the Hopper kernel over its rival's, by result."""
    rival = x[RIVAL[x["dtype"]]].cell
    return most(
        error(x["ours"].cell, of) / (error(rival, of) or MISSING) for of in RESULTS
    )


def as_published(config: dict[str, Any]) -> bool:
    """Whether the heads of a token are adjacent in memory, as in NVIDIA's benchmark."""
    return config.get("layout") == "bnhd"


def shape_text(x: Cell | Line) -> str:
    """Return "8k · d 128 · full · 2 × 64/8 heads": tokens, head dimension, mask, batch
    and heads, of keys too where these are fewer.
    """
    config = x.config or dict(x) if isinstance(x, Line) else x.config
    batch, heads, n, d = (config[key] for key in ("batch", "heads", "n", "d"))
    tokens = f"{n // 1024}k" if n % 1024 == 0 else f"{n:,}"
    mask = "causal" if config["causal"] else "full"
    group = config.get("group", 1)
    of_keys = f"/{heads // group}" if group > 1 else ""
    batches = f"{batch} × " if batch > 1 else ""
    counted = f"{batches}{heads}{of_keys} head{'s' if heads > 1 else ''}"
    parts = [tokens, f"d {d}", mask, counted]
    # A line breaks between two of them.
    return " · ".join(part.replace(" ", "\N{NO-BREAK SPACE}") for part in parts)

"""What rows of `flash_benchmarking` say: rates, memory, and the time of others over
ours.
"""

from typing import Any

from systems.records.record import Record
from tools.render.rows import MISSING, Cell, cell, cells, known, say
from tools.render.stems.flash_passes import flops, peak_flops, time_ratio, waits

NAMES = {
    "ours": "ours",
    "plain": "plain PyTorch",
    "compiled": "compiled PyTorch",
    "sdpa": "SDPA",
}
OTHERS = ("plain", "compiled", "sdpa")
DTYPES = ("bf16", "fp32")
BYTES = {"bf16": 2, "fp32": 4}
# Of the figures, and of the shapes that sentences name.
D, LONGEST = 64, 65536
MIB = 2**20
# Exact fp32 on tensor cores: products of bf16 limbs for each product.
LIMB_PRODUCTS = 6
# Queries of a program: a head has that many tiles less than tokens.
TILE = 128
# (dtype, d, N).
Shape = tuple[Any, ...]


def shapes(record: Record | None) -> list[Shape]:
    """Those of the grid, in its order. The large matrix product is no shape of
    attention.
    """
    found = [c.config for c in cells(record) if c.config["implementation"] in NAMES]
    return list(dict.fromkeys((c["dtype"], c["d"], c["n"]) for c in found))


def lengths(record: Record | None) -> list[int]:
    return list(dict.fromkeys(n for _, _, n in shapes(record)))


def at(record: Record | None, name: str, dtype: str, d: int, n: int) -> Cell:
    return cell(record, implementation=name, dtype=dtype, d=d, n=n)


def rate(c: Cell, name: str) -> float:
    """FLOP/s of the GPU in a pass, by the FLOPs that attention needs."""
    return flops(c, name) / (c.kernel_ms(name) / 1e3)


def share(record: Record | None, c: Cell, name: str) -> float:
    """`rate` over the data sheet's."""
    return rate(c, name) / peak_flops(record, c.config["dtype"]) if c else c.missing


def memory_bytes(c: Cell) -> float:
    """What forward and backward need at most above what was held before; a CPU does not
    tell. Missing where it is less than o and three gradients: then gradients of the
    pass before were still held.
    """
    needs = c.get("peak_allocated_bytes") - c.get("held_bytes")
    if not needs:
        return needs
    n, d, dtype = (c.config[name] for name in ("n", "d", "dtype"))
    return needs if needs >= 4 * n * d * BYTES[dtype] else MISSING


def product_rate(record: Record | None, dtype: str) -> float:
    """FLOP/s of one large product, timed in bursts as short as attention's."""
    c = cell(record, implementation="ceiling", dtype=dtype)
    if not c:
        return c.missing
    return 2 * c.config["n"] ** 2 * c.config["d"] / (c.kernel_ms("burst") / 1e3)


def ratio(record: Record | None, over: str, name: str, *shape: Any) -> float:
    """GPU time of another implementation over ours: above one, ours is faster."""
    theirs, ours = (at(record, of, *shape) for of in (over, "ours"))
    return time_ratio(theirs, ours, name)


def ratios(
    record: Record | None, over: str, name: str, dtypes: tuple[str, ...] = DTYPES
) -> dict[Shape, float]:
    """`ratio` at each shape of these dtypes that both could run."""
    of_dtypes = (shape for shape in shapes(record) if shape[0] in dtypes)
    found = {shape: ratio(record, over, name, *shape) for shape in of_dtypes}
    return {shape: faster for shape, faster in found.items() if known([faster])}


def losses(found: dict[Shape, float]) -> list[Shape]:
    """The shapes where another implementation is faster than ours."""
    return [shape for shape, faster in found.items() if faster < 1]


def what_ran(c: Cell) -> str:
    """Which of our kernels, or of SDPA's: "triton", "hopper", "cudnn"."""
    return c["ran"].removesuffix("_attention") if c else ""


def where_the_host_decides(record: Record | None, name: str) -> str:
    """At how many shapes of an implementation, and up to which length."""
    tried = cells(record, implementation=name)
    if not tried:
        return say(MISSING)
    late = [c.config["n"] for c in tried if waits(c)]
    return f"{len(late)} (N up to {max(late):,})" if late else "none"

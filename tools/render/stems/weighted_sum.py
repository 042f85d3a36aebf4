"""Table and facts of `weighted_sum`: the rate at which a first kernel moves bytes,
beside PyTorch's own and a copy; and what was predicted.
"""

from collections import Counter

from systems.formulas.chips import chip_of
from systems.records.record import Record
from tools.render.load import primary_gpu
from tools.render.markdown import columns, milliseconds, per_device, percent
from tools.render.rows import MISSING, Cell, cell, cells, data_sheet, most, say

NAMES = {
    "ours": "ours",
    "mv": "`torch.mv`",
    "einsum": "`torch.einsum`",
    "product_and_sum": "`(x * w).sum(-1)`",
    "copy": "a copy of x",
}
# What is predicted, before any record: the shape and the bytes of a number.
N, D, BYTES = 65536, 2048, {"fp32": 4, "bf16": 2}
# How often each number of x is moved, at least: read; read again, and its gradient
# written; read and written.
MOVED = {"forward": 1, "backward": 2, "copy": 2}
SUMS = ("y", "dx", "dw")
# Of our kernels: rows and columns of a tile, the warps of a program, bytes that a
# thread loads at once.
TILE, WARPS, LOADED = (16, 128), 4, 16
# Of every GPU so far: lanes of a warp, and banks of shared memory, a word wide.
LANES = BANKS = 32
CAPTIONS = {
    "table.md": "The weighted sum beside PyTorch's own. Rates count what has to be "
    "moved: x once forwards, x and its gradient backwards.",
}


def moved_bytes(of: str, dtype: str, n: int = N, d: int = D) -> int:
    """Bytes that have to move; those of w and y don't count beside them."""
    return MOVED[of] * BYTES[dtype] * n * d


def ms(c: Cell, of: str) -> float:
    """Of a copy, which is one pass, there is no backward time."""
    return c.kernel_ms(of) if c.kernel_ms(of) or not c else MISSING


def rate(c: Cell, of: str) -> float:
    """Bytes a second."""
    if not c.config:
        return MISSING
    moved = moved_bytes(of, *(c.config[key] for key in ("dtype", "n", "d")))
    return moved / (ms(c, of) / 1e3)


def share(c: Cell, of: str, bandwidth: float) -> float:
    """`rate` over the data sheet's."""
    return rate(c, of) / bandwidth


def turns(dtype: str) -> int:
    """How many lanes of a warp meet in one bank of shared memory where the partial sums
    of a column, one from each warp, stand side by side.
    """
    columns = LOADED // BYTES[dtype]
    lanes = min(LANES, TILE[1] // columns)
    return max(Counter(i * columns * WARPS % BANKS for i in range(lanes)).values())


def conflicts_ms(dtype: str) -> float:
    """Predicted: how long these sums keep shared memory busy. Each warp of each tile
    stores its sum of each of a lane's columns and loads the whole; as Triton 3.6 and
    3.7 compile it, one word at a time.
    """
    chip = chip_of(primary_gpu())
    if chip is None:
        return MISSING
    accesses = 2 * LOADED // BYTES[dtype]
    tiles = N * D / (TILE[0] * TILE[1])
    cycles = tiles / chip.sms * WARPS * accesses * turns(dtype)
    return 1e3 * cycles / chip.clock


def fragments(records: list[Record]) -> dict[str, str]:
    return {"table.md": per_device(records, body)}


def body(record: Record) -> str:
    """A line for each implementation and dtype; a copy has one pass, under forward."""
    bandwidth = data_sheet(record.device.slug).bandwidth

    def first(c: Cell) -> str:
        return "copy" if c.config["implementation"] == "copy" else "forward"

    return columns(
        cells(record),
        ("dtype", lambda c: c.config["dtype"]),
        ("what", lambda c: NAMES[c.config["implementation"]]),
        ("forward, ms", lambda c: ms(c, first(c)), milliseconds),
        ("TB/s", lambda c: rate(c, first(c)) / 1e12, "{:.2f}"),
        ("of the data sheet's", lambda c: share(c, first(c), bandwidth), percent),
        ("backward, ms", lambda c: ms(c, "backward"), milliseconds),
        ("TB/s", lambda c: rate(c, "backward") / 1e12, "{:.2f}"),
        ("of the data sheet's", lambda c: share(c, "backward", bandwidth), percent),
        ("error", error, "{:.0e}"),
        ("same bits in two calls", lambda c: c.get("repeats")),
        left=2,
    )


def error(c: Cell) -> float:
    """The largest of the three results."""
    return most(c.get(f"{of}_relative_error") for of in SUMS)


def facts(record: Record | None) -> dict[str, str]:
    """What the data sheet predicts; how near ours and the others come."""
    peak = data_sheet(primary_gpu())
    bandwidth = peak.bandwidth
    found = {"arithmetic": say(1e6 * 2 * N * D / peak.fp32, "{:.0f} µs")}
    for dtype in BYTES:
        for of in ("forward", "backward"):
            ours = cell(record, implementation="ours", dtype=dtype)
            least = 1e3 * moved_bytes(of, dtype) / bandwidth
            found[f"predicted_{of}_{dtype}"] = say(least, "{:.3f} ms")
            found[f"{of}_{dtype}"] = say(ours.kernel_ms(of), "{:.3f} ms")
            found[f"{of}_{dtype}_share"] = say(share(ours, of, bandwidth), percent)
        found[f"conflicts_{dtype}"] = say(conflicts_ms(dtype), "{:.2f} ms")
        copy = cell(record, implementation="copy", dtype=dtype)
        found[f"copy_{dtype}_share"] = say(share(copy, "copy", bandwidth), percent)
    ours = cell(record, implementation="ours", dtype="bf16")
    least = 1e3 * moved_bytes("backward", "bf16") / bandwidth
    wide, copied = (
        cell(record, implementation=name, dtype="fp32") for name in ("ours", "copy")
    )
    of_copy = rate(wide, "forward") / rate(copied, "copy")
    found["of_copy_fp32"] = say(of_copy, percent)
    found["backward_bf16_over"] = say(ours.kernel_ms("backward") / least, "{:.1f}")
    return found

"""Table and facts of `weighted_sum`: bandwidth of a first kernel and of PyTorch."""

from typing import Any

from systems.records.record import Record
from tools.render.fragments import Fragments
from tools.render.frame import Frame, Line, frame
from tools.render.load import primary_gpu
from tools.render.markdown import format_ms, percent
from tools.render.rows import fmt, nanmax, peak_rates

NAMES = {
    "ours": "this kernel",
    "mv": "`torch.mv`",
    "einsum": "`torch.einsum`",
    "product_and_sum": "`(x * w).sum(-1)`",
    "copy": "a copy of x",
}
# Shape and bytes per element that predictions assume.
N, D, BYTES = 65536, 2048, {"fp32": 4, "bf16": 2}
# Least accesses per element of x: the forward pass reads x, the backward pass reads x
# and writes dx, and a copy reads x and writes it.
MOVED = {"forward": 1, "backward": 2, "copy": 2}
SUMS = ("y", "dx", "dw")
fragments = Fragments()


def moved_bytes(phase: str, dtype: str, n: int = N, d: int = D) -> int:
    """Return the least number of bytes that a pass or copy moves, for x (n, d)."""
    return MOVED[phase] * BYTES[dtype] * n * d


def kernel_rows(record: Record | None) -> Frame:
    """Return rows with GPU ms and bytes/s of each pass; copies count as `forward`."""

    def time_ms(x: Line, phase: str) -> float:
        is_copy = (x["implementation"], phase) == ("copy", "forward")
        return x.kernel_ms("copy" if is_copy else phase)

    def bytes_per_second(x: Line, phase: str) -> float:
        name = "copy" if x["implementation"] == "copy" else phase
        return moved_bytes(name, x["dtype"], x["n"], x["d"]) / (x[phase] / 1e3)

    found = frame(record).derive(
        what=lambda x: NAMES[x["implementation"]],
        forward=lambda x: time_ms(x, "forward"),
        backward=lambda x: time_ms(x, "backward"),
        forward_rate=lambda x: bytes_per_second(x, "forward"),
        backward_rate=lambda x: bytes_per_second(x, "backward"),
        error=lambda x: nanmax(x.get(f"{name}_relative_error") for name in SUMS),
    )
    return found.join("copy", implementation="copy")


@fragments.add(
    "table.md",
    "The weighted sum beside PyTorch's. TB/s count only bytes that must move: x "
    "in the forward pass, x and its gradient in the backward pass.",
)
def bandwidth_table(record: Record) -> str:
    bandwidth = peak_rates(record.device.slug).bandwidth

    def pass_columns(phase: str) -> list[tuple[Any, ...]]:
        rate = f"{phase}_rate"
        return [
            (f"{phase}, ms", phase, format_ms),
            (f"{phase}, TB/s", lambda x: x[rate] / 1e12, "{:.2f}"),
            ("share of data sheet", lambda x: x[rate] / bandwidth, percent),
        ]

    return kernel_rows(record).table(
        "dtype",
        ("implementation", "what"),
        *pass_columns("forward"),
        *pass_columns("backward"),
        ("error", "error", "{:.0e}"),
        ("same bits in two calls", lambda x: x.get("repeats")),
        left=2,
        shown_first=lambda x: x["implementation"] in ("ours", "copy"),
    )


def facts(record: Record | None) -> dict[str, str]:
    """Return {name: text}: least ms; fp32 bandwidth / a copy's; bf16 ms / least ms."""
    peak = peak_rates(primary_gpu())
    least = {
        (phase, dtype): 1e3 * moved_bytes(phase, dtype) / peak.bandwidth
        for phase in ("forward", "backward")
        for dtype in BYTES
    }
    fp32, bf16 = (
        kernel_rows(record).one(implementation="ours", dtype=dtype) for dtype in BYTES
    )
    over = bf16["backward"] / least["backward", "bf16"]
    return {
        "arithmetic": fmt(1e6 * 2 * N * D / peak.fp32, "{:.0f} µs"),
        **{
            f"predicted_{phase}_{dtype}": fmt(ms, "{:.3f} ms")
            for (phase, dtype), ms in least.items()
        },
        "of_copy_fp32": fmt(fp32["forward_rate"] / fp32["copy.forward_rate"], percent),
        "backward_bf16_over": fmt(over, "{:.5f}"),
    }

"""Draw CPU and GPU timelines of the three bottlenecks, for docs/gpu.md."""

from systems.records.record import Record
from tools.render.drawing import SMALL, TITLE, Drawing, draw_figure
from tools.render.frame import Line
from tools.render.load import Found, primary_record
from tools.render.markdown import NOTHING_YET, percent, record_address
from tools.render.rows import dropna
from tools.render.spanning.envelope import bottleneck_examples

FINDING = (
    "Launch-bound, a GPU is {idle} idle; memory-bound, it reaches {arithmetic} of its "
    "arithmetic peak; only large matmuls are compute-bound."
)
KEY = (
    "Above, the CPU launches; below, the GPU runs the kernels. Lengths are measured "
    "averages, each panel to its own scale. Green bars show the share of the data "
    "sheet's rates that the kernels reach; the longer bar is the bottleneck."
)
# For each panel: title, subtitle, and number of kernels to draw.
PANELS = (
    ("1  Launch-bound", "small, context 128, bf16: {:.0f} kernels", 5),
    ("2  Memory-bound", "softmax of small, context 512, fp32", 5),
    ("3  Compute-bound", "matmuls of 2.7B, context 512, fp32", 3),
)


def fragments(found: Found) -> dict[str, str]:
    return {"gpu-timelines.md": draw_timelines(primary_record(found, "kernel_profile"))}


def draw_timelines(record: Record | None) -> str:
    launches, softmax, products = found = bottleneck_examples(record)
    rates = [x[name] for x in found[1:] for name in ("of_memory", "of_fp32")]
    if record is None or len(dropna([launches["busy"], *rates])) < 5:
        return NOTHING_YET
    alt = (
        f"Launch-bound, the GPU is busy {percent(launches['busy'])} of the time. "
        f"Memory-bound, it is always busy and softmax reaches "
        f"{percent(softmax['of_memory'])} of the memory's rate but "
        f"{percent(softmax['of_fp32'])} of the arithmetic. Compute-bound, matmuls "
        f"reach {percent(products['of_fp32'])} of it and "
        f"{percent(products['of_memory'])} of the memory's rate."
    )

    def draw(d: Drawing) -> None:
        y = 0.0
        for (title, row, count), x in zip(PANELS, found, strict=True):
            d.text(0, y + 15, title, TITLE, bold=True)
            below = 15 if d.wide else 32
            d.text(200 if d.wide else 18, y + below, row.format(x["calls"]), SMALL)
            top = y + below + (11 if d.wide else 10)
            y = draw_lanes(d, top, x, count, launches["launch_us"]) + 26

    finding = FINDING.format(
        idle=percent(1 - launches["busy"]), arithmetic=percent(softmax["of_fp32"])
    )
    return draw_figure(draw, alt, finding, KEY, numbers=record_address(record))


def draw_lanes(d: Drawing, top: float, x: Line, count: int, launch_us: float) -> float:
    """Draw a panel below `top`: launches of `count` kernels, one per `launch_us`, their
    runs on the GPU, and bars of utilization. Return the y of the lower edge.
    """
    kernel_us = x["each_us"]
    left, right = 40, (500 if d.wide else d.width - 4)
    starts, free = [], 0.0
    for i in range(count):
        start = max((i + 1) * launch_us, free)
        starts.append(start)
        free = start + kernel_us
    scale = (right - left) / (1.04 * free)
    d.text(0, top + 16, "CPU", SMALL)
    d.text(0, top + 44, "GPU", SMALL)
    d.line(left, top + 24, right, top + 24, "faint")
    d.line(left, top + 52, right, top + 52, "faint")
    gap = min(1.0, launch_us * scale / 4)
    for i in range(count):
        at = left + i * launch_us * scale
        d.box(at, top + 4, max(launch_us * scale - gap, 0.8), 18, "fill-grey")
    for start in starts:
        at = left + start * scale
        d.box(at, top + 30, max(kernel_us * scale - gap, 0.8), 20, "fill-blue")
    launched = count * launch_us
    if launched < 0.6 * free:
        d.text(left + launched * scale + 8, top + 17, "is done, runs ahead", SMALL)
    d.text(left, top + 66, f"a launch {format_duration(launch_us)}", SMALL)
    d.text(right, top + 66, f"a kernel {format_duration(kernel_us)}", SMALL, "end")
    shares = {"memory": x["of_memory"], "arithmetic": x["of_fp32"]}
    if not x["of_memory"]:
        shares = {"GPU busy": x["busy"]}
    return (
        draw_utilization(d, 530, top, shares)
        if d.wide
        else draw_utilization(d, 0, top + 78, shares)
    )


def format_duration(us: float) -> str:
    if us >= 1000:
        return f"{us / 1e3:.1f} ms"
    return f"{us:.0f} µs" if us >= 10 else f"{us:.1f} µs"


def draw_utilization(d: Drawing, x: float, y: float, shares: dict[str, float]) -> float:
    """Draw a bar for each resource's utilization; return the y of the lower edge."""
    label, end = (x + 66, d.width - 44)
    for i, (what, share) in enumerate(shares.items()):
        top = y + 4 + 26 * i
        d.text(x, top + 13, what, SMALL)
        d.box(label, top, end - label, 18, "faint")
        d.box(label, top, max(share * (end - label), 1), 18, "fill-green")
        d.text(d.width - 2, top + 13, percent(share), SMALL, "end", bold=True)
    return y + max(26 * len(shares), 66 if x else 0) + 4

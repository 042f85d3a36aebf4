"""The drawings of docs/gpu.md: what a GPU is made of, and three ways to be slow."""

from collections.abc import Mapping
from dataclasses import dataclass

from systems.formulas.chips import Chip, chip_of
from systems.formulas.costs import Peak, find_peak
from systems.records.record import Record
from tools.render.drawing import SMALL, TEXT, TITLE, Drawing, drawn
from tools.render.load import Found, ours, primary_gpu
from tools.render.markdown import NOTHING_YET, percent, record_address
from tools.render.rows import known
from tools.render.spanning.envelope import SHOWN, Regimes, regimes

MACHINE = (
    "The nearer to the arithmetic, the faster, and the fewer threads share it: memory "
    "and L2 serve all {sms} SMs, shared memory one program, a register one thread."
)
MACHINE_KEY = (
    "Rates are those of all units of a kind in one SM. Sizes and rates: {source}."
)
# The data sheet of the H200 gives neither.
AS_H100 = " Those of the L2 cache and of the SMs are the H100's."
TIMELINES = (
    "Bound by launches, a GPU is {idle} idle; bound by memory, it reaches {arithmetic} "
    "of its arithmetic; only large products are bound by arithmetic itself."
)
TIMELINES_KEY = (
    "Above the CPU, which launches; below the GPU, which runs the kernels. Lengths are "
    "measured averages, each panel to its own scale; a launch has that of panel 1 in "
    "all of them. Green bars: how much of the data "
    "sheet's rates the kernels reach. The longer one names the limit; few kernels come "
    "close to a whole bar."
)


@dataclass(frozen=True)
class Machine:
    """What the first drawing shows."""

    name: str
    chip: Chip
    peak: Peak
    memory: str


def fragments(found: Found) -> dict[str, str]:
    """`gpu-machine.md` and `gpu-timelines.md`."""
    return {
        "gpu-machine.md": machine_figure(shown_machine(found)),
        "gpu-timelines.md": timelines(regimes(found), ours(found, "kernel_profile")),
    }


def shown_machine(found: Found) -> Machine:
    """The primary GPU, or a listed one where nobody lists the primary one's parts."""
    slug, record = primary_gpu(), ours(found, "kernel_profile")
    name, memory = slug, ""
    if record:
        name = record.device.name
        memory = f"{(record.device.memory_bytes or 0) / 2**30:.0f} GiB"
    if not (chip_of(slug) and find_peak(slug)):
        slug, name, memory = SHOWN, "NVIDIA H200", ""
    chip, peak = chip_of(slug), find_peak(slug)
    assert chip and peak
    return Machine(name, chip, peak, memory)


# The machine --------------------------------------------------------------------------


def machine_figure(m: Machine) -> str:
    alt = (
        f"One {m.name} has {m.chip.sms} SMs. Memory feeds them {bandwidth(m)} through "
        f"an L2 cache of {mib(m)}; each SM has {m.chip.register_bytes >> 10} KiB of "
        f"registers and {m.chip.shared_bytes >> 10} KiB of shared memory. The CPU only "
        "queues launches."
    )

    def draw(d: Drawing) -> None:
        (wide_machine if d.wide else narrow_machine)(d, m)

    key = MACHINE_KEY.format(source=f"{m.peak.source}; {m.chip.source}")
    key += AS_H100 if "H200" in m.name else ""
    return drawn(draw, alt, MACHINE.format(sms=m.chip.sms), key)


def bandwidth(m: Machine) -> str:
    return f"{m.peak.bandwidth / 1e12:.1f} TB/s"


def mib(m: Machine) -> str:
    return f"{m.chip.l2_bytes >> 20} MiB"


def wide_machine(d: Drawing, m: Machine) -> None:
    host(d, 1, 14, 132)
    d.arrow(134, 82, 184, 82)
    d.text(159, 72, "launch", SMALL, "middle")
    d.box(186, 1, 533, 342, "ink")
    d.text(198, 22, m.name, TITLE, bold=True)
    grid(d, 198, 54, 204, m.chip.sms)
    d.line(402, 54, 424, 34, "faint")
    d.line(402, 146, 424, 204, "faint")
    one_sm(d, 424, 34, 284, m.chip)
    d.arrow(300, 204, 300, 222, both=True)
    d.arrow(560, 206, 560, 222, both=True)
    storage(d, 198, 224, 510, m)


def narrow_machine(d: Drawing, m: Machine) -> None:
    host(d, 1, 1, 338)
    d.arrow(60, 72, 60, 100)
    d.text(70, 90, "launch", SMALL)
    d.box(1, 102, 338, 484, "ink")
    d.text(12, 123, m.name, TITLE, bold=True)
    grid(d, 12, 154, 316, m.chip.sms)
    d.line(12, 229, 12, 252, "faint")
    d.line(24, 229, 328, 252, "faint")
    one_sm(d, 12, 252, 316, m.chip)
    d.arrow(170, 426, 170, 466, both=True)
    storage(d, 12, 468, 316, m)


def host(d: Drawing, x: float, y: float, width: float) -> None:
    """The CPU and its queue of launches."""
    tall = width < 200
    d.box(x, y, width, 136 if tall else 68, "ink")
    d.text(x + 10, y + 21, "CPU (the host)", TITLE, bold=True)
    lines = ["runs your Python", "and queues kernels"]
    if tall:
        for i, words in enumerate(lines):
            d.text(x + 10, y + 40 + 15 * i, words, SMALL)
    else:
        d.text(x + 10, y + 38, " ".join(lines), SMALL)
    # Launches wait in line: the one on the right goes first.
    for i in range(5):
        d.box(x + 12 + 22 * i, y + (66 if tall else 46), 18, 14, "fill-blue")
    if tall:
        d.text(x + 10, y + 98, "the queue: a stream", SMALL)
    else:
        d.text(x + 128, y + 57, "the queue: a stream", SMALL)


def grid(d: Drawing, x: float, y: float, width: float, sms: int) -> None:
    """A square for each SM, one of them marked."""
    d.text(x, y - 8, f"{sms} SMs, all alike", TEXT, bold=True)
    columns = 22 if width > 250 else 14
    styles = ["fill-grey", *["fill-faint"] * (sms - 1)]
    d.squares(x, y, width / columns, columns, styles)
    size = width / columns - 2
    d.box(x, y, size, size, "frame-line")


def one_sm(d: Drawing, x: float, y: float, width: float, chip: Chip) -> None:
    """What is in one SM."""
    d.box(x, y, width, 172, "frame-line")
    d.text(x + 10, y + 19, "One SM", TEXT, bold=True)
    d.text(x + width - 10, y + 19, f"holds up to {chip.warps} warps", SMALL, "end")
    rows = (
        ("registers", f"{chip.register_bytes >> 10} KiB", "fill-green"),
        ("shared memory and L1", f"{chip.shared_bytes >> 10} KiB", "fill-green"),
        (
            f"{chip.tensor_cores} tensor cores",
            f"{chip.bf16_flops_per_clock:,} bf16 FLOPs a clock",
            "fill-blue",
        ),
        ("fp32 units", f"{chip.fp32_flops_per_clock} FLOPs a clock", "fill-blue"),
        ("exponentials", f"{chip.exponentials_per_clock} a clock", "fill-blue"),
    )
    for i, (what, amount, style) in enumerate(rows):
        top = y + 28 + 28 * i
        d.box(x + 8, top, width - 16, 24, style)
        d.text(x + 16, top + 16, what, SMALL)
        d.text(x + width - 16, top + 16, amount, SMALL, "end")


def storage(d: Drawing, x: float, y: float, width: float, m: Machine) -> None:
    """L2 and memory, and the rate between them."""
    d.box(x, y, width, 34, "fill-green")
    d.text(x + 10, y + 21, "L2 cache, for all SMs", TEXT, bold=True)
    d.text(x + width - 10, y + 21, mib(m), TEXT, "end")
    d.arrow(x + width / 4, y + 34, x + width / 4, y + 68, both=True)
    d.text(x + width / 4 + 10, y + 55, bandwidth(m), TEXT, bold=True)
    d.box(x, y + 70, width, 40, "fill-green")
    d.text(x + 10, y + 94, "Memory (HBM)", TEXT, bold=True)
    d.text(x + width - 10, y + 94, m.memory, TEXT, "end")


# The timelines ------------------------------------------------------------------------


@dataclass(frozen=True)
class Panel:
    """A way to be slow: how long a kernel takes, how many are drawn, and how much of
    each resource they use.
    """

    title: str
    row: str
    kernel_us: float
    count: int
    shares: Mapping[str, float]


def timelines(r: Regimes, record: Record | None) -> str:
    softmax = r.shares(r.softmax, r.softmax_work)
    products = r.shares(r.products, r.products_work)
    if record is None or len(known([r.busy, *softmax, *products])) < 5:
        return NOTHING_YET
    alt = (
        f"Bound by launches, the GPU is busy {percent(r.busy)} of the time. Bound by "
        f"memory, it is always busy and softmax reaches {percent(softmax[0])} of the "
        f"memory's rate but {percent(softmax[1])} of the arithmetic. Bound by "
        f"arithmetic, products reach {percent(products[1])} of it and "
        f"{percent(products[0])} of the memory's rate."
    )

    both = ("memory", "arithmetic")
    panels = (
        Panel(
            "1  Bound by launches",
            f"small, context 128, bf16: {r.all_kernels.calls:.0f} kernels",
            r.all_kernels.each_us,
            5,
            {"GPU busy": r.busy},
        ),
        Panel(
            "2  Bound by memory",
            "softmax of small, context 512, fp32",
            r.softmax.each_us,
            5,
            dict(zip(both, softmax, strict=True)),
        ),
        Panel(
            "3  Bound by arithmetic",
            "products of 2.7B, context 512, fp32",
            r.products.each_us,
            3,
            dict(zip(both, products, strict=True)),
        ),
    )

    def draw(d: Drawing) -> None:
        y = 0.0
        for panel in panels:
            y = lanes(d, y, panel, r.launch_us) + 26

    told = {"idle": percent(1 - r.busy), "arithmetic": percent(softmax[1])}
    finding, where = TIMELINES.format(**told), record_address(record)
    return drawn(draw, alt, finding, TIMELINES_KEY, numbers=where)


def lanes(d: Drawing, y: float, p: Panel, launch_us: float) -> float:
    """Two lanes and their time axis, in microseconds. Returns where the panel ends."""
    d.text(0, y + 15, p.title, TITLE, bold=True)
    d.text(200 if d.wide else 18, y + (15 if d.wide else 32), p.row, SMALL)
    top = y + (26 if d.wide else 42)
    left, right = 40, (500 if d.wide else d.width - 4)
    starts, free = [], 0.0
    for i in range(p.count):
        start = max((i + 1) * launch_us, free)
        starts.append(start)
        free = start + p.kernel_us
    scale = (right - left) / (1.04 * free)
    d.text(0, top + 16, "CPU", SMALL)
    d.text(0, top + 44, "GPU", SMALL)
    d.line(left, top + 24, right, top + 24, "faint")
    d.line(left, top + 52, right, top + 52, "faint")
    gap = min(1.0, launch_us * scale / 4)
    for i in range(p.count):
        x = left + i * launch_us * scale
        d.box(x, top + 4, max(launch_us * scale - gap, 0.8), 18, "fill-grey")
    for start in starts:
        x = left + start * scale
        d.box(x, top + 30, max(p.kernel_us * scale - gap, 0.8), 20, "fill-blue")
    launched = p.count * launch_us
    if launched < 0.6 * free:
        d.text(left + launched * scale + 8, top + 17, "is done, runs ahead", SMALL)
    d.text(left, top + 66, f"a launch {duration(launch_us)}", SMALL)
    d.text(right, top + 66, f"a kernel {duration(p.kernel_us)}", SMALL, "end")
    return bars(d, 530, top, p.shares) if d.wide else bars(d, 0, top + 78, p.shares)


def duration(us: float) -> str:
    return (
        f"{us / 1e3:.1f} ms"
        if us >= 1000
        else f"{us:.0f} µs"
        if us >= 10
        else f"{us:.1f} µs"
    )


def bars(d: Drawing, x: float, y: float, shares: Mapping[str, float]) -> float:
    """How full each resource is; the frame is all of it. Returns the end."""
    label, end = (x + 66, d.width - 44)
    for i, (what, share) in enumerate(shares.items()):
        top = y + 4 + 26 * i
        d.text(x, top + 13, what, SMALL)
        d.box(label, top, end - label, 18, "faint")
        d.box(label, top, max(share * (end - label), 1), 18, "fill-green")
        d.text(d.width - 2, top + 13, percent(share), SMALL, "end", bold=True)
    return y + max(26 * len(shares), 66 if x else 0) + 4

"""Sketches that need no record: which machine does what, what a clock and a range
read, what a block of the model does, which score matrices it holds, and whose kernel is
whose.
"""

from dataclasses import dataclass

from systems.formulas.costs import forward_flops
from systems.model.sizes import SIZES, VOCAB_SIZE
from tools.render.drawing import SMALL, TEXT, Drawing, drawn
from tools.render.markdown import percent
from tools.render.spanning.envelope import BATCH, shape

SETUP = "A laptop proves that the code is right, a GPU measures how fast it is."
SETUP_KEY = (
    "Records lie beside the code, so the pages can be built and read on a laptop too."
)
WAITS = "Only the sum of the kernels adds anything to what the clock says."
WAITS_KEY = (
    "One clock with two waits. A range around both waits is the clock's own time "
    "again; one without a wait ends when the last kernel is launched."
)
CLOCK = "A clock that does not wait times the queueing."
CLOCK_KEY = "The CPU has queued all five kernels when the GPU has hardly begun."
BLOCK = (
    "The three feed-forward matrices do {share} of the matrix FLOPs of a block of "
    "{size}."
)
BLOCK_KEY = (
    "One of its {layers} blocks from top to bottom, with the shape of each weight "
    "matrix and its share of the block's matrix FLOPs at context {context}. What has "
    "no bar multiplies no matrices. SwiGLU is w2 applied to SiLU(w1 x) times w3 x."
)
MATRICES = (
    "Six N × N matrices are made in plain attention, and at most {most} are alive at "
    "once."
)
MATRICES_KEY = (
    "Green: two that a graph keeps for the backward pass. Without a graph they end "
    "where the blue does. The masked scores stay until attention returns, because a "
    "variable still names them."
)
TRACE = "A kernel belongs to the phase that launched it."
TRACE_KEY = (
    "Lines join each launch to its kernel. Kernel 2 runs while the CPU is in the "
    "backward range, but it belongs to the forward pass. The times of this toy trace "
    "are microseconds."
)


def fragments() -> dict[str, str]:
    """Each by the name of its file."""
    return {
        "sketch-setup.md": setup(),
        "sketch-ranges.md": ranges(),
        "sketch-clock.md": clock(),
        "sketch-block.md": block("2.7B", 512),
        "sketch-matrices.md": matrices(),
        "sketch-trace.md": trace(),
    }


# Which machine does what --------------------------------------------------------------

# A path through each machine: what stands in each box, below its name.
MACHINES = {
    "ink": (
        ("your laptop", "runs the kernels in", "Triton's interpreter"),
        ("tests", "are results right?", ""),
    ),
    "blue": (
        ("a GPU", "measures", ""),
        ("records", "every sample,", "docs/results"),
        ("pages", "tables, figures,", "sentences"),
    ),
}


def setup() -> str:
    def boxed(
        d: Drawing, x: float, y: float, width: float, words: tuple[str, ...], style: str
    ) -> None:
        d.box(x, y, width, 58, style)
        name, *more = words
        d.text(x + width / 2, y + 18, name, TEXT, "middle", bold=True)
        for i, line in enumerate(more):
            d.text(x + width / 2, y + 34 + 14 * i, line, SMALL, "middle")

    def wide(d: Drawing) -> None:
        d.box(1, 1, 104, 134)
        d.text(53, 62, "the code", TEXT, "middle", bold=True)
        d.text(53, 78, "systems/", SMALL, "middle")
        for row, (style, path) in enumerate(MACHINES.items()):
            for column, words in enumerate(path):
                x, y = 150 + 195 * column, 1 + 76 * row
                boxed(d, x, y, 150, words, style)
                d.arrow(x - 44, y + 29, x - 2, y + 29)

    def narrow(d: Drawing) -> None:
        d.box(1, 1, 338, 34)
        d.text(170, 22, "the code, systems/", TEXT, "middle", bold=True)
        for column, (style, path) in enumerate(MACHINES.items()):
            for row, words in enumerate(path):
                x, y = 1 + 178 * column, 60 + 84 * row
                boxed(d, x, y, 160, words, style)
                d.arrow(x + 80, y - 25, x + 80, y - 2)

    alt = (
        "From the code one path leads over a laptop, whose interpreter runs the "
        "kernels, to tests; the other over a GPU, which measures, to records and pages."
    )
    return drawn(lambda d: (wide if d.wide else narrow)(d), alt, SETUP, SETUP_KEY)


# What a clock reads -------------------------------------------------------------------


def ranges() -> str:
    """Of a pass of five kernels, in hundredths of its wall time."""
    launched, kernels, start = 34, 5, 8

    def draw(d: Drawing) -> None:
        left = 132 if d.wide else 84
        scale = (d.width - left - 12) / 100
        names = {
            "CPU": "launches",
            "GPU": "kernels",
            "the clock": "the clock",
            "range with both waits": "range, 2 waits",
            "range without a wait": "range, no wait",
            "sum of kernels": "kernels' sum",
        }

        def bar(row: int, begin: float, length: float, style: str) -> None:
            d.box(left + begin * scale, 22 + 25 * row, length * scale, 17, style)

        for row, (name, short) in enumerate(names.items()):
            d.text(0, 35 + 25 * row, name if d.wide else short, SMALL)
        for i in range(kernels):
            bar(0, 1 + launched / kernels * i, launched / kernels - 2, "fill-grey")
            bar(1, start + 18 * i, 15, "fill-blue")
        bar(2, 0, 100, "fill-green")
        bar(3, 0, 100, "fill-green")
        bar(4, 0, launched, "fill-grey")
        for i in range(kernels):
            bar(5, 15.4 * i, 15, "fill-blue")
        for at, words, anchor in ((0, "wait", "start"), (100, "wait", "end")):
            x = left + at * scale
            d.line(x, 16, x, 118, "ink thick")
            d.text(x, 12, words, SMALL, anchor)

    alt = (
        "A range around both waits is as long as the clock's time, one without a wait "
        "as long as the launching, and the sum of the kernels is something else."
    )
    return drawn(draw, alt, WAITS, WAITS_KEY)


def clock() -> str:
    def draw(d: Drawing) -> None:
        left, right, launch = 40, d.width - 8, 0.045 * d.width
        kernel, start = (right - left - 1.4 * launch) / 5, left + launch
        for lane, y in (("CPU", 30), ("GPU", 60)):
            d.text(0, y + 14, lane, SMALL)
            d.line(left, y + 22, right, y + 22, "faint")
        for i in range(5):
            d.box(left + i * launch, 32, launch - 2, 18, "fill-grey")
            d.box(start + i * kernel, 60, kernel - 2, 20, "fill-blue")
        returned, done = left + 5 * launch, start + 5 * kernel - 2
        for x in (left, returned, done):
            d.line(x, 20, x, 96, "ink thick")
        d.text(left, 14, "start", SMALL)
        d.text(
            returned + 4,
            14,
            "without waiting, it stops here" if d.wide else "stops too early",
            SMALL,
        )
        d.text(done, 14 if d.wide else 112, "after synchronize, here", SMALL, "end")
        d.text(returned + 8, 46, "waits", SMALL)

    alt = (
        "The CPU queues five kernels in a fraction of the time in which the GPU runs "
        "them."
    )
    return drawn(draw, alt, CLOCK, CLOCK_KEY)


@dataclass(frozen=True)
class Part:
    """One operation of a block, and its matrix FLOPs."""

    name: str
    weight: str = ""
    flops: float = 0.0


def parts(size: str, context: int) -> list[Part]:
    """Of one block, in order. Their FLOPs are those of `forward_flops`."""
    model = SIZES[size]
    total = forward_flops(vocab_size=VOCAB_SIZE, **shape(size, context))
    projections, feed_forward, attention = (
        total[part] / model.num_layers
        for part in ("projections", "feed_forward", "attention")
    )
    square = f"{model.d_model:,} × {model.d_model:,}"
    wide = f"{model.d_model:,} × {model.d_ff:,}"
    return [
        Part("RMSNorm"),
        Part("q, k, v", f"3 × ({square})", 3 / 4 * projections),
        Part("Q Kᵀ, all heads", "", attention / 2),
        Part("mask, softmax"),
        Part("P V, all heads", "", attention / 2),
        Part("output, + input", square, projections / 4),
        Part("RMSNorm"),
        Part("w1 and w3", f"2 × ({wide})", 2 / 3 * feed_forward),
        Part("SiLU, product"),
        Part("w2, + input", wide, feed_forward / 3),
    ]


def block(size: str, context: int) -> str:
    listed = parts(size, context)
    whole = sum(part.flops for part in listed)
    most = max(part.flops for part in listed)

    def draw(d: Drawing) -> None:
        name, left = (150, 320) if d.wide else (100, 238)
        for i, part in enumerate(listed):
            y = 26 * i
            d.box(0, y + 1, name, 21, "fill-green" if part.flops else "faint")
            d.text(8, y + 16, part.name, d.size)
            if i:
                d.line(name / 2, y - 4, name / 2, y + 1, "ink")
            d.text(name + 8, y + 16, part.weight, d.size)
            if part.flops:
                length = (d.width - left - 44) * part.flops / most
                d.box(left, y + 4, length, 15, "fill-blue")
                share = percent(part.flops / whole)
                d.text(left + length + 5, y + 16, share, SMALL, bold=True)

    feed_forward = percent(sum(part.flops for part in listed[6:]) / whole)
    alt = (
        f"The three feed-forward matrices do {feed_forward} of the matrix FLOPs of a "
        f"block of {size} at context {context} and batch {BATCH}."
    )
    finding = BLOCK.format(share=feed_forward, size=size)
    key = BLOCK_KEY.format(layers=SIZES[size].num_layers, context=context)
    return drawn(draw, alt, finding, key)


# Which N x N matrices live when ------------------------------------------------------

OPERATIONS = ("Q Kᵀ", "scale", "mask", "− max", "exp", "divide", "P V")


@dataclass(frozen=True)
class Matrix:
    """One of the matrices with an entry for each pair of positions: the operation that
    makes it, and the last that finds it alive, by their place in `OPERATIONS`.
    """

    name: str
    short: str
    made: int
    last: int
    kept: bool = False


# `scores` in `scaled_dot_product_attention` names the masked ones until it returns.
HELD = (
    Matrix("products of q and k", "products", 0, 1),
    Matrix("scaled", "scaled", 1, 2),
    Matrix("masked", "masked", 2, 6),
    Matrix("less the row's maximum", "less max", 3, 4),
    Matrix("exponentials", "exp", 4, 5, kept=True),
    Matrix("probabilities P", "P", 5, 6, kept=True),
)


def alive(operation: int) -> int:
    """How many there are during an operation, where nothing is kept."""
    return sum(m.made <= operation <= m.last for m in HELD)


def matrices() -> str:
    most = max(map(alive, range(len(OPERATIONS))))

    def draw(d: Drawing) -> None:
        left = 170 if d.wide else 64
        step = (d.width - left - (40 if d.wide else 14)) / len(OPERATIONS)
        for i, name in enumerate(OPERATIONS):
            x = left + (i + 0.5) * step
            d.text(x, 14, name, SMALL, "middle")
            d.line(left + i * step, 22, left + i * step, 192, "faint")
            count = alive(i)
            d.text(x, 208, str(count), TEXT, "middle", bold=count == most)
        for i, m in enumerate(HELD):
            y = 28 + 27 * i
            d.text(0, y + 16, m.name if d.wide else m.short, d.size)
            start, end = left + m.made * step + 1, left + (m.last + 1) * step - 1
            if m.kept:
                d.box(end, y + 4, d.width - end - 2, 15, "fill-green")
            d.box(start, y + 2, end - start, 19, "fill-blue")
        d.text(0, 208, "alive, without a graph" if d.wide else "alive", SMALL)

    alt = (
        f"Without a graph at most {most} of the six matrices are alive at once; with "
        "one, the exponentials and the probabilities stay."
    )
    return drawn(draw, alt, MATRICES.format(most=most), MATRICES_KEY)


# The toy trace of docs/nsys.md --------------------------------------------------------

# From, to in microseconds: ranges and launches on the CPU, and kernels. A kernel has
# the number of its launch.
RANGES = {"forward": (0, 30), "backward": (31, 120)}
LAUNCHES = {1: (12, 17), 2: (22, 26), 3: (45, 49)}
KERNELS = {1: (20, 60), 2: (61, 70), 3: (71, 118)}
COLOURS = {"forward": "fill-blue", "backward": "fill-grey"}


def launched_in(number: int) -> str:
    """The range in which a kernel's launch began."""
    start = LAUNCHES[number][0]
    return next(name for name, (a, b) in RANGES.items() if a <= start < b)


def trace() -> str:
    def draw(d: Drawing) -> None:
        left = 44
        scale = (d.width - left - 4) / max(end for _, end in RANGES.values())

        def bar(times: tuple[int, int], y: float, style: str) -> float:
            start, end = (left + t * scale for t in times)
            d.box(start, y, end - start, 20, style)
            return (start + end) / 2

        for lane, y in (("range", 18), ("launch", 52), ("kernel", 106)):
            d.text(0, y + 15, lane, SMALL)
        for name, times in RANGES.items():
            d.text(bar(times, 18, "faint"), 33, name, SMALL, "middle")
        for number, times in LAUNCHES.items():
            style = COLOURS[launched_in(number)]
            launch = bar(times, 52, style)
            kernel = bar(KERNELS[number], 106, style)
            d.line(launch, 72, kernel, 106, "ink")
            d.text(kernel, 142, str(number), SMALL, "middle", bold=True)

    alt = (
        "Kernels 1 and 2 were launched in the forward range and kernel 3 in the "
        "backward range; kernel 2 runs while the CPU is in the backward range."
    )
    return drawn(draw, alt, TRACE, TRACE_KEY)

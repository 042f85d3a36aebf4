"""How FlashAttention works, drawn: what it writes to memory, the walk of a program with
its numbers, the products of its backward pass.

The numbers of the walk come from `online_softmax`, which a test holds to plain
attention.
"""

import math
from dataclasses import dataclass

from tools.render.drawing import SMALL, TEXT, Drawing, drawn, stepped


def fragments() -> dict[str, str]:
    """Every drawing by file name."""
    return {
        "first-forward-flow.md": forward_flow(),
        "first-forward-walk.md": forward_walk(),
        "first-causal-rows.md": causal_rows(),
        "first-products.md": products(),
        "first-causal-both.md": causal_both(),
    }


# The forward pass ---------------------------------------------------------------------


def forward_flow() -> str:
    """Which arrays plain attention and FlashAttention write to memory."""

    def draw(d: Drawing) -> None:
        plain_attention(d, 0, 0)
        flash_attention(d, *((380, 0) if d.wide else (0, 176)))

    return drawn(
        draw,
        "Plain attention writes the n by n matrices S and P to GPU memory and reads "
        "them back. FlashAttention keeps one tile of them on the chip: only q, k and v "
        "come in, only o and lse leave.",
        "FlashAttention writes no score to memory.",
        "A tile of queries (blue) stays on the chip, tiles of keys and values (grey) "
        "pass by, and one tile of the output (green) leaves. Dashed: the scores.",
    )


HALF = 340


def plain_attention(d: Drawing, left: float, top: float) -> None:
    """Three kernels, and what lies in memory between them."""
    d.text(left, top + 13, "Plain attention: at least three kernels", TEXT, bold=True)
    place(d, left, top + 22, 84, "GPU memory")
    for x, name in ((10, "Q"), (46, "K"), (260, "V"), (300, "O")):
        tensor(d, left + x, top + 48, name)
    for x, name in ((86, "S: n × n"), (174, "P: n × n")):
        d.box(left + x, top + 48, 62, 46, "orange dashed", name)
    for x, name in ((38, "q kᵀ"), (130, "softmax"), (236, "p v")):
        d.box(left + x, top + 132, 62, 24, "ink", name)
    for x, y, to_x, to_y in (
        (18, 96, 54, 131), (54, 96, 66, 131), (84, 131, 102, 95),
        (122, 95, 146, 131), (178, 131, 196, 95),
        (214, 95, 250, 131), (268, 96, 268, 131), (284, 131, 304, 96),
    ):  # fmt: skip
        d.arrow(left + x, top + y, left + to_x, top + to_y)


def flash_attention(d: Drawing, left: float, top: float) -> None:
    """One kernel, whose tiles of scores stay on the chip."""
    d.text(left, top + 13, "FlashAttention: one kernel", TEXT, bold=True)
    place(d, left, top + 22, 84, "GPU memory")
    for x, name, tile in (
        (28, "Q", "fill-blue"), (102, "K", "fill-grey"), (146, "V", "fill-grey"),
        (236, "O", "fill-green"), (294, "lse", "fill-green"),
    ):  # fmt: skip
        tensor(d, left + x, top + 48, name, tile)
    place(d, left, top + 140, 86, "")
    d.text(left + 8, top + 218, "on the chip", SMALL, style="note")
    for x, y, width, style, name in (
        (10, 150, 54, "fill-blue", "q tile"),
        (94, 150, 76, "fill-grey", "k, v tile"),
        (94, 182, 76, "orange dashed", "s, p tile"),
        (216, 150, 110, "fill-green", "m, l, a"),
    ):
        d.box(left + x, top + y, width, 24, style, name)
    for x, y, to_x, to_y in (
        (36, 95, 36, 149), (110, 95, 122, 149), (154, 95, 146, 149),
        (64, 166, 93, 190), (132, 174, 132, 181), (170, 192, 232, 175),
        (244, 149, 244, 95), (302, 149, 302, 95),
    ):  # fmt: skip
        d.arrow(left + x, top + y, left + to_x, top + to_y)
    for x, words in ((42, "once"), (158, "tile by tile"), (252, "once")):
        d.text(left + x, top + 130, words, SMALL, style="note")
    d.text(left + 178, top + 218, "overwritten by the next", SMALL, style="note")


def place(d: Drawing, left: float, top: float, height: float, name: str) -> None:
    d.box(left, top, HALF, height, "place")
    d.text(left + 8, top + 15, name, SMALL, style="note")


def tensor(d: Drawing, x: float, y: float, name: str, tile: str = "") -> None:
    """An array of n rows of d numbers, perhaps with one of its tiles."""
    d.box(x, y, 16, 46, "faint filled")
    if tile:
        d.box(x, y + 16, 16, 12, tile)
    d.text(x + 20, y + 12, name, SMALL)


@dataclass(frozen=True)
class Seen:
    """What a row of queries keeps after some tiles of keys, and by what it multiplied
    what it had before the last of them.
    """

    m: float
    l: float
    a: float
    shrink: float = 0.0


def online_softmax(s: list[float], v: list[float], tile: int) -> list[Seen]:
    """The state before the first tile and after each one, for one query and values of
    one number. Scores are in units of log 2, so that powers of two take the place of
    those of e.
    """
    seen = [Seen(m=-math.inf, l=0.0, a=0.0)]
    for j in range(0, len(s), tile):
        before = seen[-1]
        m = max(before.m, *s[j : j + tile])
        shrink = 2 ** (before.m - m)
        p = [2 ** (score - m) for score in s[j : j + tile]]
        gained = sum(x * y for x, y in zip(p, v[j : j + tile], strict=True))
        seen.append(
            Seen(m, shrink * before.l + sum(p), shrink * before.a + gained, shrink)
        )
    return seen


# Two queries and eight keys in tiles of two. The first query's maximum rises in the
# second tile and in the last, the second one's never after the first.
SCORES = (
    [1.0, 0.0, 2.0, 1.0, 2.0, 0.0, 3.0, 1.0],
    [3.0, 2.0, 1.0, 3.0, 0.0, 2.0, 2.0, 1.0],
)
VALUES = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0]
KEYS = 2
COLUMNS = ("shrink", "m", "l", "a", "o", "lse")


def number(x: float) -> str:
    """At most three digits after the point."""
    return f"{round(x, 3):g}".replace("inf", "∞").replace("-", "−")


def forward_walk() -> str:
    """The walk of one program along its tiles of keys, with m, l and a of two rows."""
    rows = [online_softmax(s, VALUES, KEYS) for s in SCORES]
    tiles, ends = len(VALUES) // KEYS, [result(seen[-1]) for seen in rows]

    def draw(d: Drawing) -> None:
        left = 96 if d.wide else 68
        cell = (d.width - left - 1) / len(VALUES)

        def values(keys: range, style: str) -> None:
            for j in keys:
                d.cell(left + cell * j, 20, cell, 24, style, f"{VALUES[j]:g}")

        def visited(t: int) -> None:
            keys = range(KEYS * t, KEYS * (t + 1))
            values(keys, "fill-grey")
            d.cell(left + cell * keys.start, 50, cell * KEYS, 52, "fill-blue")
            for row, s in enumerate(SCORES):
                for j in keys:
                    at = (left + cell * (j + 0.5), 67 + 26 * row)
                    d.text(*at, number(s[j]), SMALL, "middle")

        d.text(0, 36, "v", SMALL, style="note")
        for row in range(len(SCORES)):
            d.text(0, 67 + 26 * row, f"s, query {row}", SMALL, style="note")
            d.text(0, 153 + 26 * row, f"query {row}", SMALL, style="note")
        for i, name in enumerate(COLUMNS):
            d.text(column(d, left, i), 130, name, d.size, "middle", bold=True)
        for t in range(tiles):
            x = left + cell * KEYS * t
            d.text(
                x + cell * KEYS / 2, 12, f"tile {t + 1}", SMALL, "middle", style="note"
            )
            d.cell(x, 50, cell * KEYS, 52)
        values(range(len(VALUES)), "faint filled")
        with d.frame():
            for row, seen in enumerate(rows):
                state(d, left, seen[0], row)
        for t in range(tiles):
            with d.frame():
                visited(t)
                for row, seen in enumerate(rows):
                    state(d, left, seen[t + 1], row)
        with d.frame():
            visited(tiles - 1)
            for row, (seen, end) in enumerate(zip(rows, ends, strict=True)):
                state(d, left, seen[-1], row, *end)

    last, (o, lse) = rows[0][-1], ends[0]
    return stepped(
        draw,
        [
            "<b>Start.</b> No key has been seen: m = −∞, l = 0, a = 0, for each query.",
            *(sentence(t, rows[0][t], rows[0][t + 1]) for t in range(tiles)),
            f"<b>End.</b> One division per row: o = a / l = {number(last.a)} / "
            f"{number(last.l)} = {number(o)}. Saved beside it: lse = m + log₂ l = "
            f"{number(lse)}.",
        ],
        f"After four tiles of two keys, query 0 has m = {number(last.m)}, "
        f"l = {number(last.l)} and a = {number(last.a)}, so its output is {number(o)}: "
        "what softmax over all eight keys gives.",
        "Three numbers replace a row of scores.",
        "Scores exist only in the tile that is being visited (blue). They are given "
        "in units of log 2, so each power of e is one of 2: you can check every "
        "number. A value v is one number here, so a is one, too.",
    )


def column(d: Drawing, left: float, i: int) -> float:
    """The middle of a column of the table below the tiles."""
    return left + (i + 0.5) * (d.width - left) / len(COLUMNS)


def result(seen: Seen) -> tuple[float, float]:
    """o and lse of a row that has seen all of its keys."""
    return seen.a / seen.l, seen.m + math.log2(seen.l)


def state(d: Drawing, left: float, seen: Seen, row: int, *end: float) -> None:
    """The line of the table below for one query."""
    # Before the first tile there was nothing to shrink.
    shrunk = number(seen.shrink) if seen.l else "–"
    shown = (shrunk, *map(number, (seen.m, seen.l, seen.a, *end)))
    width = (d.width - left) / len(COLUMNS) - 4
    for i, words in enumerate(shown):
        x = column(d, left, i) - width / 2
        style = "fill-green" if 0 < i < 4 else "ink"
        d.box(x, 138 + 26 * row, width, 22, style, words)


def sentence(t: int, before: Seen, after: Seen) -> str:
    """What tile t did to query 0."""
    if t == 0:
        cause = f"The first maximum of query 0 is {number(after.m)}"
    elif after.m > before.m:
        cause = (
            f"The maximum of query 0 rises from {number(before.m)} to "
            f"{number(after.m)}, so what it has shrinks by "
            f"2<sup>{number(before.m)}−{number(after.m)}</sup> = {number(after.shrink)}"
        )
    else:
        cause = f"The maximum of query 0 stays {number(after.m)}, so nothing shrinks"
    gained_l = after.l - after.shrink * before.l
    gained_a = after.a - after.shrink * before.a
    return (
        f"<b>Tile {t + 1}.</b> {cause}. l = {number(after.shrink)} × "
        f"{number(before.l)} + {number(gained_l)} = {number(after.l)}, and "
        f"a = {number(after.shrink)} × {number(before.a)} + {number(gained_a)} = "
        f"{number(after.a)}."
    )


# Causal masks -------------------------------------------------------------------------

GRID = 6


def grid(d: Drawing, x: float, y: float, cell: float, causal: bool = True) -> None:
    """Tiles of the score matrix, queries down and keys across. Of a tile on the
    diagonal half of the scores are hidden; those above it hold none.
    """
    for i in range(GRID):
        for j in range(GRID):
            left, top = x + cell * j, y + cell * i
            seen = not causal or i > j
            d.cell(left, top, cell, cell, "fill-blue" if seen else "faint")
            if causal and i == j:
                d.triangle(left, top, cell, "fill-blue")


def outline(d: Drawing, x: float, y: float, width: float, height: float) -> None:
    """What one program visits."""
    d.cell(x, y, width, height, "frame-line")


def causal_rows() -> str:
    """What a program of the forward pass visits under a causal mask."""
    whole, left_out = GRID * GRID, GRID * (GRID - 1) // 2
    legend = (
        ("fill-blue", "every key is visible"),
        ("half", "diagonal: half is hidden"),
        ("faint", "never visited"),
        ("frame-line", "what one program visits"),
    )

    def draw(d: Drawing) -> None:
        cell = 28 if d.wide else 25
        side = GRID * cell
        right = 236 if d.wide else d.width - side - 2
        for x, name, tiles, causal in (
            (2, "no mask", whole, False),
            (right, "causal mask", whole - left_out, True),
        ):
            d.text(x, 13, name, TEXT, bold=True)
            d.text(x, 30, f"{tiles} of {whole} tiles", SMALL, style="note")
            grid(d, x, 40, cell, causal)
            outline(d, x, 40 + 3 * cell, (4 if causal else GRID) * cell, cell)
        for i, (style, words) in enumerate(legend):
            x, y = (2, side + 54 + 24 * i)
            if d.wide:
                x, y = right + side + 32, 48 + 32 * i
            d.cell(x, y, 18, 18, "faint" if style == "half" else style)
            if style == "half":
                d.triangle(x, y, 18, "fill-blue")
            d.text(x + 28, y + 13, words, d.size)

    return drawn(
        draw,
        "A program of the forward pass walks along one row of tiles up to the "
        f"diagonal; of {whole} tiles the {left_out} above it are never visited.",
        f"Under a causal mask {left_out} of {whole} tiles are never visited. The more "
        "tiles, the nearer that comes to half.",
        "Tiles of the score matrix: queries down, keys across.",
    )


def causal_both() -> str:
    """What the two programs of the backward pass visit."""
    down = ("A program owns", "a tile of keys", "and walks down.")
    along = ("Another owns", "a tile of queries", "and walks along.")
    told = (("dk and dv: a column", down, 2), ("dq: a row", along, 3))

    def draw(d: Drawing) -> None:
        cell = 30 if d.wide else 25
        side = GRID * cell
        for i, (title, words, at) in enumerate(told):
            x = i * (380 if d.wide else d.width - side - 2) + 2
            d.text(x, 13, title, TEXT, bold=True)
            grid(d, x, 24, cell)
            if i:
                outline(d, x, 24 + cell * at, cell * (at + 1), cell)
            else:
                height = cell * (GRID - at)
                outline(d, x + cell * at, 24 + cell * at, cell, height)
            for j, line in enumerate(words if d.wide else ()):
                d.text(x + side + 16, 80 + 20 * j, line, TEXT)

    return drawn(
        draw,
        "The program of dk and dv walks down a column of tiles, that of dq along a "
        "row.",
        "Under a causal mask, too, each gradient is summed by one program.",
        "Tiles of the score matrix, queries down and keys across, those on the "
        "diagonal half hidden by the causal mask; framed: what one program visits.",
    )


# The backward pass --------------------------------------------------------------------

WORDS = {
    "s": "s = q kᵀ",
    "dp": "dp = do vᵀ",
    "p": "exp(s − lse)",
    "ds": "p (dp − delta)",
    "dv": "dv += pᵀ do",
    "dk": "dk += dsᵀ q",
    "dq": "dq += ds k",
}
# Kernels, and what they compute of a tile, line by line.
COLUMN, ROW, ONE = "column", "row", "one"
KERNELS = {
    COLUMN: ("two passes: 4 products", "down a column of tiles"),
    ROW: ("and 3 more", "along a row of tiles"),
    ONE: ("one pass: 5 products", "down a column; all add to one dq"),
}
LINES = {
    COLUMN: (("s", "dp"), ("p", "ds"), ("dv", "dk")),
    ROW: (("s", "dp"), ("p", "ds"), ("", "dq")),
    ONE: (("s", "dp"), ("p", "ds"), ("dv", "dk", "dq")),
}
FLOWS = (("s", "p"), ("dp", "ds"), ("p", "ds"), ("p", "dv"), ("ds", "dk"), ("ds", "dq"))
# No products.
CHIPS = ("p", "ds")
STEPS = (
    (((COLUMN, "s"),), "<b>Product 1.</b> A program that owns a tile of keys takes a "
     "tile of queries and computes their scores again."),
    (((COLUMN, "p"), (COLUMN, "dp")), "<b>Product 2.</b> It has p from the saved lse, "
     "without a pass for the maximum, and multiplies for dp."),
    (((COLUMN, "ds"), (COLUMN, "dv")), "<b>Product 3.</b> dv is summed over the "
     "queries, so over this program's own walk down the column."),
    (((COLUMN, "dk"),), "<b>Product 4.</b> So is dk. But dq is summed over "
     "<em>keys</em>, which other programs own."),
    (((ROW, "s"),), "<b>Product 5.</b> A second kernel owns tiles of queries. It "
     "computes the same scores once more,"),
    (((ROW, "p"), (ROW, "dp")), "<b>Product 6.</b> and dp once more,"),
    (((ROW, "ds"), (ROW, "dq")), "<b>Product 7.</b> and sums dq along its own row. No "
     "program adds to what another one writes."),
    (tuple((ONE, name) for name in WORDS), "<b>Five.</b> One kernel needs only five "
     "products a tile if many programs add to the same dq: with atomics, in no fixed "
     "order, or <a href=\"flash_hopper.html#the-backward-pass-in-one-kernel\">in "
     "a fixed one</a>."),
)  # fmt: skip


def look(kernel: str, name: str) -> str:
    """Of what is done."""
    if name in CHIPS:
        return "ink"
    if (kernel, name) == (ONE, "dq"):
        return "orange dashed"
    return "fill-orange" if kernel == ROW and name != "dq" else "fill-blue"


def products() -> str:
    """Seven products in two passes against five in one, one after the other."""

    def draw(d: Drawing) -> None:
        # Where a kernel is drawn, and how wide.
        places = {COLUMN: (0, 0, 214), ROW: (234, 0, 214), ONE: (468, 0, 250)}
        if not d.wide:
            places = {k: (0, 158 * i, d.width) for i, k in enumerate(places)}
        boxes = {
            (kernel, name): (x, y, width)
            for kernel, (left, top, whole) in places.items()
            for line, names in enumerate(LINES[kernel])
            for name, x, width in spaced(names, left, whole)
            for y in [top + 38 + 36 * line]
            if name
        }

        def box(of: tuple[str, str], style: str) -> None:
            x, y, width = boxes[of]
            d.box(x, y, width, 22, style)

        for kernel, (left, top, _) in places.items():
            title, told = KERNELS[kernel]
            d.text(left, top + 13, title, TEXT, bold=True)
            d.text(left, top + 29, told, SMALL, style="note")
        for of in boxes:
            box(of, "faint")
        done: list[tuple[str, str]] = []
        for now, _ in STEPS:
            done += now
            with d.frame():
                for of in done:
                    box(of, look(*of))
                for kernel, name in now if len(now) < len(WORDS) else ():
                    if name not in CHIPS:
                        box((kernel, name), "frame-line")
        for kernel in places:
            for start, end in FLOWS:
                if (kernel, start) in boxes and (kernel, end) in boxes:
                    flow(d, boxes[kernel, start], boxes[kernel, end])
        for (_, name), (x, y, width) in boxes.items():
            d.text(x + width / 2, y + 15, WORDS[name], SMALL, "middle")

    return stepped(
        draw,
        (says for _, says in STEPS),
        "In two passes a tile takes seven products, of which the two that compute s "
        "and dp again are done twice. One pass takes five, but then all programs add "
        "to the same dq.",
        "Seven products instead of five, and no sum is shared.",
        "Filled: matrix products of one tile; orange: those done a second time; "
        "dashed: a sum that many programs share.",
        opens=-1,
    )


def spaced(
    names: tuple[str, ...], left: float, whole: float
) -> list[tuple[str, float, float]]:
    """(name, x, width) of boxes that share a line."""
    gap = 14 if len(names) == 2 else 6
    width = (whole - gap * (len(names) - 1)) / len(names)
    return [(name, left + i * (width + gap), width) for i, name in enumerate(names)]


Box = tuple[float, float, float]


def flow(d: Drawing, a: Box, b: Box) -> None:
    """An arrow from one box to another one beside or below it."""
    if a[1] == b[1]:
        d.arrow(a[0] + a[2], a[1] + 11, b[0] - 1, b[1] + 11)
        return
    middle = b[0] + b[2] / 2
    # Straight down where that meets the box.
    start = min(max(middle, a[0] + 10), a[0] + a[2] - 10)
    d.arrow(start, a[1] + 22, middle, b[1] - 1)

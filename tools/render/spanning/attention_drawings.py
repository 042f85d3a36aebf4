"""How FlashAttention works, drawn: what it writes to memory, the walk of a program with
its numbers, the products of its backward pass.

The numbers of the walk come from `online_softmax`, which a test holds to plain
attention.
"""

import math
from dataclasses import dataclass

from tools.render.spanning.svg import (
    arrow,
    box,
    drawing,
    frame,
    rect,
    steps,
    svg,
    text,
)


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
    parts = [text(4, 13, "Plain attention: at least three kernels", "title", "start")]
    parts += [rect(0, 20, 360, 86, "place"), text(8, 34, "GPU memory", "note", "start")]
    parts += [tensor(x, 42, name) for x, name in ((8, "Q"), (46, "K"))]
    parts += [
        rect(x, 42, 54, 46, "waste") + text(x + 27, 69, words)
        for x, words in ((92, "S: n × n"), (188, "P: n × n"))
    ]
    parts += [tensor(x, 42, name) for x, name in ((278, "V"), (326, "O"))]
    chips = ((46, "q kᵀ"), (142, "softmax"), (258, "p v"))
    parts += [box(x, 126, 58, 22, words, "chip") for x, words in chips]
    ways = (
        ((16, 90, 62, 125), (54, 90, 72, 125), (88, 125, 108, 89)),
        ((128, 89, 152, 125), (186, 125, 204, 89)),
        ((226, 89, 272, 125), (284, 90, 288, 125), (302, 125, 332, 90)),
    )
    parts += [arrow(*way) for of_kernel in ways for way in of_kernel]

    parts += [text(4, 180, "FlashAttention: one kernel", "title", "start")]
    parts += [rect(0, 187, 360, 78, "place")]
    parts += [text(8, 201, "GPU memory", "note", "start")]
    parts += [
        tensor(x, 208, name, tile)
        for x, name, tile in (
            (30, "Q", "first"), (108, "K", "second"), (150, "V", "second"),
            (250, "O", "third"), (310, "lse", "third"),
        )
    ]  # fmt: skip
    parts += [rect(0, 294, 360, 74, "place chips")]
    parts += [text(8, 360, "on the chip", "note", "start")]
    parts += [
        box(12, 304, 50, 24, "q tile", "first"),
        box(104, 304, 72, 24, "k, v tile", "second"),
        box(104, 336, 72, 24, "s, p tile", "waste"),
        box(232, 304, 104, 24, "m, l, a", "third"),
    ]
    parts += [
        arrow(37, 237, 37, 303),
        arrow(116, 237, 126, 303),
        arrow(157, 237, 152, 303),
        arrow(62, 320, 103, 342),
        arrow(140, 328, 140, 335),
        arrow(176, 346, 250, 329),
        arrow(257, 303, 257, 239),
        arrow(316, 303, 316, 239),
    ]
    parts += [
        text(42, 284, "once", "note", "start"),
        text(164, 284, "tile after tile", "note", "start"),
        text(264, 284, "once", "note", "start"),
        text(186, 360, "overwritten by the next", "note", "start"),
    ]
    picture = svg(
        370,
        "Plain attention writes the n by n matrices S and P to GPU memory and reads "
        "them back. FlashAttention keeps one tile of them on the chip: only q, k and v "
        "come in, only o and lse leave.",
        *parts,
    )
    return drawing(
        picture,
        "FlashAttention writes no score to memory.",
        "A tile of queries (blue) stays on the chip, tiles of keys and values (orange) "
        "pass by, and what leaves is one tile of the output (green).",
    )


def tensor(x: float, y: float, name: str, tile: str = "") -> str:
    """An array of n rows of d numbers, perhaps with one of its tiles."""
    marked = rect(x, y + 16, 16, 12, tile) if tile else ""
    return rect(x, y, 16, 46, "array") + marked + text(x + 26, y + 12, name)


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
# Where a key's column begins, and its width; what the table below says, by column.
LEFT, CELL = 68, 36
COLUMNS = {"shrink": 86, "m": 135, "l": 184, "a": 233, "o": 282, "lse": 331}


def number(x: float) -> str:
    """At most three digits after the point."""
    return f"{round(x, 3):g}".replace("inf", "∞").replace("-", "−")


def forward_walk() -> str:
    """The walk of one program along its tiles of keys, with m, l and a of two rows."""
    rows = [online_softmax(s, VALUES, KEYS) for s in SCORES]
    tiles, ends = len(VALUES) // KEYS, [result(seen[-1]) for seen in rows]
    still = [text(4, 34, "v", "note", "start")]
    for row in range(len(SCORES)):
        still += [
            text(4, y + 26 * row, f"{name}query {row}", "note", "start")
            for name, y in (("s, ", 67), ("", 153))
        ]
    still += [text(x, 130, name, "title") for name, x in COLUMNS.items()]
    for t in range(tiles):
        x = LEFT + CELL * KEYS * t
        still += [text(x + CELL * KEYS / 2, 11, f"tile {t + 1}", "note")]
        still += [rect(x, 50, CELL * KEYS, 52, "array")]
    still += [values(range(len(VALUES)), "array")]
    frames = [frame(*(state(seen[0], i) for i, seen in enumerate(rows)))]
    says = ["<b>Start.</b> No key has been seen: m = −∞, l = 0, a = 0, for each query."]
    for t in range(tiles):
        keys = range(KEYS * t, KEYS * (t + 1))
        frames.append(
            frame(
                values(keys, "second"),
                rect(LEFT + CELL * keys.start, 50, CELL * KEYS, 52, "second"),
                *(
                    text(LEFT + CELL * (j + 0.5), 67 + 26 * row, number(s[j]))
                    for row, s in enumerate(SCORES)
                    for j in keys
                ),
                *(state(seen[t + 1], row) for row, seen in enumerate(rows)),
            )
        )
        says.append(sentence(t, rows[0][t], rows[0][t + 1]))
    both = zip(rows, ends, strict=True)
    frames.append(
        frame(*(state(seen[-1], i, *end) for i, (seen, end) in enumerate(both)))
    )
    last, (o, lse) = rows[0][-1], ends[0]
    says.append(
        f"<b>End.</b> One division per row: o = a / l = {number(last.a)} / "
        f"{number(last.l)} = {number(o)}. Saved beside it: lse = m + log l = "
        f"{number(lse)}."
    )
    picture = svg(
        192,
        f"After four tiles of two keys, query 0 has m = {number(last.m)}, "
        f"l = {number(last.l)} and a = {number(last.a)}, so its output is {number(o)}: "
        "what softmax over all eight keys gives.",
        *still,
        *frames,
    )
    return steps(
        picture,
        says,
        "Three numbers per row replace the row.",
        "Scores exist only in the tile that is being visited (orange). They are given "
        "in units of log 2, so each power of e is one of 2: you can check every "
        "number.",
    )


def values(keys: range, kind: str) -> str:
    """v of these keys."""
    cells = ((LEFT + CELL * j, f"{VALUES[j]:g}") for j in keys)
    return "".join(box(x, 18, CELL, 24, value, kind) for x, value in cells)


def result(seen: Seen) -> tuple[float, float]:
    """o and lse of a row that has seen all of its keys."""
    return seen.a / seen.l, seen.m + math.log2(seen.l)


def state(seen: Seen, row: int, *end: float) -> str:
    """The line of the table below for one query."""
    # Before the first tile there was nothing to shrink.
    shrunk = number(seen.shrink) if seen.l else "–"
    shown = (shrunk, *map(number, (seen.m, seen.l, seen.a, *end)))
    kinds = ("chip", "third", "third", "third", "first", "first")
    return "".join(
        box(x - 23, 138 + 26 * row, 46, 22, words, kind)
        for x, words, kind in zip(COLUMNS.values(), shown, kinds, strict=False)
    )


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


def causal_grid(
    x: float, y: float, cell: float, row: int = -1, column: int = -1
) -> str:
    """Tiles of the causal score matrix; what the program of `row` or `column` visits is
    framed.
    """
    kinds = {-1: "second", 0: "array", 1: "first"}
    parts = [
        rect(x + cell * j, y + cell * i, cell, cell, kinds[(i > j) - (i == j)])
        for i in range(GRID)
        for j in range(GRID)
    ]
    if row >= 0:
        parts.append(rect(x, y + cell * row, cell * (row + 1), cell, "frame-line"))
    if column >= 0:
        height = cell * (GRID - column)
        step = cell * column
        parts.append(rect(x + step, y + step, cell, height, "frame-line"))
    return "".join(parts)


def causal_rows() -> str:
    """What a program of the forward pass visits under a causal mask."""
    kinds = (
        ("first", "every key is visible"),
        ("second", "diagonal: half is hidden"),
        ("array", "never visited"),
        ("frame-line", "what one program visits"),
    )
    legend = [
        rect(196, 44 + 28 * i, 18, 18, kind)
        + text(222, 57 + 28 * i, words, "", "start")
        for i, (kind, words) in enumerate(kinds)
    ]
    picture = svg(
        188,
        "A program of the forward pass walks along one row of tiles up to the "
        "diagonal; tiles above the diagonal are never visited.",
        text(96, 12, "tiles of keys →", "note"),
        text(4, 34, "queries ↓", "note", "start"),
        causal_grid(4, 40, 24, row=3),
        *legend,
    )
    return drawing(picture, "A causal mask saves half of the tiles.")


def causal_both() -> str:
    """What the two programs of the backward pass visit."""
    picture = svg(
        176,
        "The program of dk and dv walks down a column of tiles, that of dq along a "
        "row.",
        text(84, 12, "dk and dv: a column", "title"),
        causal_grid(12, 24, 24, column=2),
        text(276, 12, "dq: a row", "title"),
        causal_grid(204, 24, 24, row=3),
    )
    return drawing(
        picture,
        "Each gradient is summed by one program.",
        "Tiles of the causal score matrix, queries down and keys across; framed: what "
        "one program visits.",
    )


# The backward pass --------------------------------------------------------------------

# name: (what the box says, x, y, width, how it looks when done).
TWO_PASSES = {
    "column s": ("s = q kᵀ", 2, 40, 84, "first"),
    "column dp": ("dp = do vᵀ", 90, 40, 84, "first"),
    "column p": ("exp(s − lse)", 2, 74, 84, "chip"),
    "column ds": ("p (dp − delta)", 90, 74, 84, "chip"),
    "dv": ("dv += pᵀ do", 2, 108, 84, "first"),
    "dk": ("dk += dsᵀ q", 90, 108, 84, "first"),
    "row s": ("s = q kᵀ", 186, 40, 84, "second"),
    "row dp": ("dp = do vᵀ", 274, 40, 84, "second"),
    "row p": ("exp(s − lse)", 186, 74, 84, "chip"),
    "row ds": ("p (dp − delta)", 274, 74, 84, "chip"),
    "dq": ("dq += ds k", 274, 108, 84, "first"),
}
ONE_PASS = {
    "one s": ("s = q kᵀ", 34, 190, 104, "first"),
    "one dp": ("dp = do vᵀ", 170, 190, 104, "first"),
    "one p": ("exp(s − lse)", 34, 224, 104, "chip"),
    "one ds": ("p (dp − delta)", 170, 224, 104, "chip"),
    "one dv": ("dv += pᵀ do", 2, 258, 104, "first"),
    "one dk": ("dk += dsᵀ q", 128, 258, 104, "first"),
    "one dq": ("dq += ds k", 254, 258, 104, "waste"),
}
FLOWS = (
    (44, 62, 44, 73), (132, 62, 132, 73), (86, 85, 90, 85), (44, 96, 44, 107),
    (132, 96, 132, 107), (228, 62, 228, 73), (316, 62, 316, 73), (270, 85, 274, 85),
    (316, 96, 316, 107), (86, 212, 86, 223), (222, 212, 222, 223), (138, 235, 169, 235),
    (54, 246, 54, 257), (190, 246, 190, 257), (264, 246, 274, 257),
)  # fmt: skip
STEPS = (
    (("column s",), "<b>Product 1.</b> A program that owns a tile of keys takes a tile "
     "of queries and computes their scores again."),
    (("column p", "column dp"), "<b>Product 2.</b> It has p from the saved lse, "
     "without a pass for the maximum, and multiplies for dp."),
    (("column ds", "dv"), "<b>Product 3.</b> dv is summed over the queries, so over "
     "this program's own walk down the column."),
    (("dk",), "<b>Product 4.</b> So is dk. But dq is summed over <em>keys</em>, which "
     "other programs own."),
    (("row s",), "<b>Product 5.</b> A second kernel owns tiles of queries. It computes "
     "the same scores once more,"),
    (("row p", "row dp"), "<b>Product 6.</b> and dp once more,"),
    (("row ds", "dq"), "<b>Product 7.</b> and sums dq along its own row. No program "
     "adds to what another one writes."),
    (tuple(ONE_PASS), "<b>Five.</b> One kernel would do with five products a tile, if "
     "many programs could add to the same dq: with atomics, in no fixed order, or "
     "<a href=\"flash_hopper.html#the-backward-pass-in-one-kernel\">in a fixed "
     "one</a>."),
)  # fmt: skip


def products() -> str:
    """Seven products in two passes against five in one, one after the other."""
    boxes = TWO_PASSES | ONE_PASS

    def outline(name: str, kind: str) -> str:
        _, x, y, width, _ = boxes[name]
        return rect(x, y, width, 22, kind)

    titles = [
        text(4, 14, "two passes: 4 products", "title", "start"),
        text(4, 29, "down a column of tiles", "note", "start"),
        text(186, 14, "and 3 more", "title", "start"),
        text(186, 29, "along a row of tiles", "note", "start"),
        text(4, 160, "one pass: 5 products", "title", "start"),
        text(
            4, 175, "down a column; dq lies in memory, shared by all", "note", "start"
        ),
    ]
    still = [*titles, *(outline(name, "array") for name in boxes)]
    done: list[str] = []
    frames = []
    for names, _ in STEPS:
        done += names
        filled = "".join(outline(name, boxes[name][-1]) for name in done)
        # What this step multiplies.
        now = [name for name in names if boxes[name][-1] != "chip"]
        frames.append(frame(filled, *(outline(name, "frame-line") for name in now)))
    picture = svg(
        284,
        "In two passes a tile takes seven products, of which the two that compute s "
        "and dp again are done twice. One pass takes five, but then all programs add "
        "to the same dq.",
        *still,
        *frames,
        *(arrow(*flow) for flow in FLOWS),
        *(text(x + w / 2, y + 14.8, says) for says, x, y, w, _ in boxes.values()),
    )
    return steps(
        picture,
        (says for _, says in STEPS),
        "Seven products instead of five, and nothing is shared.",
        "Filled: matrix products of one tile; orange: those done a second time; "
        "dashed: a sum that many programs share.",
    )

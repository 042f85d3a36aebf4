"""The walk of online softmax, drawn with its numbers, which come from `online_softmax`:
a test holds that to plain attention.
"""

import math
from dataclasses import dataclass

from tools.render.drawing import SMALL, Drawing, stepped


def fragments() -> dict[str, str]:
    return {"first-forward-walk.md": forward_walk()}


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

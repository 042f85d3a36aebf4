"""Drawings of pages that tell how to do something: what a cluster does with one
command, and how the exercises build on one another.
"""

from collections.abc import Iterable

from tools.render.drawing import SMALL, TEXT, Drawing, drawn


def fragments() -> dict[str, str]:
    """Each by the name of its file."""
    return {"cluster-path.md": cluster(), "exercises-path.md": exercises()}


# A cluster ----------------------------------------------------------------------------

# Rows of three experiments that are measured, lost with their job, and still missing.
JOBS = ((9, 0, 0), (5, 1, 3), (3, 0, 6))
DONE, LOST = "fill-blue", "orange dashed"


def cluster() -> str:
    """From the command to the records, and the way back of a job that was cut short."""

    def command(d: Drawing, x: float, y: float, width: float) -> None:
        d.box(x, y, width, 58)
        d.text(x + width / 2, y + 19, "one command", TEXT, "middle", bold=True)
        for i, words in enumerate(("on the login node,", "submits and follows")):
            d.text(x + width / 2, y + 36 + 14 * i, words, SMALL, "middle")

    def jobs(d: Drawing, x: float, y: float, width: float) -> None:
        d.text(x, y - 8, "a job for each experiment", TEXT, bold=True)
        cell = (width - 20) / sum(JOBS[0])
        for i, (done, lost, missing) in enumerate(JOBS):
            top = y + 42 * i
            d.box(x, top, width, 32, "place")
            styles = [DONE] * done + [LOST] * lost + ["faint filled"] * missing
            for j, style in enumerate(styles):
                d.box(x + 10 + cell * j, top + 8, cell - 4, 16, style)

    def records(d: Drawing, x: float, y: float, width: float) -> None:
        d.text(x, y - 8, "records", TEXT, bold=True)
        for i in range(len(JOBS)):
            d.box(x, y + 42 * i, width, 32, "fill-green", f"rows of job {i + 1}")

    def again(d: Drawing, x: float, y: float, down: float, words: str) -> None:
        """From below the jobs back to them."""
        d.text(x, y + down, words, SMALL, style="note")

    lost = "dashed: cut short by a time limit; queued again, it goes on from that row"

    def draw(d: Drawing) -> None:
        if d.wide:
            command(d, 1, 60, 150)
            d.arrow(153, 89, 194, 89)
            jobs(d, 196, 26, 330)
            for i in range(len(JOBS)):
                d.arrow(528, 42 + 42 * i, 569, 42 + 42 * i)
            records(d, 571, 26, 148)
            again(d, 196, 26, 136, lost)
        else:
            command(d, 80, 1, 180)
            d.arrow(170, 61, 170, 82)
            jobs(d, 1, 108, 218)
            for i in range(len(JOBS)):
                d.arrow(221, 124 + 42 * i, 240, 124 + 42 * i)
            records(d, 242, 108, 97)
            again(d, 1, 108, 136, "dashed: cut short; queued again,")
            again(d, 1, 108, 151, "the job goes on from that row")

    return drawn(
        draw,
        "One command submits a job for each experiment; each row is kept in its record "
        "as soon as it is measured, and a job that is cut short goes on from the row "
        "that it lost.",
        "A job that is cut short loses one row, or those that were taking turns.",
        "A square is a row: filled where it is measured and kept, empty where it is "
        "still to come.",
    )


# The exercises ------------------------------------------------------------------------

EXERCISES = ("weighted sum", "row softmax", "online softmax", "forward loop", "dQ loop")
ADDS = (
    ("tiles, and what", "lies outside"),
    ("a maximum,", "then a sum"),
    ("both at once,", "tile by tile"),
    ("scores in tiles,", "o beside them"),
    ("scores again,", "for a gradient"),
)
# Numbers of a row, and of a tile.
ROW, TILE = 8, 4


def exercises() -> str:
    """What each kernel walks along: one after the other, each with one idea more."""

    def walk(d: Drawing, x: float, y: float, width: float, at: int) -> None:
        """A row of numbers in tiles, or tiles of scores; the program is at one."""
        cell = width / ROW
        if at < 3:
            numbers: Iterable[int] = range(ROW)
            tile = ROW if at == 1 else TILE
            for j in numbers:
                outside = at < 2 and j == ROW - 1
                style = "dashed" if outside else "faint filled"
                d.cell(x + cell * j, y + 18, cell, 18, style)
            d.cell(x, y + 18, cell * tile, 18, "fill-blue")
            if tile < ROW:
                d.arrow(x + cell * tile + 3, y + 27, x + width - 3, y + 27)
            return
        size, row = width / 4, 1
        for i in range(3):
            for j in range(4):
                d.cell(x + size * j, y + 18 * i, size, 18, "faint filled")
        style = "fill-blue" if at == 3 else "fill-grey"
        d.cell(x, y + 18 * row, size, 18, style)
        d.arrow(x + size + 3, y + 18 * row + 9, x + width - 3, y + 18 * row + 9)

    def draw(d: Drawing) -> None:
        for i, (name, adds) in enumerate(zip(EXERCISES, ADDS, strict=True)):
            if d.wide:
                x, y, width = 148 * i, 0.0, 116.0
                d.text(x, y + 13, f"{i + 1} {name}", TEXT, bold=True)
                walk(d, x + 1, y + 26, width, i)
                for j, words in enumerate(adds):
                    d.text(x, y + 98 + 15 * j, words, SMALL, style="note")
                if i:
                    d.arrow(x - 27, y + 53, x - 4, y + 53)
            else:
                y = 72.0 * i
                d.text(0, y + 13, f"{i + 1} {name}", TEXT, bold=True)
                for j, words in enumerate(adds):
                    d.text(0, y + 32 + 15 * j, words, SMALL, style="note")
                walk(d, 180, y + 3, 150, i)
                if i:
                    d.arrow(255, y - 12, 255, y + (18 if i < 3 else 1))

    return drawn(
        draw,
        "Five kernels: a sum in tiles, a softmax of a whole row, one tile by tile, the "
        "loop of the forward pass, and that of dQ in the backward pass.",
        "Each exercise adds one idea to the one before it.",
        "What a program holds is filled, and the arrow is its way.",
    )

"""What happens at once on a streaming multiprocessor, drawn: the looks of the models of
`hopper_models`.
"""

from tools.render.drawing import SMALL, TEXT, Drawing, drawn, stepped
from tools.render.spanning.hopper_models import (
    HEADS,
    LANES,
    PROGRAMS,
    READERS,
    SCRIPT,
    WALK_SAYS,
    Busy,
    Ring,
    played,
    tiles_done,
    timeline,
    walk,
)


def fragments() -> dict[str, str]:
    """Every drawing by file name."""
    return {
        "ladder-pipelining.md": pipelining(),
        "hopper-roles.md": roles(),
        "hopper-ring.md": ring(),
        "hopper-walk.md": ordered_walk(),
    }


# What a tile needs of the units ------------------------------------------------------

# Clocks that are drawn.
UNTIL = 4608
STYLES = {-1: "fill-green", 0: "fill-blue", 1: "fill-grey"}
NAMES = {"S": "S", "P V": "PV", "exp": "exp"}


def lanes(d: Drawing, y: float, title: str, found: list[Busy]) -> None:
    """One timeline: a lane for each unit."""
    left = 100 if d.wide else 84
    right = d.width - 2
    scale = (right - left) / UNTIL
    d.text(0, y + 12, title, TEXT, bold=True)
    for lane, unit in enumerate(LANES):
        top = y + 20 + 25 * lane
        d.text(0, top + 15, unit, d.size)
        d.box(left, top, right - left, 21, "place")
        for busy in found:
            if busy.unit == unit:
                width = (min(busy.end, UNTIL) - busy.start) * scale
                name = NAMES.get(busy.what, "")
                fits = width > 7 * len(name) and busy.end <= UNTIL
                x, style = left + busy.start * scale, STYLES[busy.group]
                d.box(x, top, width, 21, style, name if fits else "")


def compared(
    titles: tuple[str, str],
    shown: tuple[list[Busy], list[Busy]],
    alt: str,
    finding: str,
    key: str,
) -> str:
    """Two timelines, one above the other."""

    def draw(d: Drawing) -> None:
        for i, (title, found) in enumerate(zip(titles, shown, strict=True)):
            lanes(d, 108 * i, title, found)
        d.text(100 if d.wide else 84, 216, "time →", SMALL, style="note")

    return drawn(draw, alt, finding, key)


def pipelining() -> str:
    """One group of warps, whose tiles come when they are needed, or ahead."""
    alone, ahead = timeline(1, 1, UNTIL), timeline(1, 3, UNTIL)
    counts = tiles_done(alone, UNTIL), tiles_done(ahead, UNTIL)
    return compared(
        ("One stage: load, multiply, exponentiate", "Three stages"),
        (alone, ahead),
        f"With one stage a group of warps finishes {counts[0]} tiles in the time in "
        f"which it finishes {counts[1]} with three, since copies no longer stand "
        "between products.",
        f"{counts[1]} tiles instead of {counts[0]}: copies move out of the way.",
        "One group of warps. Products and exponentials are to scale for 64 queries, "
        "128 keys and head dimension 64; copies are not. What is left idle: products "
        "and exponentials still wait for each other.",
    )


def roles() -> str:
    """The same units without roles and with them."""
    without, with_roles = timeline(1, 3, UNTIL), timeline(2, 3, UNTIL)
    counts = tiles_done(without, UNTIL), tiles_done(with_roles, UNTIL)
    return compared(
        ("One group of warps, copies ahead", "A producer and two consumers"),
        (without, with_roles),
        f"One group of warps leaves tensor cores and exponentials idle in turn and "
        f"finishes {counts[0]} tiles. Two groups out of step can keep both units busy, "
        f"and finish {counts[1]}.",
        "Two groups out of step can keep both units busy.",
        "One SM. Blue and grey: two groups with 64 queries each; green: copies for "
        "both. Lengths of products and exponentials follow from the rates, those of "
        "copies do not.",
    )


# The ring ----------------------------------------------------------------------------


def ring() -> str:
    """A producer and two consumers at a ring of three stages."""

    def draw(d: Drawing) -> None:
        d.text(0, 12, "stages in shared memory", SMALL, style="note")
        for seen in played():
            with d.frame():
                stages(d, seen.ring)
                workers(d, seen.does)

    return stepped(
        draw,
        (says for _, says in SCRIPT),
        "Tiles pass through three stages. A consumer waits where a tile has not "
        "arrived, the producer where a stage has not been read; each barrier's bit "
        "turns when its phase ends.",
        "Two barriers and one bit each keep the ring in order.",
        "Dashed: on its way; filled: arrived; framed: who waits. This is `fill`, "
        "`wait_full` and `release_stage` of the listing.",
    )


def stages(d: Drawing, now: Ring) -> None:
    width, step = third(d)
    for stage, tile in enumerate(now.holds):
        x, full, empty = step * stage + 1, now.full[stage], now.empty[stage]
        there = tile is not None and now.await_full(tile)
        style = "faint" if tile is None else "fill-blue" if there else "blue dashed"
        name = "" if tile is None else f"tile {tile}"
        d.box(x, 20, width, 96, "place")
        d.box(x + 8, 28, width - 16, 26, f"{style} filled", name, d.size)
        d.text(x + 10, 74, f"full: bit {full.ended & 1}", SMALL)
        d.text(x + 10, 90, f"empty: bit {empty.ended & 1}", SMALL)
        read = f"read by {empty.arrived} of {READERS}"
        d.text(x + 10, 106, read, SMALL, style="note")


def workers(d: Drawing, state: dict[str, str]) -> None:
    names = {"producer": "producer", "A": "consumer A", "B": "consumer B"}
    width, step = third(d)
    for i, (who, name) in enumerate(names.items()):
        x = step * i + 1
        style = "frame-line" if "waits" in state[who] else "faint"
        d.text(x + width / 2, 142, name, d.size, "middle", bold=True)
        d.box(x, 150, width, 26, style, state[who])


def third(d: Drawing) -> tuple[float, float]:
    """The width of one of three boxes, and the step to the next."""
    gap = 18 if d.wide else 6
    width = (d.width - 2 - 2 * gap) / 3
    return width, width + gap


# The ordered walk --------------------------------------------------------------------


def ordered_walk() -> str:
    """Which tile of dQ each program adds to in each step, and as which partial."""

    def draw(d: Drawing) -> None:
        cell, top = (50 if d.wide else 24), 42
        lefts = (104, 436) if d.wide else (80, 218)

        def place(head: int, tile: int, program: int) -> tuple[float, float]:
            return lefts[head] + cell * tile, top + 24 * program

        for head, title in enumerate(HEADS):
            left = lefts[head]
            d.text(left, 12, title, TEXT if d.wide else SMALL, bold=True)
            for tile in range(PROGRAMS):
                x = left + cell * (tile + 0.5)
                d.text(x, 34, str(tile), SMALL, "middle", style="note")
            if d.wide or not head:
                d.text(left - 6, 34, "dQ", SMALL, "end", style="note")
        for program in range(PROGRAMS):
            at = place(0, 0, program)[1] + 16
            d.text(0, at, f"program {program}", SMALL, style="note")
            for head in range(len(HEADS)):
                for tile in range(PROGRAMS):
                    d.cell(*place(head, tile, program), cell, 24)
        for now in range(PROGRAMS + 1):
            with d.frame():
                for program in range(PROGRAMS):
                    done = walk(program)[: now + 1]
                    for step, (head, tile, order) in enumerate(done):
                        style = "fill-blue" if step == now else "ink"
                        spot = place(head, tile, program)
                        d.cell(*spot, cell, 24, style, str(order), d.size)

    return stepped(
        draw,
        WALK_SAYS,
        "Five programs, six steps, two heads. In each step every program adds to "
        "another tile of dQ, and the partials of a tile come one step apart, in a "
        "fixed order.",
        "Each program comes when it is its turn, so nobody waits.",
        "Rows: programs, one on each SM. Columns: tiles of dQ. A number: how many "
        "partials the tile holds already. Blue: this step. A step of the drawing "
        "covers 128 queries; the kernel takes it as two steps of 64.",
    )

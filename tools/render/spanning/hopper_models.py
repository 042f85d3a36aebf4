"""What happens at once on a streaming multiprocessor, as three small models: the units
that a tile needs, the ring of stages, and the walks of the backward pass; and what a
reader is told of each. `hopper_drawings` says how they look.

Tests hold the ring's waits and the walks to the kernels of `systems.attention.hopper`.
"""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field

from systems.formulas.costs import EXPONENTIALS_PER_CLOCK

# What a tile needs of the units ------------------------------------------------------

# A group of four warps has 64 queries; a tile 128 keys; the head dimension is 64.
QUERIES, KEYS, D = 64, 128, 64
# Tensor cores of an SM of Hopper, 16-bit factors: its data sheet's rate over its SMs
# and clock.
FLOPS_PER_CLOCK = 4096
PRODUCT = 2 * QUERIES * KEYS * D // FLOPS_PER_CLOCK
SOFTMAX = QUERIES * KEYS // EXPONENTIALS_PER_CLOCK
# No rate of ours: long enough to be seen.
COPY = 384
LANES: tuple[str, ...] = ("copy", "tensor cores", "exponentials")


@dataclass(frozen=True)
class Busy:
    """A unit works for a group on a tile, from one clock to another."""

    unit: str
    what: str
    group: int
    tile: int
    start: int
    end: int


def timeline(groups: int, stages: int, until: int) -> list[Busy]:
    """What the units do up to a clock. Each does one thing at a time, for whoever asks
    first; a group's S, exponentials and P V of a tile follow one another. A tile may be
    copied once all groups have finished the one that had its stage.
    """
    done: list[Busy] = []
    free = dict.fromkeys(LANES, 0)
    ready = [0] * groups
    at = [(0, 0)] * groups
    finished: dict[int, list[int]] = {}
    arrived: list[int] = []
    parts = (("tensor cores", "S", PRODUCT), ("exponentials", "exp", SOFTMAX))
    parts += (("tensor cores", "P V", PRODUCT),)
    while True:
        tile = len(arrived)
        gone = finished.get(tile - stages, [])
        if tile < stages or len(gone) == groups:
            start = max(free["copy"], *gone, 0) if gone else free["copy"]
            free["copy"] = start + COPY
            arrived.append(free["copy"])
            done.append(Busy("copy", "k, v", -1, tile, start, free["copy"]))
            continue
        waiting = []
        for group, (tile, part) in enumerate(at):
            if tile < len(arrived):
                unit, _, _ = parts[part]
                start = max(free[unit], ready[group], arrived[tile])
                waiting.append((start, group))
        start, group = min(waiting)
        if start >= until:
            return [busy for busy in done if busy.start < until]
        tile, part = at[group]
        unit, what, cycles = parts[part]
        free[unit] = ready[group] = start + cycles
        done.append(Busy(unit, what, group, tile, start, start + cycles))
        at[group] = (tile, part + 1) if part < 2 else (tile + 1, 0)
        if part == 2:
            finished.setdefault(tile, []).append(start + cycles)


def tiles_done(found: Iterable[Busy], until: int) -> int:
    """Tiles that some group has finished."""
    return sum(busy.what == "P V" and busy.end <= until for busy in found)


# The ring ----------------------------------------------------------------------------

STAGES, READERS = 3, 2


@dataclass
class Barrier:
    """As `mbarrier`: a phase ends when all have arrived, and its bit turns. Who waits
    names the bit of a phase, and passes once that phase has ended.
    """

    count: int
    ended: int = 0
    arrived: int = 0

    def arrive(self) -> None:
        self.arrived += 1
        if self.arrived == self.count:
            self.ended, self.arrived = self.ended + 1, 0

    def passes(self, bit: int) -> bool:
        return self.ended & 1 != bit


@dataclass
class Ring:
    """The ring of `systems.attention.hopper.forward`, with the tile that each stage
    holds: its four operations wait by the same bits.
    """

    full: list[Barrier] = field(
        default_factory=lambda: [Barrier(1) for _ in range(STAGES)]
    )
    empty: list[Barrier] = field(
        default_factory=lambda: [Barrier(READERS) for _ in range(STAGES)]
    )
    holds: list[int | None] = field(default_factory=lambda: [None] * STAGES)

    def fill(self, i: int) -> bool:
        """The producer starts the copy of tile i, if its stage is empty."""
        if not self.empty[i % STAGES].passes((i // STAGES & 1) ^ 1):
            return False
        self.holds[i % STAGES] = i
        return True

    def arrives(self, i: int) -> None:
        """The copy engine reports that tile i is there."""
        self.full[i % STAGES].arrive()

    def await_full(self, i: int) -> bool:
        """Whether a consumer that wants tile i may read it."""
        return self.full[i % STAGES].passes(i // STAGES & 1)

    def release(self, i: int) -> None:
        """A consumer has read tile i."""
        self.empty[i % STAGES].arrive()


# What happens, as (who and what, tile), and what a reader is told of it.
SCRIPT = (
    ((("fill", 0),), "The producer starts the copy of tile 0. Nobody has used stage 0, "
     "so its <em>empty</em> barrier lets it pass."),
    ((("fill", 1), ("fill", 2)), "Without waiting for tile 0 it starts tiles 1 and 2: "
     "all that the ring has room for."),
    ((("A reads", 0),), "<b>A stalls.</b> It needs tile 0, which is still on its "
     "way: the bit of <em>full</em> is 0."),
    ((("arrives", 0),), "Tile 0 has arrived. The copy engine tells <em>full</em>, "
     "whose phase ends: its bit turns to 1."),
    ((("A reads", 0), ("B reads", 0)), "Both consumers read tile 0, each for its own "
     "64 queries."),
    ((("arrives", 1), ("arrives", 2)), "Tiles 1 and 2 are there before anyone asks for "
     "them. Such waits cost nothing."),
    ((("A releases", 0), ("A reads", 1)), "A has read tile 0 and tells "
     "<em>empty</em> of stage 0: one of two. It goes on with tile 1."),
    ((("fill", 3),), "<b>The producer stalls.</b> Tile 3 belongs into stage 0, which B "
     "still reads. The bit of <em>empty</em> is 0, and it waits for a 1."),
    ((("A releases", 1), ("A reads", 2), ("A releases", 2), ("A reads", 3)), "<b>A "
     "stalls, too:</b> tile 3 is not there. <em>Full</em> of stage 0 says 1, but of "
     "tile 0. Tile 3 is of the second round, so A waits for a 0. Without the bit it "
     "would read tile 0 again."),
    ((("B releases", 0), ("B reads", 1)), "B has read tile 0. The phase of "
     "<em>empty</em> ends, and its bit turns to 1."),
    ((("fill", 3),), "So the producer may overwrite tile 0 with tile 3."),
    ((("arrives", 3), ("A reads", 3)), "Tile 3 arrives, the bit of <em>full</em> turns "
     "to 0, and A goes on. One bit is enough, since nobody can be two rounds ahead of "
     "another."),
)  # fmt: skip


@dataclass(frozen=True)
class Seen:
    """The ring after some of the script, and what each warp does."""

    ring: Ring
    does: dict[str, str]


def played() -> list[Seen]:
    """After each step of the script."""
    now, found = Ring(), []
    does = {"producer": "", "A": "", "B": ""}
    for actions, _ in SCRIPT:
        for what, tile in actions:
            who, _, verb = what.rpartition(" ")
            if verb == "reads":
                may = now.await_full(tile)
                does[who] = f"reads tile {tile}" if may else f"waits for tile {tile}"
            elif verb == "releases":
                now.release(tile)
            elif verb == "fill":
                may = now.fill(tile)
                does["producer"] = f"{'copies' if may else 'waits to copy'} tile {tile}"
            else:
                now.arrives(tile)
        found.append(Seen(deepcopy(now), dict(does)))
    return found


# The ordered walk --------------------------------------------------------------------

PROGRAMS = 5
HEADS = ("First head: forwards", "Second: backwards")


def walk(program: int) -> list[tuple[int, int, int]]:
    """(head, tile of queries, partials that its dQ holds before) of each step of a
    program, in the backward pass in one.

    Two heads under a causal mask, in steps as long as the tiles of keys. As `get_item`
    and `get_tile` of `systems.attention.hopper.shift` have it.
    """
    late = PROGRAMS - 1 - program
    forwards = [(0, late + step, step) for step in range(PROGRAMS - late)]
    backwards = [
        (1, PROGRAMS - 1 - step, program) for step in range(PROGRAMS - program)
    ]
    return forwards + backwards


WALK_SAYS = (
    "<b>Step 1.</b> Each program starts at the queries beside its own keys, so each "
    "adds to another tile of dQ. All are the first there: 0.",
    "<b>Step 2.</b> Each moves on by one tile and meets a dQ that holds one partial: "
    "1. Program 0 had the last keys and is done with this head. It takes the first "
    "keys of the next and walks back.",
    "<b>Step 3.</b> Program 1 follows, one tile behind it. Nobody waits.",
    "<b>Step 4.</b> In each column the numbers rise by one a step: the order in which "
    "this tile of dQ is summed, in every run.",
    "<b>Step 5.</b> The program of the first keys has the longest way in the first "
    "head and the shortest in the second.",
    "<b>Step 6.</b> So all programs end together. A tile's partials came in a fixed "
    "order and one step apart.",
)

"""What is in memory while one of eight blocks is computed again, drawn for four ways to
choose what is kept.
"""

from systems.formulas.recomputation import inputs_kept
from tools.render.drawing import SMALL, Drawing, drawn

BLOCKS, SHOWN = 8, 4
FINDING = (
    "If blocks are computed again one by one, a single block is in memory instead of "
    "all; nesting keeps fewer inputs, too."
)
KEY = (
    "Shown while the gradient of block 4 is due. "
    "Filled: a block whose tensors are all in memory. Bar at its left: its input is. "
    "Empty: a block that keeps nothing; those after block 4 are done."
)


def ways() -> list[tuple[str, str, set[int], set[int]]]:
    """Name, short name, blocks in full, and blocks whose inputs are kept."""
    every = set(range(1, SHOWN + 1))
    return [
        ("nothing computed again", "nothing", every, {1}),
        ("every block by itself", "every block", {SHOWN}, every),
        ("runs of four", "runs of four", every, {1}),
        ("nested halves", "halves", {SHOWN}, waiting()),
        ("nested: all but the last", "all but last", {SHOWN}, {1, SHOWN}),
    ]


def waiting() -> set[int]:
    """Blocks whose inputs are kept by halving while block 4 is computed again."""
    first, size = 1, BLOCKS
    found = {first}
    while size > 1:
        size //= 2
        if first + size <= SHOWN:
            first += size
            found.add(first)
    assert len(found) == inputs_kept("halving", BLOCKS, SHOWN)
    return found


def kept() -> str:
    listed = ways()

    def draw(d: Drawing) -> None:
        left, right = (180, 150) if d.wide else (84, 0)
        step = (d.width - left - right - 4) / BLOCKS
        for i, (name, short, full, inputs) in enumerate(listed):
            y = 34 * i
            words = name if d.wide else short
            d.text(0, y + 19, words, d.size)
            for block in range(1, BLOCKS + 1):
                x = left + (block - 1) * step
                style = "fill-blue" if block in full else "faint"
                d.box(x + 6, y + 3, step - 10, 24, style)
                if block in inputs:
                    d.box(x, y + 1, 4, 28, "fill-ink")
            if d.wide:
                said = f"{counted(len(inputs), 'input')}, {counted(len(full), 'block')}"
                d.text(d.width - right + 8, y + 19, said, SMALL)

    told = "; ".join(
        f"{name}: {counted(len(inputs), 'input')} and {counted(len(full), 'block')}"
        for name, _, full, inputs in listed
    )
    alt = f"In memory while block 4 of 8 is due: {told}."
    return drawn(draw, alt, FINDING, KEY)


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number != 1 else ''}"

"""Tables of `triton_versions`: which of our kernels each Triton gets, and how much
longer than the oldest of them they take.
"""

from collections.abc import Callable
from statistics import median
from typing import Any

from systems.records.record import Record
from systems.records.summary import summarize
from tools.render.markdown import columns, milliseconds, per_device, table
from tools.render.rows import (
    MISSING,
    Cell,
    axis,
    cell,
    known,
    most,
    ran,
    say,
    span,
)
from tools.render.stems.flash_peers.rows import (
    SHAPE,
    quotient,
    quotients,
    shape_text,
)

# What "auto" chooses, and the plain kernels, which run with each.
OURS, PLAIN = "ours", "ours_triton"
PASSES = ("forward", "both")
PASS_NAMES = {"forward": "forward", "both": "forward + backward"}
CAPTIONS = {
    "table.md": "Which kernels run with each Triton by default, and their time over "
    "the oldest one's: the median of all shapes, and the range. In the last columns "
    "the same of the kernels for any GPU.",
    "shapes.md": "Each shape: milliseconds with the oldest Triton, and times as many "
    "with others. Where other kernels ran, they are named.",
}


def versions(record: Record | None) -> list[str]:
    """In the order of the grid, the oldest first."""
    return axis(record, "triton")


def with_oldest(record: Record | None, c: Cell) -> Cell:
    """The same row by the oldest Triton."""
    oldest = next(iter(versions(record)), "")
    return cell(record, **c.config | {"triton": oldest})


def over(record: Record | None, c: Cell, of: str) -> float:
    return quotient(c, with_oldest(record, c), of)


def rounds_apart(c: Cell, old: Cell, of: str) -> float:
    """The largest quotient of a round less the smallest."""
    if not (found := quotients(c, old, of)):
        return MISSING
    return max(found) - min(found)


def of_version(record: Record | None, version: str, name: str) -> list[Cell]:
    return ran(record, triton=version, implementation=name)


def kernels(found: list[Cell]) -> str:
    """The names of those that ran."""
    return ", ".join(sorted({c["ran"] for c in found}))


def usual(ratios: list[float]) -> str:
    """ "1.02 (0.98 to 1.10)"."""
    return f"{summarize(ratios).median:.2f} ({span(ratios)})" if ratios else ""


def fragments(records: list[Record]) -> dict[str, str]:
    return {
        "table.md": per_device(records, summary),
        "shapes.md": per_device(records, shapes),
    }


def summary(record: Record) -> str:
    """A line for each version."""
    lines = []
    for version in versions(record):
        line = [version]
        for name in (OURS, PLAIN):
            found = of_version(record, version, name)
            why = cell(record, triton=version, implementation=name).missing
            line += [kernels(found) or say(why)] if name == OURS else []
            line += [usual(known(over(record, c, of) for c in found)) for of in PASSES]
        lines.append(line)
    names = [PASS_NAMES[of] for of in PASSES]
    head = ["Triton", "by default", *names, *(f"any GPU: {name}" for name in names)]
    return table(head, lines, left=2, alike=["by default"])


def shapes(record: Record) -> str:
    """A line for each shape, kernels and pass; a column for each version."""
    oldest, *others = versions(record) or [""]
    first = [Cell(row) for row in record.rows if row.config.get("triton") == oldest]
    items = [(c, of) for c in first for of in PASSES]

    def asked(item: tuple[Cell, str]) -> str:
        return "default" if item[0].config["implementation"] == OURS else "any GPU"

    def with_version(version: str) -> Callable[[tuple[Cell, str]], Any]:
        def shown(item: tuple[Cell, str]) -> Any:
            c, of = item
            there = cell(record, **c.config | {"triton": version})
            ratio = over(record, there, of)
            other = there and c and there["ran"] != c["ran"]
            return f"{ratio:.2f}, {there['ran']}" if other else ratio

        return shown

    return columns(
        items,
        (SHAPE, lambda item: shape_text(item[0])),
        ("kernels", asked),
        ("ran", lambda item: item[0]["ran"]),
        ("pass", lambda item: PASS_NAMES[item[1]]),
        (f"{oldest}, ms", lambda item: item[0].ms(item[1]), milliseconds),
        *((version, with_version(version), "{:.2f}") for version in others),
        left=2,
    )


def facts(record: Record | None) -> dict[str, str]:
    """Times over the oldest Triton's: of both passes, where the same kernels ran and
    where others did; of the forward pass; and how far the rounds of a shape lie apart.
    """
    found = [c for v in versions(record)[1:] for c in ran(record, triton=v)]
    pairs = [(c, old) for c in found if (old := with_oldest(record, c))]
    same = [c for c, old in pairs if c["ran"] == old["ran"]]
    other = [c for c, old in pairs if c["ran"] != old["ran"]]
    chosen, plain = (
        [c for c in same if c.config["implementation"] == name]
        for name in (OURS, PLAIN)
    )
    apart = known(rounds_apart(c, old, of) for c, old in pairs for of in PASSES)
    middle = median(apart) if apart else MISSING
    # They took the longest, on an H200.
    newest = versions(record)[-2:]
    of_newest = [c for c in chosen if c.config["triton"] in newest]

    def times(cells: list[Cell], of: str) -> str:
        return span(over(record, c, of) for c in cells)

    return {
        "oldest": next(iter(versions(record)), "not measured"),
        "newest": " and ".join(newest) or "not measured",
        "chosen": times(chosen, "both"),
        "plain": times(plain, "both"),
        "other": times(other, "both") if other or not found else "none",
        **{
            f"forward_{d}": times(
                [c for c in of_newest if c.config["d"] == d], "forward"
            )
            for d in (64, 128)
        },
        "plain_forward": times(plain, "forward"),
        "rounds_apart": say(middle, "{:.2f}"),
        "rounds_apart_most": say(most(apart), "{:.2f}"),
    }

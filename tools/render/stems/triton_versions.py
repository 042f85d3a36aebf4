"""Tables of `triton_versions`: which of our kernels each Triton gets, and how much
longer than the oldest of them they take.
"""

from collections.abc import Callable
from typing import Any

from systems.records.record import Record
from systems.records.summary import summarize
from tools.render.markdown import columns, milliseconds, per_device, table
from tools.render.rows import Cell, axis, cell, known, most, ran, say, span
from tools.render.stems.flash_peers.rows import SHAPE, shape_text

# What "auto" chooses, and the plain kernels, which run with each.
OURS, PLAIN = "ours", "ours_triton"
PASSES = ("forward", "both")
CAPTIONS = {
    "table.md": "Which kernels run with each Triton, and their time over the oldest "
    "one's: the median of all shapes, and the range.",
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
    return c.ms(of) / with_oldest(record, c).ms(of)


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
    head = ["Triton", "kernels", *PASSES, *(f"plain, {of}" for of in PASSES)]
    return table(head, lines, left=2)


def shapes(record: Record) -> str:
    """A line for each shape, kernels and pass; a column for each version."""
    oldest, *others = versions(record) or [""]
    first = [Cell(row) for row in record.rows if row.config.get("triton") == oldest]
    items = [(c, of) for c in first for of in PASSES]

    def asked(item: tuple[Cell, str]) -> str:
        return "auto" if item[0].config["implementation"] == OURS else "plain"

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
        ("asked for", asked),
        ("ran", lambda item: item[0]["ran"]),
        ("pass", lambda item: item[1]),
        (f"{oldest}, ms", lambda item: item[0].ms(item[1]), milliseconds),
        *((version, with_version(version), "{:.2f}") for version in others),
        left=2,
    )


def facts(record: Record | None) -> dict[str, str]:
    """Times over the oldest Triton's: of both passes, where the same kernels ran and
    where others did; and the forward pass that became slower than any other, of which
    shape and with which Triton.
    """
    found = [c for v in versions(record)[1:] for c in ran(record, triton=v)]
    pairs = [(c, old) for c in found if (old := with_oldest(record, c))]
    same = [c for c, old in pairs if c["ran"] == old["ran"]]
    chosen, plain = (
        [c for c in same if c.config["implementation"] == name]
        for name in (OURS, PLAIN)
    )
    other = [c for c, old in pairs if c["ran"] != old["ran"]]
    forward = [(over(record, c, "forward"), c) for c in chosen]
    longest = most(ratio for ratio, _ in forward)
    slowest = next((c for ratio, c in forward if ratio is longest), None)
    return {
        "oldest": next(iter(versions(record)), "not measured"),
        "chosen": span(over(record, c, "both") for c in chosen),
        "plain": span(over(record, c, "both") for c in plain),
        "other": span(over(record, c, "both") for c in other)
        if other or not found
        else "none",
        "forward": say(longest, "{:.2f}"),
        "forward_shape": shape_text(slowest) if slowest else "not measured",
        "forward_triton": slowest.config["triton"] if slowest else "not measured",
    }

"""A kernel's grid, tiles and offsets, drawn for the weighted sum."""

from tools.render.spanning.svg import arrow, box, drawing, rect, svg, text


def fragments() -> dict[str, str]:
    """Every drawing by file name."""
    return {
        "first-grid.md": weighted_sum_grid(),
        "first-offsets.md": weighted_sum_offsets(),
    }


def weighted_sum_grid() -> str:
    """Programs, tiles and the ragged edge of 5 rows of 10 numbers."""
    rows, columns, tile_rows, tile_columns, cell, left, top = 5, 10, 2, 4, 20, 76, 50
    x = [
        rect(left + cell * j, top + cell * i, cell, cell, "array")
        for i in range(rows)
        for j in range(columns)
    ]
    outside = [
        rect(left + cell * j, top + cell * i, cell, cell, "outside")
        for i in range(6)
        for j in range(12)
        if i >= rows or j >= columns
    ]
    w = [rect(left + cell * j, 22, cell, 16, "second") for j in range(columns)]
    y = [rect(330, top + cell * i, cell, cell, "third") for i in range(rows)]
    tiles = [
        rect(left + cell * tile_columns * t, top + cell * tile_rows * program,
             cell * tile_columns, cell * tile_rows, "frame-line thin")
        for t in range(3)
        for program in range(3)
    ]  # fmt: skip
    first = rect(left, top + cell * tile_rows, cell * 4, cell * 2, "first")
    names = [
        text(
            4, top + cell * (2 * program + 1) + 4, f"program {program}", "note", "start"
        )
        for program in range(3)
    ]
    y_of = top + cell * 3
    picture = svg(
        196,
        "Three programs own two rows each and walk over three tiles of four columns. "
        "The last row and the last two columns of tiles lie outside of x and are "
        "masked.",
        text(left + 100, 14, "w", "title"),
        text(340, 42, "y", "title"),
        *w,
        *x,
        *outside,
        *y,
        first,
        *tiles,
        arrow(left + 84, y_of, left + 156, y_of),
        arrow(left + 164, y_of, left + 236, y_of),
        *names,
        rect(76, 176, 14, 14, "outside"),
        text(96, 187, "outside of x: masked, loaded as 0", "note", "start"),
    )
    return drawing(
        picture,
        "One program owns two rows and walks along them.",
        "x has 5 rows of 10 numbers, ROWS = 2 and COLUMNS = 4; blue: the first tile of "
        "program 1.",
    )


def weighted_sum_offsets() -> str:
    """The offsets of a tile of a 4 × 8 array."""
    cell, left, top = 36, 60, 38
    parts = []
    for i in range(4):
        parts.append(text(left - 8, top + 24 * i + 16, f"row {i}", "note", "end"))
        for j in range(8):
            inside = i >= 2 and j >= 4
            kind = "first" if inside else "array"
            x, y = left + cell * j, top + 24 * i
            parts.append(box(x, y, cell, 24, str(8 * i + j), kind))
    parts += [text(left + cell * (j + 0.5), 30, f"{j}", "note") for j in range(8)]
    picture = svg(
        140,
        "Rows 2 and 3 times the row stride of 8 plus columns 4 to 7 give the offsets "
        "20 to 23 and 28 to 31.",
        text(left + cell * 4, 13, "column", "note"),
        *parts,
    )
    return drawing(
        picture,
        "A tile is a start and two ranges.",
        "The offset of each number of a 4 × 8 array in memory; blue: the tile of rows "
        "2 and 3 and columns 4 to 7.",
    )

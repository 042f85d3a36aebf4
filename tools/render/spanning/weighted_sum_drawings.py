"""A kernel's grid, tiles and offsets, drawn for the weighted sum."""

from tools.render.drawing import SMALL, TEXT, Drawing, drawn


def fragments() -> dict[str, str]:
    """Every drawing by file name."""
    return {
        "first-grid.md": weighted_sum_grid(),
        "first-offsets.md": weighted_sum_offsets(),
    }


# Numbers of x, and of a tile.
ROWS, COLUMNS, TILE_ROWS, TILE_COLUMNS = 5, 10, 2, 4


def weighted_sum_grid() -> str:
    """Programs, tiles and the ragged edge of 5 rows of 10 numbers."""

    def draw(d: Drawing) -> None:
        left, top, high = 78, 48, 24
        cell = 46 if d.wide else 19
        tiles = -(-COLUMNS // TILE_COLUMNS)
        programs = -(-ROWS // TILE_ROWS)
        y_of = top + high * (TILE_ROWS + 1)
        d.text(left + cell * COLUMNS / 2, 12, "w", TEXT, "middle", bold=True)
        for j in range(COLUMNS):
            d.cell(left + cell * j, 18, cell, 16, "fill-grey")
        for i in range(programs * TILE_ROWS):
            for j in range(tiles * TILE_COLUMNS):
                outside = i >= ROWS or j >= COLUMNS
                style = "dashed" if outside else "faint"
                d.cell(left + cell * j, top + high * i, cell, high, style)
        width, height = cell * TILE_COLUMNS, high * TILE_ROWS
        d.cell(left, top + height, width, height, "fill-blue")
        for program in range(programs):
            name = f"program {program}"
            d.text(0, top + height * (program + 0.5) + 4, name, SMALL, style="note")
            for t in range(tiles):
                d.cell(
                    left + width * t, top + height * program, width, height, "ink thick"
                )
        for t in range(1, tiles):
            d.arrow(left + width * t + 5, y_of, left + width * (t + 1) - 5, y_of)
        right = left + width * tiles + 14
        d.text(right + cell / 2, top - 6, "y", TEXT, "middle", bold=True)
        for i in range(ROWS):
            d.cell(right, top + high * i, cell, high, "fill-green")
        bottom = top + height * programs + 12
        d.box(left, bottom, 14, 14, "dashed")
        told = "outside of x: masked, loaded as 0"
        d.text(left + 22, bottom + 11, told, SMALL, style="note")

    return drawn(
        draw,
        "Three programs own two rows each and walk over three tiles of four columns. "
        "The last row and the last two columns of tiles lie outside of x and are "
        "masked.",
        "One program owns two rows and walks along them.",
        f"x has {ROWS} rows of {COLUMNS} numbers, ROWS = {TILE_ROWS} and COLUMNS = "
        f"{TILE_COLUMNS}; blue: the first tile of program 1.",
    )


def weighted_sum_offsets() -> str:
    """The offsets of a tile of a 4 × 8 array."""

    def draw(d: Drawing) -> None:
        left, top = 50, 38
        cell = (d.width - left - 2) / 8
        d.text(left + cell * 4, 12, "column", SMALL, "middle", style="note")
        for j in range(8):
            x = left + cell * (j + 0.5)
            d.text(x, 30, str(j), SMALL, "middle", style="note")
        for i in range(4):
            y = top + 24 * i
            d.text(left - 8, y + 16, f"row {i}", SMALL, "end", style="note")
            for j in range(8):
                style = "fill-blue" if i >= 2 and j >= 4 else "faint"
                d.cell(left + cell * j, y, cell, 24, style, str(8 * i + j), d.size)

    return drawn(
        draw,
        "Rows 2 and 3 times the row stride of 8 plus columns 4 to 7 give the offsets "
        "20 to 23 and 28 to 31.",
        "A tile is a start and two ranges.",
        "The offset of each number of a 4 × 8 array in memory; blue: the tile of rows "
        "2 and 3 and columns 4 to 7.",
    )

"""Test which fields of a class the code reference shows."""

from griffe import temporary_visited_module

from tools.hooks.api import field_lines

SOURCE = """
class Tile(NamedTuple):
    '''Of a matrix.'''

    rows: int
    # --8<-- [start:columns]
    # A power of two.
    columns: int = option(
        16, "columns"
    )
    # --8<-- [end:columns]
    ahead: bool = False

    @property
    def area(self) -> int:
        limit: int = 3
        return self.rows * self.columns


class Recorder:
    def __init__(self):
        self.count: int = 0
"""


def test_field_lines_equal_the_source() -> None:
    with temporary_visited_module(SOURCE) as module:
        assert field_lines(module["Tile"]) == (
            "rows: int\n# A power of two.\ncolumns: int = option(\n"
            '    16, "columns"\n)\nahead: bool = False\n'
        )
        assert field_lines(module["Recorder"]) == ""

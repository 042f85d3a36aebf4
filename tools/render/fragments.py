"""Register the functions that render an experiment's tables and figures.

    fragments = Fragments()

    @fragments.add("table.md", "Ten steps after each number of warm-up steps.")
    def steps_table(record: Record) -> str: ...

`fragments(records)` returns the text of each file, with a tab for each GPU.
"""

from collections.abc import Callable

from systems.records.record import Record
from tools.render import plots
from tools.render.markdown import add_caption, device_tabs

# (function that draws, finding, key to the colours) of a figure; None without data.
Drawn = tuple[plots.Draw, str, str] | None
ShowOne = Callable[[Record], str]
ShowAll = Callable[[list[Record]], str]


class Fragments:
    def __init__(self) -> None:
        self.files: dict[str, ShowAll] = {}

    def add(
        self,
        name: str,
        caption: str = "",
        *,
        measured: bool = True,
        reported: bool = False,
    ) -> Callable[[ShowOne], ShowOne]:
        """Register the decorated function, which renders a record, for the file `name`:
        a tab per record `measured` here or `reported` (published by others).
        """
        kinds = {"measured": measured, "reported": reported}

        def register(show: ShowOne) -> ShowOne:
            def show_all(records: list[Record]) -> str:
                return device_tabs((r for r in records if kinds[r.kind]), show)

            self.add_file(name, caption)(show_all)
            return show

        return register

    def figure(
        self, file: str, name: str, **sizes: float
    ) -> Callable[[Callable[[Record], Drawn]], ShowOne]:
        """Register the decorated function, which returns the arguments (draw, finding,
        key) of `plots.plot` for a record, or None without data. `name` and `sizes` are
        its other arguments. `file` gets a tab for each record.
        """

        def register(draw: Callable[[Record], Drawn]) -> ShowOne:
            def show(record: Record) -> str:
                drawn = draw(record)
                return plots.plot(record, name, *drawn, **sizes) if drawn else ""

            return self.add(file)(show)

        return register

    def add_file(self, name: str, caption: str = "") -> Callable[[ShowAll], ShowAll]:
        """Register the decorated function, which renders a file from all records."""

        def register(show: ShowAll) -> ShowAll:
            self.files[name] = lambda records: add_caption(caption, show(records))
            return show

        return register

    def __call__(self, records: list[Record]) -> dict[str, str]:
        return {n: f"{show(records).rstrip()}\n" for n, show in self.files.items()}

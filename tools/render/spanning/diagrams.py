"""Drawings that explain rather than measure, in the style of the figures."""

from matplotlib.patches import Rectangle

from tools.render.figures import FAINT, INK, SERIES, canvas, svg_pair

PROGRAMS = 5
FIRST_HEAD, SECOND_HEAD = SERIES[0], SERIES[1]


def diagrams() -> dict[str, str]:
    """Every drawing by file name."""
    return turns()


def walk(program: int) -> list[tuple[int, int, int]]:
    """(head, tile of queries, shares that its dQ holds before) of each step of a
    program, in the backward pass in one.

    Two heads under a causal mask, in steps as long as the tiles of keys. As `item_of`
    and `tile_of` of `systems.attention.hopper.one_pass` have it.
    """
    late = PROGRAMS - 1 - program
    forwards = [(0, late + step, step) for step in range(PROGRAMS - late)]
    backwards = [
        (1, PROGRAMS - 1 - step, program) for step in range(PROGRAMS - program)
    ]
    return forwards + backwards


def turns() -> dict[str, str]:
    """Which tile of dQ each program adds to at each step, and after how many others."""
    with canvas(width=6.2, height=3.9) as fig:
        axes = fig.subplots()
        for program in range(PROGRAMS):
            for step, (head, tile, turn) in enumerate(walk(program)):
                color = (FIRST_HEAD, SECOND_HEAD)[head]
                axes.add_patch(
                    Rectangle(
                        (step, program),
                        1,
                        1,
                        facecolor=color,
                        alpha=0.3,
                        edgecolor=FAINT,
                    )
                )
                if tile == PROGRAMS - 2:
                    frame = {"fill": False, "edgecolor": INK, "linewidth": 2.0}
                    axes.add_patch(
                        Rectangle((step + 0.04, program + 0.04), 0.92, 0.92, **frame)
                    )
                axes.text(
                    step + 0.5,
                    program + 0.42,
                    f"dQ {tile}",
                    ha="center",
                    va="center",
                    fontsize=11,
                    color=INK,
                )
                axes.text(
                    step + 0.5,
                    program + 0.76,
                    f"after {turn}",
                    ha="center",
                    va="center",
                    fontsize=8,
                    color=INK,
                )
        axes.set(
            xlim=(0, PROGRAMS + 1),
            ylim=(PROGRAMS, 0),
            yticks=[i + 0.5 for i in range(PROGRAMS)],
        )
        axes.set_yticklabels([f"program {i}" for i in range(PROGRAMS)])
        axes.set_xticks(
            [i + 0.5 for i in range(PROGRAMS + 1)],
            [str(i) for i in range(PROGRAMS + 1)],
        )
        axes.set_xlabel("step")
        axes.tick_params(length=0)
        axes.grid(False)
        axes.spines[:].set_visible(False)
        handles = [
            Rectangle(
                (0, 0),
                1,
                1,
                facecolor=FIRST_HEAD,
                alpha=0.3,
                label="first head, forwards",
            ),
            Rectangle(
                (0, 0),
                1,
                1,
                facecolor=SECOND_HEAD,
                alpha=0.3,
                label="second head, backwards",
            ),
            Rectangle(
                (0, 0),
                1,
                1,
                facecolor="none",
                edgecolor=INK,
                linewidth=2.0,
                label=f"dQ {PROGRAMS - 2}",
            ),
        ]
        fig.legend(
            handles=handles,
            loc="outside lower center",
            ncols=3,
            handlelength=1.2,
            columnspacing=1.2,
        )
        return svg_pair("diagram-turns", fig)

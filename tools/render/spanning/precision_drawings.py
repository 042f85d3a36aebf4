"""Precision, drawn: the numbers of a format that a sum can stand on, and the dtypes of
the model under autocast.
"""

from fractions import Fraction

from systems.precision.number_formats import FORMATS, Format, stall
from tools.render.drawing import SMALL, TEXT, Drawing, drawn
from tools.render.load import Found, ours
from tools.render.markdown import NOTHING_YET, record_address
from tools.render.rows import cell

GRID = (
    "Adding 0.01 in bf16: the larger the sum, the coarser the numbers, until it adds "
    "nothing."
)
GRID_KEY = (
    "Each mark is a number of bf16. The bar is the term, and the dot is the number to "
    "which the sum is rounded. All three stretches have the same scale."
)
BLOCK = (
    "Under bf16 autocast matrix products give bf16, what follows on bf16 alone keeps "
    "it, and the residual stream stays in fp32."
)
BLOCK_KEY = (
    "Operations in the order of a forward pass, with the dtypes that a trace found. An "
    "arrow is a change of dtype: to the right a cast, to the left a cast or a sum with "
    "fp32."
)
# Some of what `autocast` looks at, in the order of a block, and how a drawing calls it.
PARTS = {
    "parameters": "weights",
    "embedding": "token embedding",
    "rmsnorm": "RMSNorm",
    "q_projection": "projection of q",
    "rotary": "rotary embedding",
    "scores": "Q Kᵀ",
    "softmax_subtract": "softmax: subtract",
    "softmax_exp": "softmax: exp",
    "weighted_values": "P V",
    "residual": "residual stream, + attention",
    "swiglu": "SwiGLU",
    "logits": "logits",
    "loss": "loss",
}


def fragments(found: Found) -> dict[str, str]:
    """`precision-grid.md` and `precision-block.md`."""
    return {
        "precision-grid.md": grid(FORMATS["bf16"], Fraction(1, 100)),
        "precision-block.md": block(found),
    }


def grid(number: Format, exact: Fraction) -> str:
    """Three stretches of the number line, drawn to one scale: just above 1, 2 and the
    sum that stalls.
    """
    term = number.nearest(exact)
    _, top = stall(number, term)
    starts = [top / 4, top / 2, top]
    shown = Fraction(9, 2) * number.spacing(top / 2)

    def draw(d: Drawing) -> None:
        left, right = 6.0, d.width - 30.0
        for lane, start in enumerate(starts):
            y, gap = 52 + 84 * lane, number.spacing(start)

            def x(value: Fraction, start: Fraction = start) -> float:
                return left + float((value - start) / shown) * (right - left)

            after = number.nearest(start + term) - start
            told = f"+{float(after):.4f}" if after else "nothing"
            d.text(0, y - 32, f"near {float(start):g}: spacing {float(gap):.4g}", TEXT)
            d.text(d.width, y - 32, f"0.01 adds {told}", TEXT, "end", bold=True)
            d.line(left, y, right, y, "faint")
            for i in range(int(shown / gap) + 1):
                d.line(x(start + i * gap), y - 7, x(start + i * gap), y + 7, "thick")
            d.box(x(start), y - 20, x(start + term) - x(start), 8, "fill-grey")
            d.text(x(start + term) + 5, y - 12, "0.01", SMALL)
            d.box(x(start + after) - 4, y - 4, 8, 8, "fill-blue")
            d.text(x(start + after), y + 22, "rounded to here", SMALL)

    last = float(top)
    alt = (
        f"Near {last:g} two bf16 numbers are {float(number.spacing(top)):g} apart, "
        f"more than twice 0.01: the sum is rounded back to {last:g} each time and "
        "stalls."
    )
    return drawn(draw, alt, GRID, GRID_KEY)


def block(found: Found) -> str:
    """Nothing but a remark where autocast was not measured."""
    record = ours(found, "autocast")
    dtypes = cell(record, part="transformer", dtype="bf16")
    if record is None or not dtypes:
        return NOTHING_YET
    kept = [name for name in PARTS if dtypes[name] == "fp32"]

    def draw(d: Drawing) -> None:
        name, half, gap = (220, 120, 60) if d.wide else (164, 64, 40)
        left = (d.width - name - 2 * half - gap) / 2
        columns = {"fp32": left + name, "bf16": left + name + half + gap}
        between = columns["fp32"] + half + 4, columns["bf16"] - 4
        before = ""
        for dtype, x in columns.items():
            d.text(x + half / 2, 12, dtype, TEXT, "middle", bold=True)
        for i, (part, words) in enumerate(PARTS.items()):
            y, dtype = 18 + 26 * i, str(dtypes[part])
            d.text(left, y + 16, words, d.size)
            style = "fill-grey" if dtype == "fp32" else "fill-blue"
            d.box(columns[dtype], y + 1, half, 21, style, dtype)
            if before and dtype != before:
                x1, x2 = between if dtype == "bf16" else reversed(between)
                d.arrow(x1, y - 12, x2, y + 8)
            before = dtype

    names = ", ".join(PARTS[name] for name in kept)
    alt = f"Under bf16 autocast these stay in fp32: {names}; all else is bf16."
    return drawn(draw, alt, BLOCK, BLOCK_KEY, numbers=record_address(record))

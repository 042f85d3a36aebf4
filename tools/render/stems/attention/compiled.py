"""Plain attention, compiled beside eager: times, the price of compiling, kernels before
and after, a map of speedups.
"""

import re
from math import log

from matplotlib.figure import Figure

from systems.records.record import Record
from tools.render import plots
from tools.render.claims import Judgement, claim
from tools.render.frame import Frame, Line, frame, texts
from tools.render.markdown import per_device
from tools.render.rows import known, measured, ranges, say, span
from tools.render.stems.attention.columns import (
    EXECUTIONS,
    LONGEST,
    PASSES,
    PLAIN,
    WIDTH,
    lengths,
    one,
    passes,
    values,
)

# Where kernels are shown: long enough for every kernel of the passes to have work.
KERNELS_AT = 4096
CAPTIONS = {
    "compiled.md": "Attention in fp32 without a mask, eager and compiled.",
    "kernels.md": "The kernels of each pass, before compiling and after.",
}


def fragments(records: list[Record]) -> dict[str, str]:
    """Eager beside compiled for all devices; speedups and kernels for measured ones."""
    ours = measured(records)
    return {
        "compiled.md": per_device(records, compiled_table),
        "speedups.md": per_device(ours, speedup_figure),
        "kernels.md": per_device(ours, kernels_table),
    }


def compiled(record: Record | None) -> Frame:
    return passes(record).where(bool, execution="compiled")


def compile_seconds(x: Line) -> float:
    """What the warm-up passes took beyond as many settled ones."""
    return sum(x.beyond(f"warmup_{of}", of) for of in PASSES)


def compiled_table(record: Record) -> str:
    """The assignment's 20 cells, fp32 without a mask: eager and compiled times, their
    ratio, and the compile time.
    """
    reported = record.kind == "reported"

    def ms(x: Line, of: str) -> float:
        return x[f"{of}_mean_ms"] if reported else x.ms(of)

    times = [
        column
        for of in PASSES
        for column in (
            (f"{of} eager, ms", lambda x, of=of: ms(x["eager"], of), "{:.3f}"),
            (f"{of} compiled, ms", lambda x, of=of: ms(x, of), "{:.3f}"),
            (
                f"{of} speed-up",
                lambda x, of=of: ms(x["eager"], of) / ms(x, of),
                "{:.2f}",
            ),
        )
    ]
    last = (
        ("remark", lambda x: x.row.reason or "")
        if reported
        else ("compiling, s", compile_seconds, "{:.1f}")
    )
    found = passes(record).where(execution="compiled", **PLAIN)
    return found.table(
        ("d", "d"), ("N", "n"), *times, last, telling=lambda x: x["d"] == WIDTH
    )


def kernels_table(record: Record) -> str:
    """Kernels of each pass, eager and compiled, and what those do that the compiler
    wrote.
    """
    found = passes(record).where(n=KERNELS_AT, d=WIDTH, execution="compiled")
    found = found.arrange(dtype=values(frame(record), "dtype"), causal=(False, True))
    return Frame(
        Line(x, of=of, eager=x["eager"].get(f"{of}_kernels"), fused=x)
        for x in found
        for of in PASSES
    ).table(
        "dtype",
        ("causal mask", "causal"),
        ("pass", "of"),
        ("eager kernels", "eager"),
        ("compiled kernels", lambda x: x["fused"].get(f"{x['of']}_kernels")),
        (
            "of these, fused by the compiler",
            lambda x: "<br>".join(
                map(fused_words, x["fused"].get(f"{x['of']}_fused", []))
            ),
        ),
        left=6,
    )


KINDS = {"poi": "pointwise", "red": "reduction", "per": "reduction"}


def fused_words(kernel: str) -> str:
    """ "triton_red_fused_div_exp_3" -> "reduction: div exp"."""
    match = re.fullmatch(r"triton_([a-z]+)_fused_(.*?)_?\d*", kernel)
    if match is None:
        return kernel
    words = [f"{KINDS.get(match[1], match[1])}:", *filter(None, match[2].split("_"))]
    return " ".join(words)


# Colours end at a factor of 4 either way.
LARGEST = 4.0


def speedup_figure(record: Record) -> str:
    found = passes(record).where(execution="compiled")
    if not found:
        return ""
    widths, ns = values(found, "d"), lengths(found)
    variants = [(t, c) for t in values(frame(record), "dtype") for c in (False, True)]

    def shaded(ratio: float) -> tuple[str, float]:
        return (f"{ratio:.2f}", -log(ratio) / log(LARGEST)) if ratio else ("", 0)

    def draw(figure: Figure) -> None:
        every = plots.panels(figure, len(variants), beside=2)
        for axes, (dtype, causal) in zip(every, variants, strict=True):
            part = found.where(dtype=dtype, causal=causal)
            rows = {
                f"d = {d}": [shaded(part.one(d=d, n=n).get("gain")) for n in ns]
                for d in widths
            }
            plots.heat_map(axes, rows, [f"{n:,}" for n in ns])
            axes.set_title(f"{dtype}, {'causal mask' if causal else 'no mask'}, by N")

    told = ranges(known(found.column("gain")) or found.column("gain"))
    return plots.plot(
        record,
        "speedup",
        draw,
        f"Eager time over compiled time of both passes {told}.",
        "Blue: compiled is faster; the stronger the colour, the more. Orange: slower.",
        height=330,
        narrow=620,
    )


def facts(record: Record | None) -> dict[str, str]:
    found = compiled(record)
    every = passes(record)
    longest = one(every, e="compiled")
    shown = {"long": (8192, LONGEST), "short": (256, 1024)}
    return {
        **{
            f"speedups_{name}": span(found.where(n=ns).column("gain"))
            for name, ns in shown.items()
        },
        **texts("{:.2f}", {f"speedup_{of}": longest[f"{of}_gain"] for of in PASSES}),
        **{
            f"{of}_kernels_{e}": say(one(every, KERNELS_AT, e=e).get(f"{of}_kernels"))
            for e in EXECUTIONS
            for of in PASSES
        },
        "compile_seconds": span(map(compile_seconds, found), "{:.1f}"),
    }


@claim(
    "torch_compile",
    "Compiled attention is faster than eager attention, forward and backward together, "
    "in every cell.",
)
def compiled_attention_faster(record: Record) -> Judgement:
    found = known(compiled(record).column("gain"))
    numbers = f"Eager time over compiled time: {span(found)} over {len(found)} cells."
    return found and (min(found) > 1, numbers)

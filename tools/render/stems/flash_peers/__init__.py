"""Tables, figure and facts of `flash_peers`: attention of each library at each shape,
timed interleaved, and whose results are deterministic.
"""

from matplotlib.figure import Figure

from systems.records.record import Record
from tools.render.frame import Frame, Line, frame, texts
from tools.render.load import constant
from tools.render.markdown import per_device, percent
from tools.render.plots import (
    ACCENT,
    DARK,
    GREY,
    INK,
    PALE,
    line,
    panels,
    plot,
    power_of_two_axis,
)
from tools.render.rows import cell, counted, known, measured, most, say, span
from tools.render.stems.flash_passes import TFLOPS, flops
from tools.render.stems.flash_peers import claims
from tools.render.stems.flash_peers.rows import (
    NAMES,
    RESULTS,
    SHAPE,
    SHORT,
    TEST,
    every_shape,
    rate,
    ratio,
    relative_time,
    shapes,
)

__all__ = ["CAPTIONS", "claims", "facts", "fragments"]
CALLS = constant("flash_peers", "CALLS_COMPARED") + 1
CAPTIONS = {
    "table.md": "**The Hopper kernel at each shape:** throughput of forward + "
    "backward, share of the data sheet's peak, and time relative to each library. "
    "Below 1 the Hopper kernel is faster.",
    "repeats.md": f"**Deterministic results,** compared bitwise over {CALLS} calls.",
    "calls.md": f"**Launch overhead:** wall-clock time of a forward call at {SHORT} "
    "tokens.",
    "published.md": "**TFLOP/s at NVIDIA's shape by two instruments, and NVIDIA's own "
    "figures:** 64 query heads, 8 key heads, 8,192 tokens, causal. *Events* span a "
    "call, *kernels* are the sum of its kernels' times.",
}
# Lines of the figure: colour and marker.
LINES = {
    "fa4": (INK, "o"),
    "fa4_ordered": (DARK, "^"),
    "sdpa_cudnn": (GREY, "D"),
    "sdpa_flash": (PALE, "v"),
    "ours": (ACCENT, "s"),
}
KEY = "● FA4   ▲ FA4, deterministic   ◆ cuDNN   ▼ FA2   ■ this guide"
PANELS = ((64, True), (128, True), (128, False))


# Tables and figure --------------------------------------------------------------------


def fragments(records: list[Record]) -> dict[str, str]:
    reported = [record for record in records if record.kind == "reported"]
    records = measured(records)
    return {
        "figure.md": per_device(records, throughput_figure),
        "table.md": per_device(records, shapes_table),
        "repeats.md": per_device(records, repeats_table),
        "calls.md": per_device(records, calls_table),
        "published.md": per_device(records, lambda r: published_table(r, reported)),
    }


def shapes_table(record: Record) -> str:
    over = {"FA4": "fa4", "FA4, deterministic": "fa4_ordered", "cuDNN": "sdpa_cudnn"}
    return shapes(record).table(
        (SHAPE, "shape"),
        ("TFLOP/s", "tflops", "{:.0f}"),
        ("share of peak", "peak", percent),
        *((head, f"both / {name}", "{:.2f}") for head, name in over.items()),
        ("FA2", "both / sdpa_flash", "{:.2f}"),
        ("FA4, forward", "forward / fa4", "{:.2f}"),
        telling=lambda x: (
            x["batch"] == 1 or x["n"] <= 1024 or (x["d"], x["causal"]) == (128, False)
        ),
    )


def compared(record: Record | None, name: str, **wanted: str) -> Frame:
    """Rows whose results were compared between calls."""
    found = frame(record, implementation=name, **wanted)
    return found.where(lambda x: "repeats" in x.cell.metrics)


def repeats_table(record: Record) -> str:
    found = Frame(
        Line(
            name=NAMES[name],
            count=counted(rows.column("repeats")),
            varies=[of for of in RESULTS if any(of in x["varies"] for x in rows)],
        )
        for name in NAMES
        if (rows := compared(record, name))
    )
    return found.table(
        ("implementation", "name"),
        ("deterministic at shapes", "count"),
        ("varies", lambda x: ", ".join(x["varies"])),
    )


def calls_table(record: Record) -> str:
    found = frame(record, n=SHORT, dtype="bf16").where(lambda x: x.get("call_ms"))
    return found.table(
        ("implementation", lambda x: NAMES[x["implementation"]]),
        ("wall-clock time of a call, µs", lambda x: 1e3 * x["call_ms"], "{:.0f}"),
    )


def published_table(record: Record, reported: list[Record]) -> str:
    """TFLOP/s by events, by the sum of kernels, and as NVIDIA reports them."""
    theirs = Frame(x for each in reported for x in frame(each))
    names = ("ours", "fa4", "fa4_ordered", "sdpa_cudnn")
    found = frame(record, layout="bnhd", implementation=names)
    found.join("nvidia", theirs, on=("implementation", "n", "causal"))
    return found.table(
        ("implementation", lambda x: NAMES[x["implementation"]]),
        *(
            (f"{of}, {how}", value, "{:.0f}")
            for of in ("forward", "backward")
            for how, value in (
                ("events", lambda x, of=of: rate(x, of) / TFLOPS),
                ("kernels", lambda x, of=of: kernel_rate(x, of)),
                ("NVIDIA", lambda x, of=of: x["nvidia"].get(f"{of}_tflops")),
            )
        ),
    )


def kernel_rate(x: Line, of: str) -> float:
    """Return TFLOP/s in GPU time; older records had it for this shape alone."""
    before = f"{of}_kernels"
    timed = f"{before}_ms" in x.cell.metrics
    took = x.ms(before) if timed else x.cell.gpu_ms(of)
    return flops(x.cell, of) / (took / 1e3) / TFLOPS


def throughput_figure(record: Record) -> str:
    found = shapes(record).where(lambda x: x.get("group", 1) in (1, None))

    def draw(figure: Figure) -> None:
        every = panels(figure, len(PANELS), sharey=True)
        for axes, (d, causal) in zip(every, PANELS, strict=True):
            part = Frame(sorted(found.where(d=d, causal=causal), key=lambda x: x["n"]))
            for name, (color, marker) in LINES.items():
                rates = [rate(x[name], "both") / TFLOPS for x in part]
                look = {"color": color, "marker": marker, "ms": 6}
                line(axes, part.column("n"), rates, **look)
            power_of_two_axis(axes.xaxis, sorted({*part.column("n")}), "tokens")
            axes.set_title(f"d {d}, {'causal' if causal else 'no mask'}: TFLOP/s")
        # Once all are drawn: a limit of one ends the search for the others'.
        every[0].set_ylim(bottom=0)

    lead = found.column("both / fa4")
    return plot(
        record,
        "throughput",
        draw,
        f"FlashAttention-4 is the fastest library: the Hopper kernel takes "
        f"{span(lead)} of its time.",
        f"Forward + backward in bf16. {KEY}. Batch and heads change with the length: "
        "see the table.",
        height=300,
        narrow=640,
    )


# Facts --------------------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    found, fp32 = shapes(record), shapes(record, "fp32")
    test = every_shape(record).one(**TEST)
    ranges = {
        "bf16_both": found.column("both / sdpa_cudnn"),
        "fa4_both": found.column("both / fa4"),
        "ordered_both": found.column("both / fa4_ordered"),
        "over_flash": found.column("both / sdpa_flash"),
        "fp32_both": fp32.column("both / sdpa_efficient"),
        **{
            f"triton_{d}": [
                relative_time(x, "both", "sdpa_cudnn", "ours_triton")
                for x in found.where(d=d)
            ]
            for d in (64, 128)
        },
        "order_costs_fa4": [
            relative_time(x, "both", "fa4", "fa4_ordered") for x in found
        ],
    }
    lost = {
        f"{name}_lost": counted(value > 1 for value in known(ranges[name]))
        for name in ("bf16_both", "fa4_both", "ordered_both")
    }
    same = {
        f"repeats_{name}": counted(compared(record, name).column("repeats"))
        for name in ("ours", "sdpa_cudnn", "sdpa_efficient")
    }
    always = [
        NAMES[name]
        for name in NAMES
        if all(rows := compared(record, name, dtype="bf16").column("repeats")) and rows
    ]
    brief = cell(record, implementation="ours", n=SHORT, dtype="bf16")
    wide = found.one(d=80)
    return {
        **{name: span(values) for name, values in ranges.items()},
        **texts("{}", lost | same),
        "repeating": "; ".join(always) or say(counted([])),
        "shapes": say(len(found) or counted([])),
        **texts(
            "{:.2f}",
            {
                "error_over_rival_most": most(found.column("error / rival")),
                "test_forward_over_any": 1 / test["forward / ours_triton"],
                "test_backward_over_any": 1 / test["backward / ours_triton"],
                "short_over_cudnn": ratio(record, brief, "both"),
            },
        ),
        "fa4_error_80": say(
            most(wide[f"fa4.{of}_relative_error"] for of in RESULTS), "{:.2g}"
        ),
    }

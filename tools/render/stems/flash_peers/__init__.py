"""Tables, figures and facts of `flash_peers`: ours beside each library at each shape,
ratios of rows that were measured in turns, what a fixed order costs, and what NVIDIA
published.
"""

from collections.abc import Callable

from systems.formulas.chips import chip_of
from systems.formulas.costs import KERNELS
from systems.records.device import slug_of
from systems.records.record import Record
from tools.render.load import constant, primary_gpu
from tools.render.markdown import columns, milliseconds, per_device, percent
from tools.render.rows import (
    MISSING,
    NOT_MEASURED,
    Cell,
    axis,
    cell,
    cells,
    counted,
    data_sheet,
    known,
    measured,
    most,
    say,
    span,
)
from tools.render.stems.flash_leaderboard import rates_of
from tools.render.stems.flash_passes import PASSES, SAID, TFLOPS, flops, peak_flops
from tools.render.stems.flash_peers import claims, figures
from tools.render.stems.flash_peers.rows import (
    NAMES,
    ORDERED,
    RESULTS,
    RIVAL,
    SHAPE,
    SHORT,
    TEST,
    beside,
    call_ratio,
    error,
    error_ratios,
    is_wrong,
    judged,
    long_cells,
    order_costs,
    over_fastest,
    rate,
    ratio,
    ratios,
    repeats,
    shape_text,
    share,
    short_cell,
    telling,
)

# Of each implementation on the same inputs.
CALLS = constant("flash_peers", "CALLS_COMPARED") + 1
# Of the shapes that predictions are for, and our kernel that computes a pass in one.
WIDTHS, ONE = (64, 128), {"forward": "forward", "backward": "one_pass"}
# Short inputs of many heads.
SHORTER = {
    n: {
        "n": n,
        "batch": batch,
        "heads": heads,
        "d": 64,
        "causal": True,
        "dtype": "bf16",
    }
    for n, batch, heads in ((512, 8, 16), (1024, 16, 32))
}

CAPTIONS = {
    "fa4.md": "**Our time over that of FlashAttention-4.** The last two columns are "
    "forward + backward over libraries that are asked for gradients that repeat.",
    "bars.md": "**What we set out to reach beside FlashAttention-4,** written down "
    "before these kernels were measured beside it, and what was reached. Forward + "
    "backward, ours over it; at 512 tokens the first two columns are over cuDNN.",
    "repeats.md": "**Whose results repeat.** Each row compares all results of "
    f"{CALLS} calls on the same inputs, bit by bit.",
    "published.md": "**One shape by two clocks, beside NVIDIA's own figures.** 64 "
    "heads of queries, 8 of keys, 8,192 tokens, causal: TFLOP/s, and the share of the "
    "data sheet's peak.",
    "paper.md": "**What FlashAttention-3 reaches, by its paper:** TFLOP/s in fp16 at "
    "head dimension 128, by length, and the share of the data sheet's peak.",
}

# Tables -------------------------------------------------------------------------------


def fragments(records: list[Record]) -> dict[str, str]:
    """What NVIDIA published, and everything that was measured."""
    reported = [record for record in records if record.kind == "reported"]
    records = measured(records)
    return {
        "turns.md": figures.turns(),
        "fa4.md": per_device(records, lambda r: fa4_table(r, telling(r))),
        "fa4-all.md": per_device(
            records, lambda r: fa4_table(r, long_cells(r, "bf16"))
        ),
        "order.md": per_device(records, figures.order_figure),
        "repeats.md": per_device(records, repeats_table),
        "bars.md": per_device(records, claims.bars_table),
        "published.md": per_device(
            records, lambda record: published_table(record, reported)
        ),
        "reported.md": per_device(
            reported, lambda record: reported_table(record, *BY_NVIDIA)
        ),
        "paper.md": per_device(reported, lambda record: reported_table(record, "fa3")),
        "figure.md": per_device(records, figures.ratios_figure),
        "ratios.md": per_device(records, lambda r: ratios_table(r, telling(r))),
        "ratios-all.md": per_device(
            records, lambda r: ratios_table(r, long_cells(r, "bf16"))
        ),
        "bf16.md": per_device(records, lambda r: shapes_table(r, "bf16")),
        "fp32.md": per_device(records, lambda r: shapes_table(r, "fp32")),
        "calls.md": per_device(records, calls_table),
    }


def ratios_table(record: Record, found: list[Cell]) -> str:
    """Ours over cuDNN, and over the fastest of all others; the rate of ours."""
    return columns(
        found,
        (SHAPE, shape_text),
        *((SAID[of], lambda c, of=of: ratio(record, c, of), "{:.2f}") for of in PASSES),
        ("TFLOP/s", lambda c: rate(c, "both") / TFLOPS, "{:.0f}"),
        ("share of peak", lambda c: share(record, c, "both"), percent),
        ("over the fastest other", lambda c: over_fastest(record, c)),
    )


def shapes_table(record: Record, dtype: str) -> str:
    """A line for each implementation of each shape: times, rate, ratio, errors."""
    rival, found = NAMES[RIVAL[dtype]], cells(record, dtype=dtype)
    looked = any("repeats" in c.metrics for c in found)
    return columns(
        found,
        (SHAPE, shape_text),
        ("implementation", lambda c: NAMES[c.config["implementation"]]),
        *(
            (f"{SAID[of]}, ms", lambda c, of=of: c.kernel_ms(of), milliseconds)
            for of in PASSES
        ),
        ("TFLOP/s", lambda c: rate(c, "both") / TFLOPS, "{:.0f}"),
        (f"over {rival}", lambda c: ratio(record, c, "both"), "{:.2f}"),
        *([("results repeat", repeats)] if looked else []),
        ("error of o", lambda c: error(c, "o"), "{:.1e}"),
        ("of gradients", lambda c: error(c, *RESULTS[1:]), "{:.1e}"),
        left=2,
    )


def fa4_table(record: Record, found: list[Cell]) -> str:
    """Ours over FlashAttention-4, as it comes and ordered, and what order costs."""
    if not any(beside(record, c, "fa4").row for c in found):
        return ""
    return columns(
        found,
        (SHAPE, shape_text),
        *(
            (head, lambda c, of=of, over=over: ratio(record, c, of, over), "{:.2f}")
            for head, of, over in (
                *((SAID[of], of, "fa4") for of in PASSES),
                ("over it ordered", "both", "fa4_ordered"),
                ("over FlashAttention-2 ordered", "both", "sdpa_flash_ordered"),
            )
        ),
    )


def repeats_table(record: Record) -> str:
    """For each implementation, at how many shapes results repeat, and which do not."""

    def varies(found: list[Cell]) -> str:
        those = {of for c in found for of in c["varies"].split(", ")}
        return ", ".join(of for of in RESULTS if of in those)

    return columns(
        [(name, found) for name in NAMES if (found := judged(record, name))],
        ("implementation", lambda each: NAMES[each[0]]),
        (
            "results repeat, of shapes",
            lambda each: counted(c["repeats"] for c in each[1]),
        ),
        ("what varies", lambda each: varies(each[1])),
    )


def published_table(record: Record, reported: list[Record]) -> str:
    """Rates at the shape that NVIDIA publishes: by events, by the kernels' own time,
    and NVIDIA's.
    """
    shown = ("ours", *BY_NVIDIA)
    found = [
        c for c in cells(record, layout="bnhd") if c.config["implementation"] in shown
    ]
    peak = peak_flops(record, "bf16") / TFLOPS

    def theirs(c: Cell, of: str) -> float:
        wanted = {key: c.config[key] for key in ("implementation", "n", "causal")}
        rows = (cell(one, **wanted) for one in reported)
        return next((row.get(f"{of}_tflops") for row in rows if row), MISSING)

    return columns(
        found,
        ("implementation", lambda c: NAMES[c.config["implementation"]]),
        *(
            column
            for of in ("forward", "backward")
            for column in (
                (
                    f"{of}, by events",
                    lambda c, of=of: rate(c, of) / TFLOPS,
                    with_share(peak),
                ),
                (
                    f"{of}, by its kernels",
                    lambda c, of=of: kernels_rate(c, of),
                    with_share(peak),
                ),
                (
                    f"{of}, NVIDIA's",
                    lambda c, of=of: theirs(c, of),
                    with_share(peak),
                ),
            )
        ),
    )


def kernels_rate(c: Cell, of: str) -> float:
    """TFLOP/s in GPU time; a record from before it had it for this shape alone."""
    before = f"{of}_kernels"
    took = c.ms(before) if f"{before}_ms" in c.metrics else c.gpu_ms(of)
    return flops(c, of) / (took / 1e3) / TFLOPS


def published_rate(record: Record | None) -> float:
    """Of our forward pass at the shape that NVIDIA publishes."""
    return kernels_rate(cell(record, implementation="ours", layout="bnhd"), "forward")


def with_share(peak: float) -> Callable[[float], str]:
    """ "522 (53 %)": TFLOP/s, and their share of the data sheet's."""

    def shown(rate: float) -> str:
        of_peak = f" ({percent(float(rate / peak))})" if peak else ""
        return f"{rate:.0f}{of_peak}"

    return shown


# Those whose rates NVIDIA publishes.
BY_NVIDIA = ("fa4", "fa4_ordered", "sdpa_cudnn")
# What a fixed order costs is told apart up to so many tokens, and beyond.
FEW_TOKENS = 2048


def reported_table(record: Record, *names: str) -> str:
    """TFLOP/s of these by mask and length, as published, and their share of the data
    sheet's.
    """
    peak = data_sheet(slug_of(record.device.name)).bf16 / TFLOPS
    kinds = [
        (mask, name, of)
        for mask in (True, False)
        for name in names
        for of in ("forward", "backward")
        if any(
            f"{of}_tflops" in c.metrics
            for c in cells(record, causal=mask, implementation=name)
        )
    ]
    return columns(
        kinds,
        ("mask", lambda kind: "causal" if kind[0] else "full"),
        ("implementation", lambda kind: NAMES[kind[1]]),
        ("pass", lambda kind: kind[2]),
        *(
            (
                f"{n // 1024}k",
                lambda kind, n=n: cell(
                    record, causal=kind[0], implementation=kind[1], n=n
                ).get(f"{kind[2]}_tflops"),
                with_share(peak),
            )
            for n in axis(record, "n")
        ),
        left=3,
    )


def calls_table(record: Record) -> str:
    """Wall time of a forward call whose work is too short to hide it."""
    return columns(
        [c for c in cells(record, n=SHORT, dtype="bf16") if c.get("call_ms")],
        ("implementation", lambda c: NAMES[c.config["implementation"]]),
        ("wall time of a call, µs", lambda c: 1e3 * c.ms("call"), "{:.1f}"),
        ("over FlashAttention-2", lambda c: call_ratio(record, c), "{:.2f}"),
        # A forward pass has no order to fix.
        telling=lambda c: c.config["implementation"] not in ORDERED,
    )


# Facts --------------------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    """Our time over each rival's, how often ours loses, rates, errors, and the host's
    ratio; and what was predicted.

    Where the host decides, times of both passes together say nothing of the kernels:
    they are left out.
    """
    found = {}
    ours = {dtype: long_cells(record, dtype) for dtype in RIVAL}
    for dtype, of in [*(("bf16", of) for of in PASSES), ("fp32", "both")]:
        over = ratios(record, ours[dtype], of)
        found[f"{dtype}_{of}"] = span(over)
        found[f"{dtype}_{of}_lost"] = say(counted(ratio > 1 for ratio in known(over)))
    high = long_cells(record, "fp32", "ours_high")
    for d in WIDTHS:
        triton = long_cells(record, "bf16", "ours_triton", d=d)
        found[f"triton_{d}"] = span(ratios(record, triton, "both"))
    short = {name: short_cell(record, name) for name in ("ours", "ours_triton")}
    for name, c in short.items():
        of = name.replace("ours", "call")
        found[of] = say(1e3 * c.ms("call"), "{:.0f} µs")
        found[f"{of}_over_sdpa"] = say(call_ratio(record, c), "{:.2f}")
    test = cell(record, implementation="ours", **TEST)
    errors = most(error_ratios(record, ours["bf16"]))
    for of in ("forward", "backward"):
        plain = ratio(record, test, of, "ours_triton")
        found[f"test_{of}_over_any"] = say(1 / plain, "{:.2f}")
    for name in ("ours", "fa4_ordered", "fa4"):
        took = beside(record, test, name).kernel_ms("backward")
        found[f"test_backward_{name}"] = say(took, "{:.2f} ms")
    return found | {
        "shapes": say(len(ours["bf16"]) or MISSING),
        "over_flash": span(ratios(record, ours["bf16"], "both", "sdpa_flash")),
        "over_flex": span(ratios(record, ours["bf16"], "both", "flex")),
        "high": span(ratios(record, high, "both")),
        "high_error_most": say(most(error_ratios(record, high)), "{:.0f}"),
        "error_over_rival_most": say(errors, "{:.2f}"),
        "test_over_cudnn": say(ratio(record, test, "both"), "{:.2f}"),
        "short_over_cudnn": say(ratio(record, short["ours"], "both"), "{:.2f}"),
        "short_forward": say(ratio(record, short["ours"], "forward"), "{:.2f}"),
        "short_backward": say(ratio(record, short["ours"], "backward"), "{:.2f}"),
        "short_both": say(1e3 * short["ours"].kernel_ms("both"), "{:.0f} µs"),
        "call_over_cudnn": say(
            call_ratio(record, short["ours"], "sdpa_cudnn"), "{:.2f}"
        ),
        **{
            f"share_{n}": say(
                rate(cell(record, implementation="ours", **shape), "both")
                / peak_flops(record, "bf16"),
                percent,
            )
            for n, shape in SHORTER.items()
        },
        "published": say(published_rate(record), "{:.0f} TFLOP/s"),
        "cudnn": cudnn_version(record),
        **of_order(record, ours["bf16"]),
        **predictions(record),
    }


def by_length(few: list[float], many: list[float]) -> str:
    """What the costs of an order say about lengths, as a sentence."""
    if not few or not many:
        return ""
    if min(few) > max(many):
        return "So here, too, it costs more at short ones."
    if max(few) < min(many):
        return "So here it costs more at long ones."
    return "The two ranges overlap: here the length alone does not decide."


def cudnn_version(record: Record | None) -> str:
    """ "9.19" of "91900": major, two digits of minor, two of patch."""
    number = int(record.software.get("cudnn", 0)) if record else 0
    return f"{number // 10_000}.{number // 100 % 100}" if number else NOT_MEASURED


def of_order(record: Record | None, ours: list[Cell]) -> dict[str, str]:
    """Ours over FlashAttention-4, what a fixed order costs, and whose results repeat at
    every shape.
    """
    found = {}
    for fact, of, over in (
        ("fa4_forward", "forward", "fa4"),
        ("fa4_both", "both", "fa4"),
        ("ordered_both", "both", "fa4_ordered"),
        ("flash_ordered_both", "both", "sdpa_flash_ordered"),
    ):
        values = ratios(record, ours, of, over)
        found[fact] = span(values)
        found[f"{fact}_lost"] = say(counted(ratio > 1 for ratio in known(values)))
    for name in ("fa4_ordered", "sdpa_flash_ordered"):
        costs = [order_costs(record, c, name) for c in ours]
        found[f"order_costs_{ORDERED[name]}"] = span(costs)
    few, many = (
        [
            order_costs(record, c, "fa4_ordered")
            for c in ours
            if (c.config["n"] <= FEW_TOKENS) == short
        ]
        for short in (True, False)
    )
    found["order_costs_few_tokens"] = span(few)
    found["order_costs_many_tokens"] = span(many)
    found["order_by_length"] = by_length(known(few), known(many))
    found["few_tokens"] = f"{FEW_TOKENS:,}"
    wrong = [c for c in (beside(record, c, "fa4") for c in ours) if is_wrong(c)]
    widths = sorted({c.config["d"] for c in wrong})
    found["fa4_wrong"] = ", ".join(map(str, widths)) or "none"
    largest = most(error(c, *RESULTS) for c in wrong)
    found["fa4_wrong_error"] = say(largest, "{:.1f}") if wrong else "none"
    looked = {
        NAMES[name]: {bool(c["repeats"]) for c in judged(record, name, dtype="bf16")}
        for name in NAMES
    }
    for name in ("ours", "sdpa_cudnn", "sdpa_efficient"):
        same = counted(c["repeats"] for c in judged(record, name))
        found[f"repeats_{name}"] = say(same)
    for fact, wanted in (("repeating", True), ("varying", False)):
        kept = [name for name, seen in looked.items() if seen == {wanted}]
        some = any(looked.values())
        found[fact] = ("; ".join(kept) or "none") if some else NOT_MEASURED
    return found


def predictions(record: Record | None) -> dict[str, str]:
    """Shares of the peak that a kernel would reach if nothing of it overlapped: its
    products and its exponentials, one after the other; and what was reached at the
    leaderboard's length. The peak is that of the highest clock, not the data sheet's,
    which a kernel may pass without any overlap.
    """
    chip, found = chip_of(primary_gpu()), {}
    for of, kernel in ONE.items():
        work = KERNELS[kernel]
        for d in WIDTHS:
            products = exponentials = MISSING
            if chip:
                products = work.matmuls * 2 * d / chip.bf16_flops_per_clock
                exponentials = work.exponentials / chip.exponentials_per_clock
            c = cell(record, implementation="ours", **TEST | {"d": d})
            alone = products / (products + exponentials)
            found[f"alone_{of}_{d}"] = say(alone, percent)
            reached = (
                rate(c, of) / rates_of(record).products if record and c else c.missing
            )
            found[f"reached_{of}_{d}"] = say(reached, percent)
    return found

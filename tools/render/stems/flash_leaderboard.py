"""Tables, figure and facts of `flash_leaderboard`: the course's test, and each kernel
against its floor.
"""

from typing import NamedTuple

from systems.formulas.costs import (
    EXPONENTIALS_PER_CLOCK,
    KERNELS,
    attention_flops,
    scores,
)
from systems.records.record import Record, Row
from systems.records.summary import summarize
from tools.render.figures import INK, SERIES, canvas, svg_pair
from tools.render.markdown import (
    NOT_MEASURED,
    fact,
    figure,
    milliseconds,
    per_device,
    percent,
    table,
)

NAMES = {
    "ours": "ours",
    "sdpa_cudnn": "SDPA, cuDNN",
    "sdpa_flash": "SDPA, FlashAttention-2",
    "flex": "FlexAttention, compiled",
    "plain": "plain PyTorch",
}
# One pass on Hopper has kernels for D and for rounding dQ; in two passes dQ's kernel
# computes D.
ROLES = {
    "forward": "forward",
    "delta": "D",
    "one_pass": "dK, dV and dQ",
    "dkdv": "dK and dV",
    "dq": "dQ",
    "round": "dQ rounded",
}


class Limit(NamedTuple):
    """What a kernel must do, whose rate it is held against, its mark in the figure."""

    label: str
    rate: str
    marker: str
    color: str


# What a floor is made of: the slowest of these that must be done.
LIMITS = {
    "matrix": Limit("matrix units", "a large product", "D", SERIES[1]),
    "exponentials": Limit("exponentials", "the exponential units", "o", SERIES[4]),
    "bytes": Limit("bytes", "a copy", "s", INK),
    "additions": Limit("additions", "additions in memory", "^", SERIES[2]),
}
HALF, SINGLE = 2, 4
# Of a kernel's own name in a table: those of PyTorch's templates run on for lines.
SHOWN = 64


# What the record says -----------------------------------------------------------------


def row_of(record: Record, name: str) -> Row | None:
    row = record.find(implementation=name)
    return row if row is not None and row.status == "ok" else None


def median_ms(row: Row | None) -> float | None:
    return summarize(row.metrics["both_ms"]).median if row is not None else None


def kernels_ms(row: Row | None) -> dict[str, float]:
    """Median time in one call of each kernel by name, longest first."""
    kernels = row.metrics.get("kernels", []) if row is not None else []
    found = {k["name"]: summarize(k["time_ms"]).median for k in kernels}
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def role_of(kernel: str) -> str | None:
    """Which of our kernels this is by its name; None for PyTorch's, whose C++ names
    have "::" or a return type.
    """
    if "::" in kernel or " " in kernel or kernel.startswith("triton_"):
        return None
    return next((role for role in ROLES if role in kernel), None)


def roles_ms(row: Row | None) -> dict[str, float]:
    """Time by role; everything that is not ours is "rest"."""
    found: dict[str, float] = {}
    for kernel, time in kernels_ms(row).items():
        role = role_of(kernel) or "rest"
        found[role] = found.get(role, 0.0) + time
    return found


def floors_ms(record: Record) -> dict[str, dict[str, float]]:
    """For each of our kernels the least time that each limit allows; empty where the
    limits were not measured.
    """
    ours, top = row_of(record, "ours"), row_of(record, "ceiling")
    if ours is None or top is None or not record.device.sm_clocks_mhz:
        return {}
    c = ours.config
    product, copy = (
        summarize(top.metrics[f"{name}_ms"]).median / 1e3
        for name in ("product", "copy")
    )
    flops_per_s, bytes_per_s = (
        top.metrics["product_flops"] / product,
        top.metrics["copied_bytes"] / copy,
    )
    clock = max(record.device.sm_clocks_mhz) * 1e6
    exponentials_per_s = EXPONENTIALS_PER_CLOCK * top.metrics["multiprocessors"] * clock
    entries, rows = (
        scores(batch=1, heads=c["heads"], n=c["n"], causal=True),
        c["heads"] * c["n"],
    )
    floors = {
        role: {
            "matrix": 1e3 * work.products * 2 * c["d"] * entries / flops_per_s,
            "exponentials": 1e3 * work.exponentials * entries / exponentials_per_s,
            "bytes": 1e3
            * rows
            * (work.tensors * c["d"] * HALF + work.vectors * SINGLE)
            / bytes_per_s,
        }
        for role, work in KERNELS.items()
    }
    added_per_s = additions_per_s(record)
    for role, work in KERNELS.items():
        if work.keys_per_share and added_per_s:
            floors[role]["additions"] = (
                1e3 * entries / work.keys_per_share * c["d"] * SINGLE / added_per_s
            )
    return floors


def additions_per_s(record: Record) -> float | None:
    """Bytes per second that all multiprocessors add to memory which the L2 cache holds;
    None but on Hopper.
    """
    top = row_of(record, "ceiling")
    if top is None or "addition_ms" not in top.metrics:
        return None
    return top.metrics["added_bytes"] / (
        summarize(top.metrics["addition_ms"]).median / 1e3
    )


# Tables -------------------------------------------------------------------------------


def fragments(records: list[Record]) -> dict[str, str]:
    """The test for every implementation; our kernels against their floors; every kernel
    that ran; the figure.
    """
    measured = [record for record in records if record.kind == "measured"]
    figures: dict[str, str] = {}
    for record in measured:
        if floors_ms(record):
            figures |= kernels_figure(record)
    return {
        "table.md": per_device(records, test_table),
        "kernels.md": per_device(measured, kernels_body),
        "names.md": per_device(measured, names_table),
        **figures,
    }


def test_table(record: Record) -> str:
    """Median and spread of the test."""
    if record.kind == "reported":
        rows = [
            [str(row.config["place"]), f"{row.metrics['both_ms']:.3f}"]
            for row in record.rows
        ]
        return table(["place", "time, ms"], rows)
    rows = []
    for name, label in NAMES.items():
        row = record.find(implementation=name)
        if row is None:
            continue
        if row.status != "ok":
            rows.append([label, row.status.replace("_", " "), *[""] * 4])
            continue
        s, c = summarize(row.metrics["both_ms"]), row.config
        flops = attention_flops(
            "both", d=c["d"], batch=1, heads=c["heads"], n=c["n"], causal=True
        )
        cells = [milliseconds(value) for value in (s.median, s.p20, s.p80)]
        rows.append(
            [label, *cells, f"{flops / (s.median / 1e3) / 1e12:.0f}", str(c["rep_ms"])]
        )
    return table(
        ["implementation", "median, ms", "p20", "p80", "TFLOP/s", "measured for, ms"],
        rows,
    )


def kernels_body(record: Record) -> str:
    """Where the time of one call goes, and how far each kernel is from its floor."""
    times, floors = roles_ms(row_of(record, "ours")), floors_ms(record)
    total = sum(times.values())
    shown = [
        limit
        for limit in LIMITS
        if any(floors.get(role, {}).get(limit) for role in times)
    ]
    rows = []
    for role, label in ROLES.items():
        if role in times:
            limits = floors.get(role, {})
            cells = [
                f"{limits[limit]:.3f}" if limits.get(limit) else "" for limit in shown
            ]
            floor = max(limits.values(), default=0.0)
            over = f"{times[role] / floor:.2f}" if floor else ""
            rows.append(
                [
                    label,
                    f"{times[role]:.3f}",
                    percent(times[role] / total),
                    *cells,
                    over,
                ]
            )
    if "rest" in times:
        rest = [
            "the rest: sum, dO written out, gradients gathered",
            f"{times['rest']:.3f}",
            percent(times["rest"] / total),
        ]
        rows.append([*rest, *[""] * (len(shown) + 1)])
    if not rows:
        return ""
    header = [
        "kernel",
        "time, ms",
        "share",
        *(f"floor by {LIMITS[limit].label}, ms" for limit in shown),
    ]
    text = table([*header, "time / highest floor"], rows)
    if not floors:
        return text
    rates = ", of ".join(LIMITS[limit].rate for limit in shown)
    drawn = figure(
        f"flash_leaderboard-kernels-{record.device.slug}",
        kernels_alt(record),
        f"Time of each kernel in one call. Marks: at the rates of {rates}.",
    )
    return f"{drawn}\n\n{text}"


def names_table(record: Record) -> str:
    """Every kernel of one call of the test, by its own name."""
    rows = []
    for name, label in NAMES.items():
        for kernel, time in kernels_ms(row_of(record, name)).items():
            short = kernel if len(kernel) <= SHOWN else f"{kernel[:SHOWN]}…"
            rows.append([label, f"`{short.replace('|', '')}`", f"{time:.3f}"])
    return table(["implementation", "kernel", "time, ms"], rows, left=2) if rows else ""


# Figure -------------------------------------------------------------------------------


def kernels_alt(record: Record) -> str:
    times, floors = roles_ms(row_of(record, "ours")), floors_ms(record)
    parts = []
    for role, label in ROLES.items():
        if role in times:
            over = times[role] / max(floors[role].values())
            parts.append(f"{label} {times[role]:.2f} ms, {over:.1f} times its floor")
    return f"{'; '.join(parts) or 'No kernel of ours was seen'}."


def kernels_figure(record: Record) -> dict[str, str]:
    times, floors = roles_ms(row_of(record, "ours")), floors_ms(record)
    with canvas(height=3.2) as fig:
        axes = fig.subplots()
        ran = {role: label for role, label in ROLES.items() if role in times}
        axes.barh(
            list(ran.values()),
            [times[role] for role in ran],
            color=SERIES[0],
            height=0.5,
            label="measured",
        )
        for limit, (label, _, marker, color) in LIMITS.items():
            # D multiplies no matrices: a mark at zero would say that it did.
            marks = {
                ran[role]: floors[role][limit]
                for role in ran
                if floors[role].get(limit)
            }
            if not marks:
                continue
            style = {
                "marker": marker,
                "color": color,
                "s": 45,
                "edgecolors": "#ffffff",
                "linewidths": 1.0,
                "zorder": 3,
            }
            axes.scatter(list(marks.values()), list(marks), label=label, **style)
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlim(left=0)
        axes.set_xlabel("time in one call, ms")
        fig.legend(
            loc="outside upper center", ncols=4, columnspacing=1.0, handletextpad=0.4
        )
        return svg_pair(f"kernels-{record.device.slug}", fig)


# Facts --------------------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    """The test's medians, ours over the others, each kernel's time and distance from
    its floor.

    And how steady the product was that one of the floors rests on: its slowest sample
    over its fastest; how fast the copy engines add, and how long those additions of one
    backward pass take at that rate.
    """
    medians = {
        name: median_ms(row_of(record, name)) if record else None for name in NAMES
    }
    ours, found = medians["ours"], {}
    for name, time in medians.items():
        found[name] = fact(time, lambda t: f"{milliseconds(t)} ms")
        if name not in ("ours", "plain"):
            found[f"over_{name}"] = fact(
                ours / time if ours and time else None, "{:.2f}".format
            )
    found["plain_over_ours"] = fact(
        medians["plain"] / ours if ours and medians["plain"] else None, "{:.0f}".format
    )
    top = row_of(record, "ceiling") if record else None
    samples = top.metrics["product_ms"] if top else None
    found["product_slows"] = fact(
        max(samples) / min(samples) if samples else None, "{:.2f}".format
    )
    times = roles_ms(row_of(record, "ours")) if record else {}
    floors = floors_ms(record) if record else {}
    found["additions_rate"] = fact(
        additions_per_s(record) if record else None, lambda r: f"{r / 1e12:.1f} TB/s"
    )
    found["additions"] = fact(
        floors.get("one_pass", {}).get("additions"), "{:.2f} ms".format
    )
    total = sum(times.values())
    kernels = [
        f"{label} {times[role]:.2f} ms"
        for role, label in ROLES.items()
        if role in times
    ]
    found["times"] = ", ".join(kernels) or NOT_MEASURED
    found["time_rest"] = fact(times.get("rest"), "{:.2f} ms".format)
    found["share_rest"] = fact(
        times["rest"] / total if "rest" in times else None, percent
    )
    over = []
    for role, label in ROLES.items():
        # D and rounding move bytes alone, and take next to nothing.
        limits = floors.get(role, {})
        if role in times and limits.get("matrix"):
            limit = max(limits, key=limits.__getitem__)
            over.append(
                f"{label} {times[role] / limits[limit]:.1f} ({LIMITS[limit].label})"
            )
    found["over_floors"] = ", ".join(over) or NOT_MEASURED
    slowest = max(
        (role for role in ROLES if role in times), key=times.__getitem__, default=None
    )
    return found | {"slowest": ROLES[slowest] if slowest else fact(None, str)}

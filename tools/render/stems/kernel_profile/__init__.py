"""Tables and facts of `kernel_profile`: wall time and GPU time, the top kernels,
categories, attention's parts.
"""

from collections.abc import Callable

from systems.model.sizes import SIZES
from systems.profiling.kernel_names import CATEGORIES, MATMUL
from systems.records.record import Record, Row
from systems.records.summary import summarize
from tools.render.markdown import fact, per_device, percent, table
from tools.render.stems.kernel_profile import figures, reported
from tools.render.stems.kernel_profile.rows import (
    CONTEXTS,
    PARTS,
    PASSES,
    PRECISIONS,
    PRODUCTS,
    by_name,
    cell,
    disagreement,
    idle_share,
    kernels,
    matmul_share,
    on_gpu_ms,
    part,
    part_costs,
    ran,
    rates,
    share,
    slowdown,
    total_ms,
    unattributed,
    wall_ms,
)

CELL = ["size", "context", "precision"]
PROFILERS = {"nsys": "Nsight Systems", "torch": "torch.profiler"}
# The cell whose kernels are listed one by one, and the two whose numbers stand in
# sentences.
LISTED = ("small", 512)
ENDS = {"small": ("small", 512), "small_128": ("small", 128), "2_7B": ("2.7B", 512)}
# Kernels that take less are not listed.
LISTED_SHARE = 0.005


def fragments(records: list[Record]) -> dict[str, str]:
    """A table for each question, the checks, what others report, and the figures of
    each measured device.
    """
    measured = [record for record in records if record.kind == "measured"]
    return {
        "times.md": per_device(measured, times_table),
        "top.md": per_device(measured, top_table),
        "others.md": per_device(measured, others_table),
        "categories.md": per_device(measured, categories_table),
        "matmul.md": per_device(measured, matmul_table),
        "attention.md": per_device(measured, attention_table),
        "checks.md": per_device(measured, checks_table),
        **figures.fragments(measured),
        **reported.fragments(
            [record for record in records if record.kind == "reported"]
        ),
    }


def name_of(row: Row) -> list[str]:
    return [str(row.config[key]) for key in ("size", "context", "precision")]


def source_line(record: Record) -> str:
    """Which profiler the tables come from."""
    seen = sorted({PROFILERS[row.metrics["profiler"]] for row in ran(record)})
    return f"Kernels seen by {' and '.join(seen)}." if seen else ""


def whole_table(
    record: Record, header: list[str], rows: list[list[str]], left: int = 3
) -> str:
    """The table and, above it, who watched. Nothing where it has no lines."""
    return f"{source_line(record)}\n\n{table(header, rows, left)}" if rows else ""


def number(value: float | None, text: str = "{:.2f}") -> str:
    return "" if value is None else text.format(value)


def share_of(value: float | None) -> str:
    return "" if value is None else percent(value)


def times_table(record: Record) -> str:
    """(a) Wall time, with and without the profiler, span and sum of the kernels, and
    what is idle.
    """
    rows = []
    for row in record.rows:
        name = [*name_of(row), row.config["mode"]]
        if row.status != "ok":
            rows.append([*name, row.status.replace("_", " "), *[""] * 5])
            continue
        times = [
            wall_ms(row),
            on_gpu_ms(row, "busy"),
            wall_ms(row, "profiled_"),
            on_gpu_ms(row, "span"),
        ]
        wall, busy, profiled, span = map(number, times)
        rows.append(
            [
                *name,
                wall,
                busy,
                share_of(idle_share(row)),
                profiled,
                span,
                number(slowdown(row)),
            ]
        )
    measured = ["wall, ms", "sum of kernels, ms", "idle"]
    header = [
        *CELL,
        "mode",
        *measured,
        "wall, profiled, ms",
        "GPU span, profiled, ms",
        "factor",
    ]
    return whole_table(record, header, rows, left=4)


def top_table(record: Record) -> str:
    """(b) The kernel that takes longest in the forward pass, and in forward and
    backward together.
    """
    rows = []
    for size in SIZES:
        for context in CONTEXTS:
            for precision in PRECISIONS:
                for passes in ("forward", "forward and backward"):
                    mode, phases = PASSES[passes]
                    row = cell(record, size, context, mode, precision)
                    if row is None or not (found := by_name(row, phases)):
                        continue
                    name, _, calls, ms = found[0]
                    products = sum(
                        item["calls"]
                        for item in kernels(row, phases)
                        if item["category"] == MATMUL
                    )
                    told = [
                        f"`{name}`",
                        f"{calls:g}",
                        percent(ms / (total_ms(row, phases) or 1)),
                        f"{products:g}",
                    ]
                    rows.append([size, str(context), precision, passes, *told])
    header = [
        *CELL,
        "pass",
        "top kernel",
        "calls",
        "share of kernel time",
        "kernels of products",
    ]
    return whole_table(record, header, rows, left=5)


def others_table(record: Record) -> str:
    """(c) What else takes time in one forward pass, kernel by kernel."""
    row = cell(record, *LISTED, "forward")
    whole = total_ms(row)
    rows = [
        [f"`{name}`", category, f"{calls:g}", f"{ms:.3f}", percent(ms / whole)]
        for name, category, calls, ms in by_name(row)
        if whole and category != MATMUL and ms / whole >= LISTED_SHARE
    ]
    return whole_table(
        record,
        ["kernel", "category", "calls", "ms", "share of kernel time"],
        rows,
        left=2,
    )


def categories_table(record: Record) -> str:
    """(c) The share of every category in the forward pass; the last column is what they
    add up to.
    """
    rows = []
    for row in ran(record):
        if row.config["mode"] == "forward":
            shares = [share_of(share(row, category)) for category in CATEGORIES]
            rows.append([*name_of(row), *shares, number(total_ms(row))])
    return whole_table(record, [*CELL, *CATEGORIES, "all, ms"], rows)


def matmul_table(record: Record) -> str:
    """(d) The share of matrix products in inference, in forward and backward, and in a
    full step.
    """
    rows = []
    for size in SIZES:
        for context in CONTEXTS:
            for precision in PRECISIONS:
                shares = [
                    matmul_share(record, size, context, passes, precision)
                    for passes in PASSES
                ]
                if any(shares):
                    step = cell(record, size, context, "step", precision)
                    optimizer = total_ms(step, ("optimizer",))
                    rows.append(
                        [
                            size,
                            str(context),
                            precision,
                            *map(share_of, shares),
                            number(optimizer),
                        ]
                    )
    return whole_table(record, [*CELL, *PASSES, "optimizer's kernels, ms"], rows)


def attention_table(record: Record) -> str:
    """(e) Each part of attention in an fp32 forward pass: kernels, time, FLOPs, bytes,
    and the rates reached.
    """
    rows = []
    for row in ran(record):
        if (row.config["mode"], row.config["precision"]) != ("forward", "fp32"):
            continue
        for name in PARTS:
            if (seen := part(row, name)) and (reached := rates(row, name)):
                flops, moved = part_costs(row)[name]
                cells = [
                    f"{seen[0]:g}",
                    f"{seen[1]:.3f}",
                    f"{flops / 1e9:.2f}",
                    f"{moved / 1e9:.2f}",
                ]
                rates_shown = [f"{reached[0] / 1e12:.2f}", f"{reached[1] / 1e12:.2f}"]
                rows.append(
                    [
                        row.config["size"],
                        str(row.config["context"]),
                        name,
                        *cells,
                        *rates_shown,
                    ]
                )
    header = [
        "size",
        "context",
        "part",
        "kernels",
        "ms",
        "GFLOP",
        "GB moved",
        "TFLOP/s",
        "TB/s",
    ]
    return whole_table(record, header, rows)


def checks_table(record: Record) -> str:
    """What must hold, row by row."""
    rows = [
        [
            *name_of(row),
            row.config["mode"],
            percent(unattributed(row)),
            share_of(disagreement(row)),
            number(slowdown(row)),
        ]
        for row in ran(record)
    ]
    header = [
        *CELL,
        "mode",
        "unattributed",
        "products by name against by operation",
        "profiler's factor",
    ]
    return whole_table(record, header, rows, left=4)


# Facts --------------------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    """The answers' numbers: small at two contexts and 2.7B at one, in fp32 unless
    named; and the checks' worst.
    """
    ms, two = "{:.2f} ms".format, "{:.2f}".format
    rows = ran(record)
    found: dict[str, str] = {}
    for key, (size, context) in ENDS.items():
        forward = cell(record, size, context, "forward")
        step = cell(record, size, context, "step")
        found |= {
            f"wall_{key}": fact(wall_ms(forward), ms),
            f"profiled_{key}": fact(wall_ms(forward, "profiled_"), ms),
            f"span_{key}": fact(on_gpu_ms(forward, "span"), ms),
            f"busy_{key}": fact(on_gpu_ms(forward, "busy"), ms),
            f"idle_{key}": fact(idle_share(forward), percent),
            f"idle_step_{key}": fact(idle_share(step), percent),
            **{
                f"{passes.replace(' ', '_')}_matmul_{key}": text
                for passes, text in matmul_facts(record, size, context)
            },
            **top_facts(key, record, size, context),
            **attention_facts(key, forward),
        }
        for category in CATEGORIES:
            found[f"{category}_{key}"] = fact(share(forward, category), percent)
    for passes, text in matmul_facts(record, "2.7B", 512, "bf16"):
        found[f"{passes.replace(' ', '_')}_matmul_2_7B_bf16"] = text
    gaps = [abs(gap) for row in rows if (gap := disagreement(row)) is not None]
    factors = [factor for row in rows if (factor := slowdown(row)) is not None]
    marks = [summarize(row.metrics["thousand_marks_ms"]).median for row in rows]
    seen = sorted({PROFILERS[row.metrics["profiler"]] for row in rows})
    return found | {
        "profiler": " and ".join(seen) or "not measured",
        "unattributed_most": fact(max(map(unattributed, rows), default=None), percent),
        "disagreement_most": fact(max(gaps, default=None), percent),
        "factor_least": fact(min(factors, default=None), two),
        "factor_most": fact(max(factors, default=None), two),
        # Of a thousand marks in ms, which is one in µs.
        "mark_us": fact(max(marks, default=None), "{:.1f} µs".format),
    }


def matmul_facts(
    record: Record | None, size: str, context: int, precision: str = "fp32"
) -> list[tuple[str, str]]:
    return [
        (passes, fact(matmul_share(record, size, context, passes, precision), percent))
        for passes in PASSES
    ]


def top_facts(
    key: str, record: Record | None, size: str, context: int
) -> dict[str, str]:
    """The top kernel of the forward pass and of both passes, and whether it is the
    same.
    """
    told: dict[str, str] = {}
    names = []
    for short, passes in (("forward", "forward"), ("both", "forward and backward")):
        mode, phases = PASSES[passes]
        row = cell(record, size, context, mode)
        found = by_name(row, phases)
        name, calls, ms = (
            (found[0][0], found[0][2], found[0][3]) if found else (None, None, None)
        )
        whole = total_ms(row, phases)
        names.append(name)
        told |= {
            f"top_{short}_{key}": name or "not measured",
            f"top_{short}_calls_{key}": fact(calls, "{:g}".format),
            f"top_{short}_share_{key}": fact(
                ms / whole if ms is not None and whole else None, percent
            ),
        }
    same = "the same kernel" if names[0] == names[1] else "another kernel"
    return told | {f"top_same_{key}": same if all(names) else "not measured"}


def attention_facts(key: str, row: Row | None) -> dict[str, str]:
    """Softmax against the two products: time, FLOPs, bytes, and rates."""
    softmax, products = (
        part(row, "attention softmax"),
        [part(row, name) for name in PRODUCTS],
    )
    costs = part_costs(row) if row is not None else None
    time = sum(p[1] for p in products if p) if all(products) else None
    ratio: Callable[[int], float | None] = lambda i: (  # noqa: E731
        sum(costs[name][i] for name in PRODUCTS) / costs["attention softmax"][i]
        if costs
        else None
    )
    of_softmax, of_products = rates(row, "attention softmax"), rates(row, *PRODUCTS)
    return {
        f"softmax_ms_{key}": fact(softmax and softmax[1], "{:.2f} ms".format),
        f"softmax_kernels_{key}": fact(softmax and softmax[0], "{:g}".format),
        f"products_ms_{key}": fact(time, "{:.2f} ms".format),
        f"time_ratio_{key}": fact(
            time / softmax[1] if time and softmax else None, "{:.2f}".format
        ),
        f"flops_ratio_{key}": fact(ratio(0), "{:.0f}".format),
        f"bytes_ratio_{key}": fact(ratio(1), "{:.2f}".format),
        f"softmax_bytes_rate_{key}": fact(
            of_softmax and of_softmax[1] / 1e12, "{:.2f} TB/s".format
        ),
        f"softmax_flops_rate_{key}": fact(
            of_softmax and of_softmax[0] / 1e12, "{:.2f} TFLOP/s".format
        ),
        f"products_flops_rate_{key}": fact(
            of_products and of_products[0] / 1e12, "{:.1f} TFLOP/s".format
        ),
    }

"""The tables of launch configurations as compiled: what each needs of its GPU, and how
long a model of its loop says that an A100 takes where nobody timed one.

The model is tried on the GPU of the record: there it stands beside what was measured.
What was compiled stands in a file of its own (`tools/compile_tables.py`).
"""

from collections.abc import Mapping
from statistics import median
from typing import Any

from packaging.version import Version

from systems.attention.triton.tuned import kernels_hash
from systems.formulas.chips import CHIPS, KIB, TARGETS, Chip, chip_of
from systems.formulas.loop_times import UNITS, round_cycles, times_ms
from systems.records.record import Record
from tools.render.compiled_files import TABLES as COMPILED
from tools.render.load import Found, ours
from tools.render.markdown import (
    OPEN,
    Markup,
    captioned,
    inert,
    milliseconds,
    table,
    tabs,
)
from tools.render.rows import MISSING, Cell, known, measured, say, span
from tools.render.stems.flash_peers.rows import SHAPE, long_cells, shape_text

# For whom times are predicted: the GPU in question, and the one where they were
# measured, by the head dimensions that were.
PREDICTED, WIDTHS = ("a100", "h100"), (64, 128)
# What a pass of the plain kernels launches; dq's kernel forms three products, dk and
# dv's four.
LAUNCHED = {"forward": ("forward",), "backward": ("dq", "dkdv")}
ARITHMETIC = {"half": "bf16, fp16", "high": 'fp32, "high"', "highest": "fp32"}
Row = Mapping[str, Any]


def newest() -> str:
    """The version that compiled for every GPU, the newest of those: one that was run
    for some takes none of the others from the page. Nothing where there is none.
    """
    compiled_for = {
        v: by_gpu(found["rows"]) for v, found in COMPILED.versions().items()
    }
    whole = [v for v, gpus in compiled_for.items() if gpus.keys() == TARGETS.keys()]
    return max(whole, default="", key=Version)


def by_gpu(rows: list[Row]) -> dict[str, list[Row]]:
    there = {name: [r for r in rows if r["gpu"] == name] for name in TARGETS}
    return {name: of for name, of in there.items() if of}


# The tables ---------------------------------------------------------------------------


def config_text(config: tuple[Any, ...]) -> str:
    """ "128 x 64, 4 warps, 2 stages"."""
    q, k, warps, stages, *_ = config
    return f"{q} × {k}, {warps}, {stages}"


def needs_table(rows: list[Row]) -> str:
    """A line for each kernel of each arithmetic and head dimension."""
    shown = [r for r in rows if r["causal"]]
    head = ["dtype", "d", "kernel", "tile, warps, stages", "split ahead", "anew"]
    head += ["shared, KiB", "registers", "stack, bytes", "spills", "reloads"]
    head += ["programs"]
    lines = [
        [
            ARITHMETIC[r["arithmetic"]],
            str(r["d"]),
            r["kernel"],
            config_text(r["config"]),
            "yes" if r["config"][5] else "no",
            r["config"][6] or "nothing",
            f"{r['shared_bytes'] / KIB:.1f}",
            str(r["registers"]),
            str(r["stack_bytes"]),
            str(r["loop"]["spilled"]),
            str(r["loop"]["reloaded"]),
            str(r["programs"]),
        ]
        for r in shown
    ]
    return table(head, lines, left=3)


def needs_fragment() -> str:
    """A tab for each GPU, with what it was compiled by."""
    version = newest()
    if not version:
        return COMPILED.missing("Not compiled")
    parts = by_gpu(COMPILED.versions()[version]["rows"])
    shown = tabs(
        (TARGETS[name].name, needs_table(rows)) for name, rows in parts.items()
    )
    link = Markup("[file](results/tables-compiled.json)")
    line = f"Compiled with Triton {version}, not timed · {link}\n{{ .provenance }}\n"
    caption = "What each launch configuration needs, under a causal mask."
    return captioned(caption, f"{shown}\n\n{line}{stale(version)}")


def stale(version: str) -> str:
    """A remark, where the kernels or their launches have changed since they were
    compiled. What the tables hold is written into each row.
    """
    if COMPILED.versions()[version]["source_hash"] == kernels_hash():
        return ""
    return "\n**Stale:** compiled from an earlier version of the code.\n{ .stale }\n"


# Predictions --------------------------------------------------------------------------


def rows_of(version: str, gpu: str, d: int, causal: bool) -> dict[str, Row]:
    """By kernel, of 16 bits."""
    wanted = (gpu, "half", d, causal)
    return {
        r["kernel"]: r
        for r in COMPILED.versions().get(version, {}).get("rows", [])
        if (r["gpu"], r["arithmetic"], r["d"], r["causal"]) == wanted
    }


def predicted_ms(
    rows: Mapping[str, Row], of: str, c: Mapping[str, Any], chip: Chip, capability: str
) -> tuple[float, float]:
    """Both bounds of a pass at the shape `c`; MISSING where it was not compiled."""
    bounds = []
    for kernel in LAUNCHED[of]:
        if kernel not in rows:
            return MISSING, MISSING
        r = rows[kernel]
        q, k, warps, *_ = r["config"]
        of_round = round_cycles(r["loop"], warps, r["programs"], UNITS[capability])
        heads = c["batch"] * c["heads"]
        tiles = kernel, q, k, heads, c["n"], c["causal"]
        bounds.append(times_ms(*tiles, of_round, r["programs"], chip.sms, chip.clock))
    least, most = (sum(each) for each in zip(*bounds, strict=True))
    return least, most


def error(record: Record | None, c: Cell, of: str) -> float:
    """What was measured over what the model predicts for that GPU and that Triton."""
    chip = chip_of(record.device.slug) if record else None
    if record is None or chip is None:
        return MISSING
    capability, version = record.device.capability, record.software.get("triton", "")
    name = next((n for n, t in TARGETS.items() if t.capability_text == capability), "")
    rows = rows_of(version, name, c.config["d"], c.config["causal"])
    return c.ms(of) / predicted_ms(rows, of, c.config, chip, capability or "")[1]


def shapes(record: Record | None) -> list[Cell]:
    """Where the plain kernels were timed: shapes of those that were compiled, without
    shared heads.
    """
    found = long_cells(record, "bf16", "ours_triton")
    own = [c for c in found if c.config.get("group", 1) == 1]
    return [c for c in own if c.config["d"] in WIDTHS]


def errors(record: Record | None) -> list[float]:
    """Of each pass of every shape that the plain kernels were timed at."""
    return known(error(record, c, of) for c in shapes(record) for of in LAUNCHED)


def predictions_table(record: Record | None) -> str:
    """The A100 at each shape: what the model says, and how wrong it was where the
    record was measured; the times themselves, where that was an A100.
    """
    chip, version = CHIPS["nvidia-a100"], newest()
    found, lines = shapes(record), []
    for c in found:
        rows = rows_of(version, "a100", c.config["d"], c.config["causal"])
        times = [predicted_ms(rows, of, c.config, chip, "8.0")[1] for of in LAUNCHED]
        over = [say(error(record, c, of), "{:.2f}") for of in LAUNCHED]
        cells = [say(time, milliseconds) for time in times]
        own = [c.ms(of) for of in LAUNCHED if is_a100(record)]
        there = [say(time, milliseconds) for time in own]
        lines.append([shape_text(c), *cells, *there, *over])
    head = [SHAPE, *(f"{of}, ms" for of in LAUNCHED)]
    head += [f"measured {of}, ms" for of in LAUNCHED if is_a100(record)]
    head += [f"{of}, off by" for of in LAUNCHED]
    # The shapes of the leaderboard and of cuDNN's bar are the first.
    return table(head, lines, telling=[i < OPEN for i in range(len(found))])


def is_a100(record: Record | None) -> bool:
    """Whether it is of a whole one."""
    whole = CHIPS["nvidia-a100"]
    return record is not None and chip_of(record.device.slug) is whole


def judge(found: Found) -> Record | None:
    """Beside whose times the predictions stand: an A100's, if anyone measured one."""
    of_a100 = filter(is_a100, measured(found.get("flash_peers", [])))
    return next(of_a100, ours(found, "flash_peers"))


def predictions_fragment(record: Record | None) -> str:
    shown = predictions_table(record)
    if not newest():
        return COMPILED.missing("Not predicted")
    if not shown:
        return (
            "Not predicted: no shapes were measured; run "
            "`python tools/regen_tables.py --only flash_peers`.\n"
        )
    link = Markup("[file](results/tables-compiled.json)")
    how = "Predicted, then measured" if is_a100(record) else "Predicted, not measured"
    line = (
        f"**{how}**, from kernels compiled with Triton {newest()} · {link}\n"
        "{ .provenance }\n"
    )
    name = record.device.name if record else ""
    caption = (
        f"What the model predicts for an A100. *Off by*: the time that the "
        f"{inert(name)} took, over what the model predicts for it."
    )
    return captioned(caption, f"{shown}\n\n{line}{stale(newest())}")


def fragments(found: Found) -> dict[str, str]:
    return {
        "compiled-needs.md": needs_fragment(),
        "compiled-predictions.md": predictions_fragment(judge(found)),
    }


def facts(found: Found) -> dict[str, str]:
    """By how much the model was off where the plain kernels were timed."""
    off = errors(ours(found, "flash_peers"))
    usual = median(off) if off else MISSING
    return {
        "error": span(off),
        "error_usual": say(usual, "{:.2f}"),
    }

"""Render docs/generated/student-*.md: what measuring takes, GPUs, example output."""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from io import StringIO

from rich.console import Console
from rich.table import Column, Table

from systems import align_rows
from systems.experiments import GPU, STEMS
from systems.formulas.gpus import GPUS, Gpu
from systems.records.record import Record
from tools.render.load import Found, primary_gpu, primary_gpu_key, primary_record
from tools.render.markdown import NOTHING_YET, items_table, table
from tools.render.rows import NOT_MEASURED, peak_rates
from tools.render.spanning.writeup import load_problems

# GPUs for which measuring times are predicted; GPUs whose OOM rows are counted.
TIMES, MEMORY = {"h100": "H100", "a100-80": "A100"}, ("a100-80", "a100-40")
# Problems whose rows are folded: they take little time or give no points.
FOLDED = ("mixed_precision_accumulation", "gradient_checkpointing", "torch_compile")
# A GPU that the table of GPUs leaves out.
OLDER_GPU = "rtx3090"


def fragments(found: Found) -> dict[str, str]:
    """Return the files `student-*.md`: problems, setup check, GPUs, and an example."""
    return {
        "student-problems.md": problems_table(found),
        "student-check.md": check_setup_text(found),
        "student-gpus.md": gpus_table(),
        "student-measured.md": measuring_output(found),
    }


def problems_table(found: Found) -> str:
    """Return a table, a row per problem: experiments, points, minutes, OOM rows."""
    # Skip experiments on the meta device, which take seconds.
    measured = {s: primary_record(found, s) for s in STEMS if STEMS[s].full == GPU}
    others = {key: name for key, name in TIMES.items() if key != primary_gpu_key()}
    rows, seen, shown = [], set[str](), []
    for problem in load_problems():
        # Count an experiment only at the first problem that uses it.
        stems = dict.fromkeys(stem for a in problem.answers for stem in a.stems)
        if not (new := [stem for stem in stems if stem not in seen]):
            continue
        seen.update(new)
        link = f"[`{problem.name}`](writeup.md#{problem.name})"
        costs = cost_cells([measured[stem] for stem in new if stem in measured], others)
        names = ", ".join(f"`{stem}`" for stem in new)
        rows.append([link, names, str(problem.points or ""), *costs])
        shown.append(problem.name not in FOLDED)
    for name, stems in (("all of these", seen & {*measured}), ("everything", measured)):
        costs = cost_cells([measured[stem] for stem in stems], others)
        rows.append([f"**{x}**" if x else "" for x in (name, "", "", *costs)])
    name = GPUS[gpu].name if (gpu := primary_gpu_key()) else primary_gpu()
    heads = ["problem", "`--only`", "points", f"{name}, measured", *others.values()]
    heads += ["OOM on 80 GB", "OOM on 40 GB"]
    return table(heads, rows, left=2, shown_first=[*shown, False, True]) + "\n"


def cost_cells(found: list[Record | None], others: Collection[str]) -> list[str]:
    """Return cells: minutes that the records took, predicted minutes on GPUs `others`,
    rows out of memory on each GPU in MEMORY; "not measured" if a record is None.
    """
    if len(records := [record for record in found if record]) < len(found):
        return [NOT_MEASURED, *[""] * len((*others, *MEMORY))]
    minutes = sum(row.seconds or 0 for r in records for row in r.rows) / 60
    slower = (minutes * slowdown(GPUS[name]) for name in others)
    too_large = (count_oom_rows(records, GPUS[name].free_bytes) for name in MEMORY)
    return [f"{max(m, 1):.0f}" for m in (minutes, *slower)] + [*too_large]


def slowdown(gpu: Gpu) -> float:
    """Return the largest ratio of a peak rate of the primary GPU to that of `gpu`."""
    primary = peak_rates(primary_gpu())
    rates = ("fp32", "bf16", "bandwidth")
    return max(getattr(primary, rate) / getattr(gpu.peak, rate) for rate in rates)


def count_oom_rows(records: list[Record], free_bytes: int) -> str:
    """Count rows that run out of memory with `free_bytes`, as text; "–" if unknown."""
    rows = [row for record in records for row in record.rows]
    names = ("peak_allocated_bytes", "kept_peak_allocated_bytes")
    peaks = [max(row.metrics.get(name) or 0 for name in names) for row in rows]
    exhausted = sum(row.status == "out_of_memory" for row in rows)
    measured_on = min(record.device.memory_bytes or 0 for record in records)
    if not any(peaks) or exhausted and measured_on < free_bytes:
        return "–"
    return str(exhausted + sum(peak > free_bytes for peak in peaks))


def check_setup_text(found: Found) -> str:
    """Return the first lines of `python -m systems.check_setup` on the primary GPU."""
    ours = (primary_record(found, stem) for stem in STEMS)
    if (record := next((r for r in ours if r and r.kernels), None)) is None:
        return NOTHING_YET
    lines = {
        **record.software,
        "GPU by the driver": record.device.name_and_driver,
        "torch runs on": record.device.name,
        **{f"attention: {name}": text for name, text in record.kernels.items()},
    }
    return f"```console\n$ python -m systems.check_setup\n{align_rows(lines)}```\n"


def measuring_output(found: Found) -> str:
    """Return the summary that measuring `warmup` prints on the primary GPU."""
    if (record := primary_record(found, "warmup")) is None:
        return NOTHING_YET
    statuses = Counter(row.status for row in record.rows)
    seconds = sum(row.seconds or 0 for row in record.rows)
    console = Console(file=StringIO(), width=80, color_system=None)
    with console.capture() as captured:
        console.print(outcome_table([("warmup", "measured", statuses, seconds)]))
    grid = " --quick" * (record.grid == "quick")
    command = f"$ python tools/regen_tables.py{grid} --only warmup"
    return "\n".join(["```console", command, *captured.get().splitlines(), "```", ""])


def outcome_table(
    outcomes: Iterable[tuple[str, str, Mapping[str, int], float]],
) -> Table:
    """Return a table of outcomes (experiment, message, rows by status, seconds)."""
    table = Table(Column("experiment", no_wrap=True), "outcome", "rows", "took")
    for stem, message, statuses, seconds in outcomes:
        rows = ", ".join(f"{n} {s.replace('_', ' ')}" for s, n in statuses.items())
        table.add_row(stem, message, rows, f"{seconds:.0f} s" if seconds else "")
    return table


def gpus_table() -> str:
    """Return a table of common GPUs: memory, dense peak rates, ridge points."""
    shown = items_table(
        [gpu for name, gpu in GPUS.items() if name != OLDER_GPU],
        ("GPU", lambda gpu: gpu.name),
        ("memory", lambda gpu: gpu.memory_mib / 1024, "{:.0f} GiB"),
        ("TB/s", lambda gpu: gpu.peak.bandwidth / 1e12, "{:.2f}"),
        ("fp32", lambda gpu: gpu.peak.fp32 / 1e12, "{:.4g}"),
        ("TF32", lambda gpu: gpu.peak.tf32 / 1e12, "{:.4g}"),
        ("bf16", lambda gpu: gpu.peak.bf16 / 1e12, "{:.4g}"),
        ("ridge fp32", lambda gpu: gpu.peak.fp32 / gpu.peak.bandwidth, "{:.0f}"),
        ("ridge bf16", lambda gpu: gpu.peak.bf16 / gpu.peak.bandwidth, "{:.0f}"),
    )
    return f"{shown}\n"

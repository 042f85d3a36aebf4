"""Render the "ladder": the speedup of each optimization step of the attention kernel,
its distance from a lower bound, and its registers and shared memory.

Times and resources come from `flash_ablation`, the comparison with cuDNN from
`flash_peers`.
"""

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from matplotlib.figure import Figure

from systems.formulas.gpus import KIB
from systems.records.record import Record
from tools.render import plots
from tools.render.frame import Frame, Line, frame
from tools.render.load import Found, gpu_record, primary_record
from tools.render.markdown import device_tabs, percent
from tools.render.occupancy import BY_CAPABILITY, blocks_per_sm
from tools.render.plots import ACCENT, GREY, INK, PALE, WARN
from tools.render.rows import MISSING, dropna, fmt, nanmin
from tools.render.stems.flash_ablation import (
    BACKWARD,
    FORWARD,
    PATH_OF_HOPPER,
    Step,
    step_ms,
)
from tools.render.stems.flash_leaderboard import FLOOR, SHAPE, bounds_ms
from tools.render.stems.flash_peers import TEST, shape_rows


def fragments(found: Found) -> dict[str, str]:
    records = found.get("flash_ablation", [])
    return {
        "ladder-bars.md": device_tabs(records, bars_figure),
        "ladder-forward.md": device_tabs(records, lambda r: steps_table(r, FORWARD)),
        "ladder-backward.md": device_tabs(records, lambda r: steps_table(r, BACKWARD)),
        "ladder-needs.md": device_tabs(records, resources_table),
    }


def steps(record: Record | None, named: Mapping[str, Step]) -> Frame:
    """Return a row per optimization step in `named` (FORWARD or BACKWARD): GPU `ms`,
    `speedup` over the step before, lower bound / ms. Skip Hopper steps run by Triton.
    """
    rows = frame(record).arrange(step=named)
    # Skip steps of the Hopper kernel where it did not run: they repeat the step above.
    found = rows.where(
        lambda x: x["step"] not in PATH_OF_HOPPER or x.get("ran") == "hopper"
    ).derive(
        name=lambda x: named[x["step"]].name, ms=lambda x: step_ms(record, x["step"])
    )
    rungs = [x for x in found if x["step"] != "first_forward"]
    before = {x["step"]: above for above, x in pairwise([Line(ms=MISSING), *rungs])}
    bound = bound_ms(record, "forward" if named is FORWARD else "backward")
    return found.derive(
        speedup=lambda x: before.get(x["step"], Line(ms=MISSING))["ms"] / x["ms"],
        of_bound=lambda x: bound / x["ms"],
    )


def bound_ms(record: Record | None, phase: str, job: str = FLOOR) -> float:
    """Return the least ms that `job`, such as "exponentials", takes in a phase."""
    kernel = {"forward": "forward", "backward": "one_pass"}[phase]
    return bounds_ms(record, kernel, SHAPE)[job] if record else MISSING


def steps_table(record: Record, named: Mapping[str, Step]) -> str:
    return steps(record, named).table(
        ("step", "name"),
        ("expected because", lambda x: named[x["step"]].because),
        ("expected speedup", lambda x: named[x["step"]].predicted or "", "{:g}"),
        ("speedup", "speedup", "{:.2f}"),
        ("ms", "ms", "{:.2f}"),
        ("bound / time", "of_bound", percent),
        ("deterministic", "repeats", lambda same: "yes" if same else "no"),
        left=2,
        alike=("deterministic",),
    )


def resources_table(record: Record) -> str:
    """Return a table of registers, shared memory, ... by step, or "" without data."""
    found = Frame([*steps(record, FORWARD), *steps(record, BACKWARD)])
    gpu = BY_CAPABILITY.get(record.device.capability or "")

    def column(head: str, text: str) -> tuple[str, Callable[[Line], str]]:
        """Return a table column that fills `text` ("{registers}") for each kernel."""
        return head, lambda x: " / ".join(text.format(**k) for k in x["described"])

    def describe(kernel: dict[str, Any]) -> dict[str, Any]:
        needs = (kernel[x] for x in ("registers", "shared_bytes", "warps"))
        blocks = blocks_per_sm(gpu, *needs) if gpu else "?"
        return kernel | {"kib": kernel["shared_bytes"] / KIB, "blocks": blocks}

    measured = found.where(lambda x: x.get("kernels", []))
    return measured.derive(described=lambda x: [*map(describe, x["kernels"])]).table(
        ("step", "name"),
        column("registers", "{registers}"),
        column("spilled, bytes", "{stack_bytes}"),
        column("shared memory, KiB", "{kib:.0f}"),
        column("thread blocks × warps on an SM", "{blocks} × {warps}"),
        column("instructions per score", "{per_score:.1f}"),
    )


def bars_figure(record: Record) -> str:
    """Draw forward GPU time after each optimization step, with ticks at predictions."""
    rungs = steps(record, FORWARD).where(
        lambda x: x["ms"] and x["step"] != "first_forward"
    )
    bound = bound_ms(record, "forward")
    times = rungs.column("ms")

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.barh(range(len(times)), times, 0.62, color=PALE)
        for y, (above, time) in enumerate(pairwise([times[0], *times])):
            part = {"left": min(above, time), "color": ACCENT}
            if time > 1.02 * above:
                part["color"] = WARN
            axes.barh(y, abs(above - time), 0.62, **part)
            gain = rungs[y]["speedup"]
            speedup = f", {gain:.2f}×" if y and gain else ""
            plots.label_bar(axes, f"{time:.2f} ms{speedup}", max(above, time), y)
        for y, x in enumerate(rungs):
            predicted = FORWARD[x["step"]].predicted or MISSING
            expected = x["ms"] * x["speedup"] / predicted
            if dropna([expected]):
                axes.plot([expected] * 2, [y - 0.42, y + 0.42], color=INK, lw=2)
        plots.label_bars(axes, rungs.column("name"))
        axes.xaxis.set_visible(False)
        axes.set_xlim(0, max(times) * (1.4 if plots.is_narrow(figure) else 1.2))
        if dropna([bound]):
            axes.axvline(bound, color=GREY, lw=1.2, ls="--")
            axes.set_title(f"ms; dashed: matmuls, {bound:.2f}")

    if not rungs:
        return ""
    start, end = rungs[0]["ms"], nanmin(rungs.column("ms"))
    return plots.plot(
        record,
        "ladder",
        draw,
        f"Technique by technique, the forward pass shrinks from "
        f"{fmt(start, '{:.2f} ms')} to {fmt(end, '{:.2f} ms')}.",
        "16 causal heads of 16,384 tokens, head dimension 64, bf16. Blue: time saved "
        "by the step; orange: time added. Tick: expected time. The first kernel takes "
        f"{fmt(step_ms(record, 'first_forward'), '{:.2f} ms')}.",
        height=60 + 28 * len(rungs),
    )


def facts(found: Found) -> dict[str, str]:
    record = primary_record(found, "flash_ablation")
    peers = gpu_record(found, "flash_peers", record.device.slug) if record else None
    kernels = ("first_", "plain_", "")
    first, any_shape, end = (step_ms(record, f"{x}forward") for x in kernels)
    first_back, two_passes, back = (step_ms(record, f"{x}backward") for x in kernels)
    bound = bound_ms(record, "forward")
    two, one = "{:.5f} ms", "{:.5f}"
    return {
        "start": fmt(step_ms(record, "tiles"), two),
        "first": fmt(first, two),
        "first_backward": fmt(first_back, two),
        "atomic_backward": fmt(step_ms(record, "atomic_backward"), two),
        "two_passes": fmt(two_passes, two),
        "any_shape": fmt(any_shape, two),
        "end": fmt(end, two),
        "products": fmt(bound, two),
        "in_turn": fmt(bound + bound_ms(record, "forward", "exponentials"), two),
        "gain_any_shape": fmt(first / any_shape, one),
        "gain_backward": fmt(first_back / back, one),
        "gain_hopper": fmt(any_shape / end, one),
        "gain_hopper_backward": fmt(two_passes / back, one),
        "of_floor": fmt(bound / end, percent),
        "backward_of_floor": fmt(bound_ms(record, "backward") / back, percent),
        "over_cudnn": fmt(shape_rows(peers).one(**TEST)["both / sdpa_cudnn"], one),
    }

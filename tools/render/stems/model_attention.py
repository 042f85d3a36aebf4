"""Table, figure and facts of `model_attention`: steps with different attentions."""

from matplotlib.figure import Figure

from systems.records.record import Record
from tools.render import plots
from tools.render.fragments import Drawn, Fragments
from tools.render.frame import Frame, frame
from tools.render.markdown import format_ms, gib
from tools.render.plots import ACCENT, DARK, GREY
from tools.render.rows import fmt, span

NAMES = {"eager": "eager", "sdpa": "SDPA", "flash": "this guide"}
PEAK = "peak_allocated_bytes"
# The (size, context) of steps that facts are about.
FACT_CASES = (("2.7B", 1024), ("small", 4096), ("small", 16384))
fragments = Fragments()


def steps(record: Record | None) -> Frame:
    """Return a row per size and context: a row per attention, speedups of flash."""
    found = frame(record).derive(
        peak=lambda x: x.get(PEAK), gpu_ms=lambda x: x.get("step_gpu_ms")
    )
    return found.pivot("attention", *NAMES).derive(
        gain=lambda x: x["eager.step_ms"] / x["flash.step_ms"],
        gpu_gain=lambda x: x["eager.gpu_ms"] / x["flash.gpu_ms"],
        sdpa_over_ours=lambda x: x["sdpa.gpu_ms"] / x["flash.gpu_ms"],
    )


@fragments.add("table.md")
def steps_table(record: Record) -> str:
    return steps(record).table(
        "size",
        "context",
        *((f"{name}, ms", f"{a}.step_ms", format_ms) for a, name in NAMES.items()),
        ("eager / this guide, wall", "gain", "{:.2f}"),
        ("eager / this guide, GPU", "gpu_gain", "{:.2f}"),
        ("SDPA / this guide, GPU", "sdpa_over_ours", "{:.2f}"),
        *((f"{NAMES[a]}, peak GiB", f"{a}.peak", gib) for a in ("eager", "flash")),
    )


@fragments.figure("figure.md", "contexts", height=280, narrow=520)
def contexts_figure(record: Record) -> Drawn:
    """Draw time and memory of `small` by context, if any of its steps ran."""
    tried = frame(record, size="small").derive(gib=lambda x: x.get(PEAK) / 2**30)
    ran = {name: tried.where(bool, attention=name) for name in NAMES}
    ends = {name: found[-1] for name, found in ran.items() if found}
    if not ends:
        return None

    def draw(figure: Figure) -> None:
        times, sizes = plots.panels(figure, 2)
        # Draw FlashAttention last, over the other lines.
        for name, color in (("eager", DARK), ("sdpa", GREY), ("flash", ACCENT)):
            full = tried.where(lambda x: x.reason == "out of memory", attention=name)
            label = NAMES[name] + (", then out of memory" if full else "")
            look = {"color": color, "label": label}
            contexts = ran[name].column("context")
            plots.curve(times, contexts, ran[name].column("step_ms"), **look)
            # Dash FlashAttention's line, so that SDPA's equal line shows below it.
            look |= {"ls": "--"} if name == "flash" else {}
            plots.curve(sizes, contexts, ran[name].column("gib"), **look)
        for axes, title in ((times, "step, ms"), (sizes, "peak memory, GiB")):
            plots.set_log_scale(axes.yaxis)
            ticks = tried.values("context")
            plots.set_log2_axis(axes.xaxis, ticks, "context, tokens")
            axes.set_title(title)

    texts = [
        f"{whose} attention reaches context {x['context']:,} with {x['gib']:.1f} GiB"
        for name, whose in (("eager", "eager"), ("flash", "this guide's"))
        if (x := ends.get(name))
    ]
    return (
        draw,
        f"In a training step of small, {'; '.join(texts)}.",
        "Batch 4, bf16, wall-clock times. This guide's dashed line hides "
        "SDPA's, because both need the same memory.",
    )


def facts(record: Record | None) -> dict[str, str]:
    found = steps(record)
    large, middle, long = (found.one(size=s, context=c) for s, c in FACT_CASES)
    short = found.one(size="small", context=1024)
    return {
        "faster_2_7B_1024": fmt(large["gain"], "{:.5f}"),
        "faster_small_4096": fmt(middle["gain"], "{:.5f}"),
        "gpu_small_1024": fmt(short["gpu_gain"], "{:.5f}"),
        "memory_flash_small_16384": fmt(long["flash.peak"] / 2**30, "{:.5f} GiB"),
        "memory_growth": fmt(long["flash.peak"] / short["flash.peak"], "{:.5f}"),
        "sdpa_over_ours": span(found.column("sdpa_over_ours"), "{:.5f}"),
    }

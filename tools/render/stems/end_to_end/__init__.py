"""Tables, figures and facts of `end_to_end`: passes and steps of every size, context
and precision.
"""

from collections.abc import Iterable
from dataclasses import asdict

from matplotlib.figure import Figure

from systems.formulas.costs import find_peak, forward_flops
from systems.formulas.gpus import CONTEXT_BYTES
from systems.formulas.memory_costs import Pass
from systems.formulas.memory_peak import peak
from systems.model.sizes import SIZES, TABLE_1, VOCAB_SIZE
from systems.records.record import Record
from tools.render.claims import Judgement, claim
from tools.render.markdown import captioned, columns, gib, per_device, percent
from tools.render.plots import (
    family,
    panels,
    plain_log_scale,
    plot,
    power_of_two_axis,
)
from tools.render.rows import (
    MISSING,
    PHASES,
    Cell,
    axis,
    cells,
    known,
    least,
    measured,
    most,
    say,
    span,
)
from tools.render.stems.end_to_end import gains
from tools.render.stems.end_to_end.gains import (  # noqa: F401
    gain_grows,
)
from tools.render.stems.end_to_end.rows import (
    BATCH,
    PRECISIONS,
    at,
    flops,
    of_grid,
    share_of_peak,
    steps_at_512,
    tokens_per_second,
)

PEAK = "peak_allocated_bytes"
OUT_OF_MEMORY = "out of memory"
# The columns that name a cell, and those of its passes.
CELL = ("size", "context", "batch", "precision")
MODES = {
    "forward": "forward, ms",
    "forward_graph": "forward, graph kept, ms",
    "forward_backward": "forward + backward, ms",
    "step": "step, ms",
}
# The largest batches of the source notes.
NOTED = [("small", 256, 64), ("large", 256, 32)]


# Tables -------------------------------------------------------------------------------

CAPTIONS = {
    "headline.md": "A training step of each size at context 512.",
    "fp32.md": (
        "Each pass in fp32 at every size and context: mean ± standard deviation."
    ),
    "speedup-table.md": (
        "fp32 against bf16 autocast at every size and context. Forward is that of a "
        "training step, which keeps its graph: a pass without one has less to do."
    ),
    "speedup-tf32.md": "What TF32 and bf16 gain over fp32 in each pass, context 512.",
}


def fragments(records: list[Record]) -> dict[str, str]:
    """Tables by precision for all devices, and figures."""
    ours = measured(records)
    return {
        "fp32.md": per_device(records, lambda r: passes_table(r, grid(r), "fp32")),
        "bf16.md": per_device(ours, lambda r: passes_table(r, grid(r), "bf16")),
        "tf32.md": per_device(
            ours, lambda r: passes_table(r, grid(r, 512), *PRECISIONS)
        ),
        "batches.md": per_device(
            records, lambda r: passes_table(r, NOTED, *PRECISIONS)
        ),
        "phases.md": per_device(ours, phases_table),
        "headline.md": per_device(ours, headline_table),
        "10B.md": ten_billion(ours),
        "figures.md": per_device(ours, figures_body),
        **gains.fragments(ours),
    }


Place = tuple[str, int, int]


def grid(record: Record, context: int | None = None) -> list[Place]:
    contexts = [context] if context else axis(record, "context", batch=BATCH)
    return [(size, c, BATCH) for size in SIZES for c in contexts]


def figures_body(record: Record) -> str:
    """Where no data sheet gives the peak, there is no share of it to draw."""
    drawn = [times_figure(record)]
    if find_peak(record.device.slug):
        drawn.append(shares_figure(record))
    return "\n".join(drawn)


def passes_table(record: Record, places: Iterable[Place], *precisions: str) -> str:
    """A line for each cell and precision; empty where the record has none of them. What
    is the same in all lines is no column.
    """
    if record.kind == "reported":
        return reported_table(record, set(places), precisions)
    lines = [
        {mode: at(record, size, context, mode, p, batch) for mode in MODES}
        for size, context, batch in places
        for p in precisions
    ]
    lines = [of for of in lines if any(c.row for c in of.values())]

    def config(of: dict[str, Cell], key: str) -> object:
        return next(c.config[key] for c in of.values() if c.row)

    varies = [key for key in CELL if len({config(of, key) for of in lines}) > 1]
    # With its graph kept a pass takes as long where the GPU is full.
    modes = [m for m in MODES if m != "forward_graph" or "batch" not in varies]
    return columns(
        lines,
        *((key, lambda of, key=key: config(of, key)) for key in varies),
        *((MODES[m], lambda of, mode=m: of[mode].mean_std()) for m in modes),
        ("step's backward, ms", lambda of: of["step"].mean_std("backward")),
        ("tokens/s", lambda of: tokens_per_second(of["step"]), "{:,.0f}"),
        ("share of peak", lambda of: share_of_peak(record, of["step"]), percent),
        ("peak GiB", lambda of: of["step"][PEAK], gib),
        telling=lambda of: config(of, "context") == 512,
    )


def reported_table(
    record: Record, places: set[Place], precisions: tuple[str, ...]
) -> str:
    """What others report, as they report it: a mean and a deviation for each pass."""

    def time(name: str):
        return lambda c: (
            f"{c[f'{name}_mean_ms']:.2f} ± {c[f'{name}_std_ms']:.2f}"
            if c.get(f"{name}_mean_ms", None)
            else ""
        )

    chosen = [
        c
        for c in cells(record)
        if (c.config["size"], c.config["context"], c.config["batch"]) in places
        and c.config["precision"] in precisions
    ]
    passes = {
        "forward": "forward, ms",
        "backward": "backward, ms",
        "total": "forward + backward, ms",
    }
    shown = [(head, time(name)) for name, head in passes.items()]
    status = ("status", lambda c: c.why)
    return columns(chosen, *CELL, *shown, status)


def phases_table(record: Record) -> str:
    """Median of each phase of a step at context 512."""
    return columns(
        steps_at_512(record),
        "size",
        "precision",
        *((f"{p}, ms", lambda c, phase=p: c.ms(phase), "{:.2f}") for p in PHASES),
        ("step, ms", Cell.ms, "{:.2f}"),
        ("backward / forward", backward_over_forward, "{:.2f}"),
    )


def backward_over_forward(c: Cell) -> float:
    return c.ms("backward") / c.ms("forward")


def headline_table(record: Record) -> str:
    """A training step of each size at context 512."""

    def step(size: str, precision: str = "bf16") -> Cell:
        return at(record, size, 512, "step", precision)

    def gain(size: str) -> float:
        return step(size, "fp32").ms() / step(size).ms()

    return columns(
        TABLE_1,
        ("size", str),
        *(
            (f"step in {p}, ms", lambda size, p=p: step(size, p).ms(), "{:.0f}")
            for p in PRECISIONS
        ),
        ("fp32 / bf16", gain, "{:.1f}"),
        ("bf16 share of peak", lambda s: share_of_peak(record, step(s)), percent),
        ("fp32 memory, GiB", lambda size: step(size, "fp32")[PEAK], gib),
    )


def of_ten_billion(record: Record | None) -> bool:
    """Whether a record has rows of it."""
    return bool(record) and any(r.config["size"] == "10B" for r in record.rows)


def ten_billion(ours: list[Record]) -> str:
    """Beside what was measured, or by formula alone, which is of no record."""
    if tried := [record for record in ours if of_ten_billion(record)]:
        caption = "`10B` at context 512: time, measured peak, and the peak by formula."
        return captioned(caption, per_device(tried, ten_billion_table))
    caption = "`10B` at context 512: peaks by formula alone, before any was measured."
    return f"{captioned(caption, ten_billion_table(None))}\n"


def of_formula(mode: str, precision: str) -> int:
    """The peak of a pass of 10B at context 512."""
    return sum(peak(Pass("10B", 512, mode, precision)).values())


def ten_billion_table(record: Record | None) -> str:
    """Passes of 10B, each with what it needs by formula, whether it fitted or not."""

    def of(place: tuple[str, str]) -> Cell:
        precision, mode = place
        return at(record, "10B", 512, mode, precision)

    modes = ("forward", "forward_backward", "step")
    found = (
        ("time, ms", lambda place: of(place).mean_std()),
        ("peak, GiB", lambda place: of(place)[PEAK], gib),
    )
    return columns(
        [(precision, mode) for precision in ("fp32", "bf16") for mode in modes],
        ("precision", lambda place: place[0]),
        ("pass", lambda place: place[1].replace("_", " and ")),
        *(found if record else ()),
        ("predicted, GiB", lambda place: of_formula(*reversed(place)), gib),
        left=2,
    )


# Figures ------------------------------------------------------------------------------


def times_figure(record: Record) -> str:
    contexts = axis(record, "context", batch=BATCH)

    def draw(figure: Figure) -> None:
        found = zip(panels(figure, 2, sharey=True), ("fp32", "bf16"), strict=True)
        for axes, precision in found:
            curves = {
                size: [at(record, size, c, "forward", precision).ms() for c in contexts]
                for size in TABLE_1
            }
            family(axes, {s: (contexts, ms) for s, ms in curves.items()}, "2.7B")
            plain_log_scale(axes.yaxis)
            power_of_two_axis(axes.xaxis, contexts, "context, tokens")
            axes.set_title(f"{precision}, ms")

    grown = [
        f"by {factor:.2f} for {size} in {precision}"
        for size, precision in (("small", "bf16"), ("2.7B", "fp32"))
        if (factor := growth(record, size, precision))
    ]
    return plot(
        record,
        "times",
        draw,
        "From context 128 to 512 the time of a forward pass is multiplied "
        f"{' and '.join(grown) or 'by a factor not measured'}.",
        "Median time without gradients, for each model size. Both axes are "
        "logarithmic.",
        narrow=520,
    )


def growth(record: Record | None, size: str, precision: str) -> float:
    """Forward time at context 512 over that at 128."""
    short, long = (at(record, size, c, "forward", precision) for c in (128, 512))
    return long.ms() / short.ms()


def shares_figure(record: Record) -> str:
    def draw(figure: Figure) -> None:
        for axes, precision in zip(panels(figure, 2), ("fp32", "bf16"), strict=True):
            curves = {}
            for size in TABLE_1:
                wanted = {"size": size, "mode": "forward", "precision": precision}
                found = [c for c in of_grid(record, **wanted) if c]
                shares = [100 * share_of_peak(record, c) for c in found]
                curves[size] = [flops(c) / 1e12 for c in found], shares
            family(axes, curves, "2.7B")
            plain_log_scale(axes.xaxis, subs=(1,))
            axes.set_ylim(bottom=0)
            axes.set(xlabel="TFLOP of the pass", title=f"{precision}, % of its peak")

    bf16 = {"mode": "forward", "precision": "bf16"}
    reached = sorted(
        (share_of_peak(record, c), f"({size}, {c.config['context']})")
        for size in TABLE_1
        for c in of_grid(record, size=size, **bf16)
        if c
    )
    ends = [f"{percent(share)} {place}" for share, place in reached]
    risen = f" from {ends[0]} to {ends[-1]}" if ends else " with the FLOPs of a pass"
    return plot(
        record,
        "shares",
        draw,
        f"In bf16 the share of the peak rises{risen}.",
        "Share of the data sheet's peak that a forward pass reaches, for each model "
        "size; the points of a line are its contexts. Where it falls at the longest "
        "context, mask and softmax take over: their time grows with the square of the "
        "context, and they do hardly any FLOPs.",
        narrow=520,
    )


# Facts --------------------------------------------------------------------------------


def facts(record: Record | None) -> dict[str, str]:
    """Times, shares and memory of the cells that the pages name, and the ratios that
    they speak of.
    """
    ms = "{:.1f} ms"
    found: dict[str, str] = {}
    for size in ("small", "2.7B"):
        key = f"{size.replace('.', '_')}_128_fp32"
        forward = at(record, size, 128, "forward", "fp32")
        step = at(record, size, 128, "step", "fp32")
        found[f"forward_{key}"] = say(forward.ms(), ms)
        found[f"mean_forward_{key}"] = mean_of(forward)
        found[f"mean_backward_{key}"] = mean_of(step, "backward")
    for size, context, precision in (("small", 128, "bf16"), ("2.7B", 512, "fp32")):
        key = f"{size.replace('.', '_')}_{context}_{precision}"
        forward = at(record, size, context, "forward", precision)
        found[f"share_{key}"] = say(share_of_peak(record, forward), percent)
    largest = at(record, "2.7B", 512, "step", "fp32")[PEAK]
    ratios = fp32_ratios(record)
    of_bf16 = [share_of_peak(record, c) for c in steps(record, "bf16")]
    varied = variations(record, precision="fp32")
    steady = sum(variation < 0.02 for variation in varied)
    doubled = small_flops(512) / small_flops(128)
    two = "{:.2f}"
    return {
        **found,
        "ten_billion": "measured where it fits"
        if of_ten_billion(record)
        else "predicted by formula alone",
        "gpu_memory": say(memory_of(record), lambda v: f"{gib(v)} GiB"),
        "runs_of_10B": runs_of_10b(record),
        "memory_2_7B_512_fp32": say(largest, lambda v: f"{gib(v)} GiB"),
        "backward_over_forward_least": say(least(ratios), two),
        "backward_over_forward_most": say(most(ratios), two),
        "variation_most": say(most(varied), percent),
        "steady_rows": f"{steady} of {len(varied)}" if varied else say(MISSING),
        "growth_small_bf16": say(growth(record, "small", "bf16"), two),
        "growth_2_7B_fp32": say(growth(record, "2.7B", "fp32"), two),
        "flops_growth_small": say(doubled, two),
        "share_step_bf16_most": say(most(of_bf16), percent),
        "speedup_2_7B_512": say(gains.speedup(record, ("2.7B", 512)), "{:.1f}"),
        "speedup_small_128": say(gains.speedup(record, ("small", 128)), two),
        **gains.facts(record),
    }


def mean_of(c: Cell, *names: str) -> str:
    """ "38.32 ± 0.36 ms"."""
    told = c.mean_std(*names)
    return f"{told} ms" if c else say(told)


def memory_of(record: Record | None) -> float:
    return (record.device.memory_bytes if record else None) or MISSING


# The passes of 10B that a GPU can run, by how many of MODES fit.
RUNS = (
    "can run none of its passes",
    "can run a forward pass, but no backward pass",
    "can run forward and backward, but no optimizer step",
    "can run a whole step",
)


def runs_of_10b(record: Record | None) -> str:
    """By formula, in fp32."""
    room = memory_of(record) - CONTEXT_BYTES
    needs = [of_formula(m, "fp32") for m in ("forward", "forward_backward", "step")]
    return RUNS[sum(need <= room for need in needs)] if room else say(room)


def steps(record: Record | None, precision: str) -> list[Cell]:
    return cells(record, mode="step", precision=precision)


def fp32_ratios(record: Record | None) -> list[float]:
    """Backward over forward time of each step in fp32."""
    found = of_grid(record, mode="step", precision="fp32")
    return known(map(backward_over_forward, found))


def variations(record: Record | None, **config: object) -> list[float]:
    """Standard deviation over mean, of the passes that the assignment asks for."""
    chosen = of_grid(record, **config)
    asked = (c for c in chosen if c.config["mode"] in ("forward", "forward_backward"))
    return known(c.summary().variation for c in asked)


def small_flops(context: int) -> int:
    shape = {"vocab_size": VOCAB_SIZE, **asdict(SIZES["small"])}
    return sum(forward_flops(**shape, context=context, batch=BATCH).values())


# Claims -------------------------------------------------------------------------------


@claim(
    "benchmarking_script",
    "In fp32 a backward pass takes about twice as long as the forward pass of the same "
    "step, which is the ratio of their FLOPs: between 1.5 and 2.5 times.",
    because="two by FLOPs, and a quarter to either side for what is no product.",
)
def backward_about_twice(record: Record) -> Judgement:
    ratios = fp32_ratios(record)
    numbers = f"Ratios: {span(ratios)} over {len(ratios)} steps."
    return ratios and (all(1.5 <= ratio <= 2.5 for ratio in ratios), numbers)


@claim(
    "benchmarking_script",
    "Where the GPU is slower than the CPU that launches, passes repeat. If a forward "
    "pass without a graph, or forward and backward, takes over twice as long as at the "
    "shortest context, which has as many launches, the standard deviation is below a "
    "hundredth of the mean.",
    because="then only the GPU's clock varies, in steps of about a hundredth.",
)
def passes_steady(record: Record) -> Judgement:
    found = known(
        c.summary().variation
        for c in of_grid(record)
        if c.config["mode"] in ("forward", "forward_backward")
        and c.summary().median > 2 * shortest(record, c).summary().median
    )
    at_most = say(most(found), percent)
    numbers = f"Deviation over mean: at most {at_most}, in {len(found)} passes."
    return found and (max(found) < 0.01, numbers)


def shortest(record: Record, of: Cell) -> Cell:
    """The same pass at the shortest context."""
    same = {name: of.config[name] for name in ("size", "mode", "precision")}
    return of_grid(record, **same)[0]


@claim(
    "benchmarking_script",
    "The passes of 10B that fit are those that the formula predicts: its peak is less "
    "than the GPU's memory without what CUDA keeps there.",
)
def fits_as_predicted(record: Record) -> Judgement:
    tried = [c for c in cells(record, size="10B") if c or c.why == OUT_OF_MEMORY]
    room = memory_of(record) - CONTEXT_BYTES
    told, alike = [], []
    for c in tried:
        need = of_formula(c.config["mode"], c.config["precision"])
        alike.append(bool(c) == (need <= room))
        ran = "ran" if c else "ran out of memory"
        mode = c.config["mode"].replace("_", " and ")
        told.append(f"{mode}, {c.config['precision']}, {gib(need)} GiB: {ran}")
    numbers = f"Room: {gib(room)} GiB. {'; '.join(told)}."
    return (all(alike), numbers) if tried and room else None

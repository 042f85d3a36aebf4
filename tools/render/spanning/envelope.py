"""The back of an envelope: what formulas and data sheets predict, beside what was
measured.

A prediction needs no record. A ratio does, and reads "not measured" without one.
"""

from dataclasses import asdict, dataclass

from systems.formulas.chips import chip_of
from systems.formulas.costs import (
    FP32_BYTES,
    Peak,
    attention_part_costs,
    forward_flops,
    parameters_by_part,
    pass_flops,
)
from systems.formulas.floors import Work, floor_seconds, matmul_work, ridge_intensity
from systems.model.sizes import SIZES, VOCAB_SIZE
from systems.records.record import Record
from tools.render.load import Found, ours, primary_gpu
from tools.render.markdown import percent
from tools.render.rows import MISSING, Cell, cell, cells, data_sheet, say, span
from tools.render.stems.end_to_end.rows import at as timed
from tools.render.stems.kernel_profile.rows import at as profiled
from tools.render.stems.warmup import later, nth

BATCH = 4
# Where nobody lists the primary GPU, the drawing shows this one, and says so.
SHOWN = "nvidia-h200"


def shape(size: str, context: int) -> dict[str, int]:
    return {**asdict(SIZES[size]), "context": context, "batch": BATCH}


def of_forward(size: str, context: int) -> int:
    """Matrix FLOPs of a forward pass."""
    return sum(forward_flops(vocab_size=VOCAB_SIZE, **shape(size, context)).values())


def all_products(size: str, context: int) -> Work:
    """Every matrix product of a forward pass in fp32, operands read and results written
    once by each.
    """
    model, tokens = SIZES[size], BATCH * context
    d, wide, layers = model.d_model, model.d_ff, model.num_layers
    projection = matmul_work(tokens, d, d, FP32_BYTES)
    feed_forward = matmul_work(tokens, wide, d, FP32_BYTES)
    head = matmul_work(tokens, VOCAB_SIZE, d, FP32_BYTES)
    parts = attention_part_costs(element_bytes=FP32_BYTES, **shape(size, context))
    attention = sum(parts[f"attention {name}"][1] for name in ("scores", "output"))
    by_layer = 4 * projection.moved_bytes + 3 * feed_forward.moved_bytes
    moved = layers * by_layer + head.moved_bytes + attention
    return Work(of_forward(size, context), moved)


def softmax(size: str, context: int) -> Work:
    """Softmax as the model writes it, all layers, in fp32."""
    parts = attention_part_costs(element_bytes=FP32_BYTES, **shape(size, context))
    return Work(*parts["attention softmax"])


def attention_products(size: str, context: int) -> list[Work]:
    """The two products of attention, all layers, in fp32."""
    parts = attention_part_costs(element_bytes=FP32_BYTES, **shape(size, context))
    return [Work(*parts[f"attention {name}"]) for name in ("scores", "output")]


# What was measured of them ------------------------------------------------------------


@dataclass(frozen=True)
class Kernels:
    """Some kernels of one forward pass: how many, and their times added up."""

    calls: float
    ms: float

    @property
    def each_us(self) -> float:
        return 1e3 * self.ms / self.calls


def kernels(c: Cell, phase: str = "forward", category: str = "") -> Kernels:
    """Those of a phase and its parts, or only those of a category; Missing where there
    are none.
    """
    items = [
        item
        for item in (c["kernels"] if c else [])
        if item["phase"].startswith(phase) and item["category"].startswith(category)
    ]
    calls, ms = (sum(item[key] for item in items) for key in ("calls", "total_ms"))
    return Kernels(calls, ms) if calls else Kernels(c.missing, c.missing)


@dataclass(frozen=True)
class Regimes:
    """One row of ours for each way of being slow."""

    peak: Peak
    # `small` at context 128 under bf16, a forward pass: bound by launches.
    wall_ms: float
    all_kernels: Kernels
    # `small` at 512 in fp32: bound by memory.
    softmax: Kernels
    softmax_work: Work
    # 2.7B at 512 in fp32: bound by arithmetic.
    products: Kernels
    products_work: Work

    @property
    def launch_us(self) -> float:
        """From one launch to the next, where the GPU waits for launches."""
        return 1e3 * self.wall_ms / self.all_kernels.calls

    @property
    def busy(self) -> float:
        """The share of the pass in which some kernel runs."""
        return self.all_kernels.ms / self.wall_ms

    def shares(self, kernels: Kernels, work: Work) -> tuple[float, float]:
        """Of the memory's rate and of fp32's that these kernels reach."""
        seconds = kernels.ms / 1e3
        return (
            work.moved_bytes / seconds / self.peak.bandwidth,
            work.flops / seconds / self.peak.fp32,
        )


def regimes(found: Found) -> Regimes:
    profile, clock = (ours(found, s) for s in ("kernel_profile", "end_to_end"))
    launches = ("small", 128, "forward", "bf16")
    small, large = (profiled(profile, s, 512, "forward") for s in ("small", "2.7B"))
    return Regimes(
        data_sheet(primary_gpu()),
        timed(clock, *launches).ms("forward"),
        kernels(profiled(profile, *launches)),
        kernels(small, "forward/attention softmax"),
        softmax("small", 512),
        kernels(large, category="matmul"),
        all_products("2.7B", 512),
    )


# Facts --------------------------------------------------------------------------------


def facts(found: Found) -> dict[str, dict[str, str]]:
    """For each stem what pages say of its predictions; and `chip`, the data sheet."""
    return {
        "chip": chip_facts(),
        "kernel_profile": regime_facts(regimes(found)),
        "end_to_end": step_facts(ours(found, "end_to_end")),
        "warmup": warmup_facts(ours(found, "warmup")),
        "peak_memory": memory_facts(ours(found, "peak_memory")),
        "mixed_precision": gain_facts(ours(found, "kernel_profile")),
        "attention": {
            **traffic_facts(ours(found, "attention")),
            **dynamic_facts(
                ours(found, "attention"), ours(found, "flash_benchmarking")
            ),
        },
        "model_attention": slot_facts(
            ours(found, "kernel_profile"), ours(found, "model_attention")
        ),
    }


def chip_facts() -> dict[str, str]:
    peak, chip = data_sheet(primary_gpu()), chip_of(primary_gpu())
    fp32, bf16 = (ridge_intensity(peak, precision) for precision in ("fp32", "bf16"))
    return {
        "bandwidth": say(peak.bandwidth / 1e12, "{:.1f} TB/s"),
        "fp32": say(peak.fp32 / 1e12, "{:g} TFLOP/s"),
        "bf16": say(peak.bf16 / 1e12, "{:g} TFLOP/s"),
        "fp32_per_number": say(FP32_BYTES * fp32, "{:.0f}"),
        "bf16_per_number": say(FP32_BYTES * bf16, "{:.0f}"),
        "ridge_fp32": say(fp32, "{:.0f}"),
        "ridge_bf16": say(bf16, "{:.0f}"),
        "sms": say(chip.sms if chip else MISSING),
    }


def regime_facts(r: Regimes) -> dict[str, str]:
    floor = 1e3 * floor_seconds(r.softmax_work, r.peak, "fp32")
    two = attention_products("small", 512)
    flops = sum(product.flops for product in two)
    of_two = 1e3 * sum(floor_seconds(product, r.peak, "fp32") for product in two)
    of_fp32 = r.shares(r.softmax, r.softmax_work)[1]
    reached = r.shares(r.products, r.products_work)[1]
    return {
        "launched": say(r.all_kernels.calls, "{:,.0f}"),
        "launch_every": say(r.launch_us, "{:.1f} µs"),
        "kernel_each": say(r.all_kernels.each_us, "{:.1f} µs"),
        "busy": say(r.busy, percent),
        "softmax_bytes": f"{r.softmax_work.moved_bytes / 1e9:.2f} GB",
        "softmax_intensity": f"{r.softmax_work.intensity:.2f}",
        "softmax_floor": say(floor, "{:.2f} ms"),
        "products_flops": f"{flops / 1e9:.1f} GFLOP",
        "products_floor": say(of_two, "{:.2f} ms"),
        "floor_ratio": say(of_two / floor, "{:.2f}"),
        "softmax_over_floor": say(r.softmax.ms / floor, "{:.1f}"),
        "softmax_of_fp32": say(of_fp32, percent),
        "products_intensity": f"{r.products_work.intensity:.0f}",
        "products_of_fp32": say(reached, percent),
    }


def step_facts(record: Record | None) -> dict[str, str]:
    """Floors of passes of 2.7B at context 512, by FLOPs alone, and time over floor."""
    peak, forward = data_sheet(primary_gpu()), of_forward("2.7B", 512)
    found = {"flops_forward_2_7B_512": f"{forward / 1e12:.1f} TFLOP"}
    for mode, phases in {
        "forward": ("forward",),
        "step": ("forward", "backward"),
    }.items():
        for precision in ("fp32", "bf16"):
            key = f"{mode}_2_7B_512_{precision}"
            floor = 1e3 * pass_flops(forward, *phases) / getattr(peak, precision)
            took = timed(record, "2.7B", 512, mode, precision).ms()
            found[f"floor_{key}"] = say(floor, "{:.0f} ms")
            found[f"over_floor_{key}"] = say(took / floor, "{:.1f}")
    for context in (128, 256, 512, 1024):
        took = timed(record, "small", context, "forward", "bf16").ms()
        found[f"forward_small_{context}_bf16"] = say(took, "{:.1f} ms")
    took = timed(record, "2.7B", 512, "forward", "fp32").ms()
    found["forward_2_7B_512_fp32"] = say(took, "{:.0f} ms")
    return found


def warmup_facts(record: Record | None) -> dict[str, str]:
    """What one slow step does to the mean of ten."""
    cold = cell(record, warmup=0)
    return {"mean_predicted": say((nth(cold, 0) / later(cold) + 9) / 10, "{:.1f}")}


def gain_facts(profile: Record | None) -> dict[str, str]:
    """What bf16 can gain where only the matrix products get faster, by the ratio of the
    peaks, for a step of 2.7B at context 512.
    """
    step = profiled(profile, "2.7B", 512, "step")
    products, every = kernels(step, "", "matmul"), kernels(step, "")
    share = products.ms / every.ms
    peak = data_sheet(primary_gpu())
    ratio = peak.bf16 / peak.fp32
    return {
        "rates": say(ratio, "{:.1f}"),
        "product_share": say(100 * share, "{:.1f} %"),
        "expected_gain": say(1 / (1 - share + share / ratio), "{:.1f}"),
    }


def traffic_facts(record: Record | None) -> dict[str, str]:
    """Forward pass of one head over 16,384 tokens in fp32, d = 64, no mask: floors of
    its two products and of what its kernels read and write, eager and fused.
    """
    n, d, batch = 16384, 64, 8
    parts = attention_part_costs(
        d_model=d,
        num_layers=1,
        num_heads=1,
        context=n,
        batch=batch,
        element_bytes=FP32_BYTES,
    )
    products = [parts[f"attention {name}"] for name in ("scores", "output")]
    flops, outer = (sum(part[i] for part in products) for i in (0, 1))
    # Beside the products. Of the mask's two kernels only the scaling runs.
    moved = parts["attention softmax"][1] + parts["attention mask"][1] // 2
    # One fused kernel reads the scores and writes the probabilities.
    fused = 2 * FP32_BYTES * batch * n**2
    peak = data_sheet(primary_gpu())
    compute = 1e3 * max(flops / peak.fp32, outer / peak.bandwidth)
    eager, compiled = (1e3 * total / peak.bandwidth for total in (moved, fused))
    at = {"d": d, "n": n, "dtype": "fp32", "causal": False, "execution": "eager"}
    took = cell(record, batch=batch, **at).ms("forward")
    return {
        "products_floor": say(compute, "{:.1f} ms"),
        "moved": f"{moved / 2**30:.0f} GiB",
        "moved_fused": f"{fused / 2**30:.0f} GiB",
        "traffic_floor": say(eager, "{:.1f} ms"),
        "traffic_floor_fused": say(compiled, "{:.1f} ms"),
        "over_floors": say(took / (compute + eager), "{:.1f}"),
        "expected_gain": say((compute + eager) / (compute + compiled), "{:.1f}"),
    }


# From here on one head of attention takes so long that nobody waits for the host.
LONG = 8192


def dynamic_facts(static: Record | None, dynamic: Record | None) -> dict[str, str]:
    """Causal attention compiled for any length, over the same compiled for one: the
    time of a head alone, over that of a head of a batch.
    """
    over: dict[str, list[float]] = {"forward": [], "backward": []}
    for c in cells(dynamic, implementation="compiled"):
        shape = {key: c.config[key] for key in ("n", "d", "dtype")}
        if c.config["n"] < LONG:
            continue
        one = cell(static, **shape, causal=True, execution="compiled")
        for of, ratios in over.items():
            batch = one.config.get("batch", 1)
            ratios.append(c.ms(of) / (one.ms(of) / batch))
    return {f"dynamic_{of}": span(ratios) for of, ratios in over.items()}


def slot_facts(profile: Record | None, record: Record | None) -> dict[str, str]:
    """A forward pass of 2.7B at context 1024 in bf16: how much of it is attention, what
    it would gain if that took no time at all, and what it gains.
    """
    forward = profiled(profile, "2.7B", 1024, "forward", "bf16")
    share = kernels(forward, "forward/attention").ms / kernels(forward).ms
    eager, ours = (
        cell(record, size="2.7B", context=1024, attention=name).ms("forward")
        for name in ("eager", "flash")
    )
    return {
        "attention_share": say(share, percent),
        "gain_at_most": say(1 / (1 - share), "{:.1f}"),
        "gain_forward": say(eager / ours, "{:.1f}"),
    }


def memory_facts(record: Record | None) -> dict[str, str]:
    """What a training step of 2.7B needs beside its weights."""
    at = {"size": "2.7B", "context": 512, "precision": "fp32", "attention": "eager"}
    step = cell(record, mode="step", checkpoint=False, batch=BATCH, **at)
    weights = FP32_BYTES * sum(
        parameters_by_part(vocab_size=VOCAB_SIZE, **asdict(SIZES["2.7B"])).values()
    )
    beyond = step["peak_allocated_bytes"] - weights
    return {"beyond_weights": say(beyond / 2**30, "{:.0f}")}

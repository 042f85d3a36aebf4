"""Compare back-of-the-envelope predictions with measured times."""

from collections.abc import Callable

from systems.formulas.costs import (
    FP32_BYTES,
    Peak,
    Work,
    attention_flops,
    attention_part_costs,
    floor_seconds,
    matmul_work,
    pass_flops,
    ridge_intensity,
)
from systems.formulas.gpus import CHIPS, GPUS
from systems.model.sizes import SIZES, VOCAB_SIZE
from systems.records.record import Record
from tools.render.clocks import gpu_times
from tools.render.frame import Line, frame
from tools.render.load import Found, primary_gpu, primary_gpu_key, primary_record
from tools.render.markdown import percent, prose_number
from tools.render.rows import MISSING, NOT_MEASURED, fmt, nanmax, peak_rates
from tools.render.stems import warmup
from tools.render.stems.end_to_end.rows import BATCH, matmul_flops, pass_shape
from tools.render.stems.flash_benchmarking import head_bounds_ms
from tools.render.stems.kernel_profile.rows import (
    MATMULS,
    count_calls,
    passes,
    total_ms,
)

# GPUs for which predictions are given besides the primary GPU.
OTHERS = ("a100-80", "h100", "h200", "rtx4090")


def predict_by_gpu(value: Callable[[Peak], float], unit: str = " ms") -> str:
    """Describe `value(peak rates)` on other GPUs: "4.7 ms on an A100 80 GB, ..."."""
    others = [GPUS[name] for name in OTHERS if name != primary_gpu_key()]
    return ", ".join(
        f"{prose_number(value(gpu.peak))}{unit} on an {gpu.name}" for gpu in others
    )


def attention_work(size: str, context: int, *parts: str) -> Work:
    """Return the Work of `parts` (names in `attention_part_costs`), fp32, batch 4."""
    costs = attention_part_costs(element_bytes=FP32_BYTES, **pass_shape(size, context))
    flops, moved = (sum(costs[part][i] for part in parts) for i in (0, 1))
    return Work(flops, moved)


def forward_matmul_work(size: str, context: int) -> Work:
    """Return FLOPs and least bytes of all matmuls of an fp32 forward pass, batch 4."""
    model, tokens = SIZES[size], BATCH * context
    d, wide, layers = model.d_model, model.d_ff, model.num_layers
    projection = matmul_work(tokens, d, d, FP32_BYTES)
    feed_forward = matmul_work(tokens, wide, d, FP32_BYTES)
    head = matmul_work(tokens, VOCAB_SIZE, d, FP32_BYTES)
    by_layer = 4 * projection.moved_bytes + 3 * feed_forward.moved_bytes
    attention = attention_work(size, context, *MATMULS).moved_bytes
    moved = layers * by_layer + head.moved_bytes + attention
    return Work(matmul_flops(size, context), moved)


SOFTMAX = attention_work("small", 512, "attention softmax")
PRODUCTS = forward_matmul_work("2.7B", 512)


def bottleneck_examples(record: Record | None) -> tuple[Line, Line, Line]:
    """Return three rows with kernel times and shares of the GPU's peak rates: examples
    of a launch-bound, a memory-bound and a compute-bound forward pass, or part of one.
    """
    peak, found = peak_rates(primary_gpu()), passes(record)

    def regime(
        size: str, context: int, precision: str, phase: str, kind: str, work: Work
    ) -> Line:
        step = found.one(size=size, context=context, precision=precision)
        x = step["forward"] or step
        ms, count = total_ms(x, phase, kind), count_calls(x, phase, kind) or x.missing
        wall, seconds = step["wall_ms"], (ms or x.missing) / 1e3
        return Line(
            calls=count,
            ms=ms,
            each_us=1e3 * ms / count,
            # The time between two launches, if the pass is launch-bound.
            launch_us=1e3 * wall / count,
            busy=ms / wall,
            of_memory=work.moved_bytes / seconds / peak.bandwidth,
            of_fp32=work.flops / seconds / peak.fp32,
        )

    return (
        regime("small", 128, "bf16", "forward", "", Work(0, 0)),
        regime("small", 512, "fp32", "forward/attention softmax", "", SOFTMAX),
        regime("2.7B", 512, "fp32", "forward", "matmul", PRODUCTS),
    )


def facts(found: Found) -> dict[str, dict[str, str]]:
    """Return {experiment: {name: number as text}}; "chip" has the GPU's peak rates."""
    profile = primary_record(found, "kernel_profile")
    model_attention = primary_record(found, "model_attention")
    return {
        "chip": chip_facts(),
        "kernel_profile": bottleneck_facts(profile),
        "end_to_end": step_facts(primary_record(found, "end_to_end")),
        "warmup": warmup_facts(primary_record(found, "warmup")),
        "method": agreement_facts(profile),
        "mixed_precision": gain_facts(profile),
        "attention": traffic_facts(primary_record(found, "attention")),
        "flash_benchmarking": head_facts(primary_record(found, "flash_benchmarking")),
        "model_attention": attention_facts(profile, model_attention),
    }


def chip_facts() -> dict[str, str]:
    peak, chip = peak_rates(primary_gpu()), CHIPS.get(primary_gpu())
    fp32, bf16 = (ridge_intensity(peak, precision) for precision in ("fp32", "bf16"))
    return {
        "bandwidth": fmt(peak.bandwidth / 1e12, "{:.1f} TB/s"),
        "fp32": fmt(peak.fp32 / 1e12, "{:g} TFLOP/s"),
        "bf16": fmt(peak.bf16 / 1e12, "{:g} TFLOP/s"),
        "fp32_per_number": fmt(FP32_BYTES * fp32, "{:.0f}"),
        "bf16_per_number": fmt(FP32_BYTES * bf16, "{:.0f}"),
        "ridge_fp32": fmt(fp32, "{:.0f}"),
        "ridge_bf16": fmt(bf16, "{:.0f}"),
        "sms": fmt(chip.sms if chip else MISSING),
    }


def bottleneck_facts(record: Record | None) -> dict[str, str]:
    launches, softmax, products = bottleneck_examples(record)
    peak = peak_rates(primary_gpu())
    of_two = [attention_work("small", 512, part) for part in MATMULS]

    def floor_ms(peak: Peak, *works: Work) -> float:
        return 1e3 * sum(floor_seconds(work, peak, "fp32") for work in works)

    floor, floor_of_two = floor_ms(peak, SOFTMAX), floor_ms(peak, *of_two)
    return {
        "launched": fmt(launches["calls"], "{:,.0f}"),
        "launch_every": fmt(launches["launch_us"], "{:.5f} µs"),
        "kernel_each": fmt(launches["each_us"], "{:.5f} µs"),
        "busy": fmt(launches["busy"], percent),
        "softmax_bytes": f"{SOFTMAX.moved_bytes / 1e9:.2f} GB",
        "softmax_intensity": f"{SOFTMAX.intensity:.2f}",
        "softmax_floor": fmt(floor, "{:.5f} ms"),
        "softmax_elsewhere": predict_by_gpu(lambda peak: floor_ms(peak, SOFTMAX)),
        "products_flops": f"{sum(work.flops for work in of_two) / 1e9:.1f} GFLOP",
        "products_floor": fmt(floor_of_two, "{:.5f} ms"),
        "floor_ratio": fmt(floor_of_two / floor, "{:.5f}"),
        "ratio_elsewhere": predict_by_gpu(
            lambda peak: floor_ms(peak, *of_two) / floor_ms(peak, SOFTMAX), ""
        ),
        "softmax_over_floor": fmt(softmax["ms"] / floor, "{:.5f}"),
        "softmax_of_fp32": fmt(softmax["of_fp32"], percent),
        "products_intensity": f"{PRODUCTS.intensity:.0f}",
        "products_of_fp32": fmt(products["of_fp32"], percent),
    }


def step_facts(record: Record | None) -> dict[str, str]:
    """Return {name: number as text}: ms of 2.7B's passes at peak FLOP/s, here and on
    other GPUs; measured time over this; forward times of small and 2.7B.
    """
    peak, forward = peak_rates(primary_gpu()), matmul_flops("2.7B", 512)
    large = frame(record, size="2.7B", context=512, batch=BATCH)
    forward_bf16 = {"mode": "forward", "precision": "bf16"}
    small = frame(record, size="small", batch=BATCH, **forward_bf16)
    found = {"flops_forward_2_7B_512": f"{forward / 1e12:.1f} TFLOP"}
    modes = {"forward": ("forward",), "step": ("forward", "backward")}
    for mode, phases in modes.items():
        for precision in ("fp32", "bf16"):
            key = f"{mode}_2_7B_512_{precision}"
            floor = 1e3 * pass_flops(forward, *phases) / getattr(peak, precision)
            took = large.one(mode=mode, precision=precision).gpu_ms()
            found[f"floor_{key}"] = fmt(floor, "{:.0f} ms")
            found[f"over_floor_{key}"] = fmt(took / floor, "{:.5f}")
    for context in (128, 256, 1024):
        took = small.one(context=context).gpu_ms()
        found[f"forward_gpu_small_{context}_bf16"] = fmt(took, "{:.5f} ms")
    took = large.one(mode="forward", precision="fp32").ms()
    return found | {
        "forward_small_128_bf16": fmt(small.one(context=128).ms(), "{:.5f} ms"),
        "forward_2_7B_512_fp32": fmt(took, "{:.0f} ms"),
        "forward_elsewhere": predict_by_gpu(lambda peak: 1e3 * forward / peak.fp32),
        "step_elsewhere": predict_by_gpu(
            lambda peak: 1e3 * pass_flops(forward, "forward", "backward") / peak.bf16
        ),
    }


def agreement_facts(profile: Record | None) -> dict[str, str]:
    """Return {name: text}: number of phases timed twice, largest difference in %."""
    records = [profile, profile.clock] if profile and profile.clock else []
    pairs = [times for times in gpu_times(records).values() if len(times) == 2]
    differences = [max(pair) / min(pair) - 1 for pair in pairs]
    return {
        "phases_timed_twice": str(len(pairs) or NOT_MEASURED),
        "gpu_differs_at_most": fmt(nanmax(differences), percent),
    }


def warmup_facts(record: Record | None) -> dict[str, str]:
    """Return {name: number as text}: by what factor the mean of ten steps exceeds a
    warm step if only the first step is slow.
    """
    cold = warmup.medians_by_warmup(record).one(warmup=0)
    slow = cold["first"] / cold["settled"]
    return {"mean_predicted": fmt((slow + 9) / 10, "{:.5f}")}


def gain_facts(profile: Record | None) -> dict[str, str]:
    """Return {name: text}: peak bf16 / fp32, 2.7B's matmul share, expected speedup."""
    step = frame(profile).one(size="2.7B", context=512, mode="step", precision="fp32")
    share = total_ms(step, category="matmul") / total_ms(step)
    peak = peak_rates(primary_gpu())
    ratio = peak.bf16 / peak.fp32
    return {
        "rates": fmt(ratio, "{:.5f}"),
        "rates_elsewhere": predict_by_gpu(lambda peak: peak.bf16 / peak.fp32, ""),
        "product_share": fmt(100 * share, "{:.1f} %"),
        "expected_gain": fmt(1 / (1 - share + share / ratio), "{:.5f}"),
    }


def traffic_facts(record: Record | None) -> dict[str, str]:
    """Return {name: number as text} on plain attention's fp32 forward (d = 64, N =
    16,384): least ms of matmuls and HBM traffic (eager, fused), wall time over them.
    """
    n, d, batch = 16384, 64, 8
    heads = {"d_model": d, "num_layers": 1, "num_heads": 1, "batch": batch}
    parts = attention_part_costs(context=n, element_bytes=FP32_BYTES, **heads)
    flops, outer = (sum(parts[part][i] for part in MATMULS) for i in (0, 1))
    # Bytes that softmax and scaling move. The part "attention mask" scales and masks;
    # without a mask, half of its bytes are left.
    moved = parts["attention softmax"][1] + parts["attention mask"][1] // 2
    # One fused kernel reads the scores and writes the probabilities.
    fused = 2 * FP32_BYTES * batch * n**2
    peak = peak_rates(primary_gpu())

    def lower_bounds_ms(peak: Peak) -> tuple[float, float, float]:
        compute = 1e3 * max(flops / peak.fp32, outer / peak.bandwidth)
        return compute, 1e3 * moved / peak.bandwidth, 1e3 * fused / peak.bandwidth

    def gain(compute: float, eager: float, compiled: float) -> float:
        return (compute + eager) / (compute + compiled)

    compute, eager, compiled = lower_bounds_ms(peak)
    config = {"d": d, "n": n, "dtype": "fp32", "causal": False, "execution": "eager"}
    took = frame(record).one(batch=batch, **config).ms("forward")
    return {
        "products_floor": fmt(compute, "{:.5f} ms"),
        "moved": f"{moved / 2**30:.0f} GiB",
        "moved_fused": f"{fused / 2**30:.0f} GiB",
        "traffic_floor": fmt(eager, "{:.5f} ms"),
        "traffic_floor_fused": fmt(compiled, "{:.5f} ms"),
        "over_floors": fmt(took / (compute + eager), "{:.5f}"),
        "expected_gain": fmt(gain(compute, eager, compiled), "{:.5f}"),
        "sum_elsewhere": predict_by_gpu(lambda peak: sum(lower_bounds_ms(peak)[:2])),
        "gain_elsewhere": predict_by_gpu(lambda peak: gain(*lower_bounds_ms(peak)), ""),
    }


def head_facts(record: Record | None) -> dict[str, str]:
    """Return {name: number as text} on a causal bf16 head's forward (16,384 tokens, d =
    64): lower bounds (plain attention by bytes, flash by FLOPs) and GPU times.
    """
    n, d, peak = 16384, 64, peak_rates(primary_gpu())
    # Plain attention reads or writes nine bf16 numbers for each score.
    moved = 9 * 2 * n**2
    flops = attention_flops("forward", d=d, batch=1, heads=1, n=n, causal=True)
    heads = frame(record, dtype="bf16", d=d, n=n)
    plain = heads.one(implementation="plain").kernel_ms("forward")
    flash = heads.one(implementation="ours").kernel_ms("forward")
    return {
        "head_moved": fmt(1e3 * moved / peak.bandwidth, "{:.5f} ms"),
        "head_elsewhere": predict_by_gpu(lambda peak: 1e3 * moved / peak.bandwidth),
        "head_multiplied": fmt(1e3 * flops / peak.bf16, "{:.3f} ms"),
        "head_plain": fmt(plain, "{:.5f} ms"),
        "head_ours": fmt(flash, "{:.5f} ms"),
        "plain_elsewhere": predict_by_gpu(lambda peak: head_bounds_ms(peak)[0]),
        "ours_elsewhere": predict_by_gpu(lambda peak: head_bounds_ms(peak)[1]),
    }


def attention_facts(profile: Record | None, record: Record | None) -> dict[str, str]:
    """Return facts on the forward pass of 2.7B: attention's share of kernel time, the
    speedup if attention took no time, and that measured with flash instead of eager.
    """
    config = {"size": "2.7B", "context": 1024, "precision": "bf16"}
    forward = frame(profile).one(**config, mode="forward")
    share = total_ms(forward, "forward/attention") / total_ms(forward)
    found = frame(record, size="2.7B", context=1024)
    eager, flash = (found.one(attention=name) for name in ("eager", "flash"))
    return {
        "attention_share": fmt(share, percent),
        "gain_at_most": fmt(1 / (1 - share), "{:.5f}"),
        "gain_forward": fmt(eager.ms("forward") / flash.ms("forward"), "{:.5f}"),
    }

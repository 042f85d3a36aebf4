"""Write the data of the page that calculates memory and time of a step: the formulas of
`systems.formulas` as lists of instructions, the GPUs, and measurements to compare with.

The file is a script, because a page opened from file:// can load scripts but no JSON.
The page's script evaluates the instructions, so no formula is repeated in JavaScript.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from itertools import product
from typing import Any

from systems.formulas.fit import optimizer_moved_bytes, peak_bytes, step_flops
from systems.formulas.gpus import CONTEXT_BYTES, GPUS
from systems.formulas.memory_costs import Pass
from systems.formulas.memory_peak import peak_candidates
from systems.formulas.symbols import Expression, Program
from systems.model.sizes import SIZES, VOCAB_SIZE, ModelSize
from systems.profiling.memory.snapshot import CATEGORIES
from tools.render.editions import LABELS
from tools.render.frame import Frame, frame
from tools.render.load import Found, primary_gpu_key, primary_record
from tools.render.markdown import items_table
from tools.render.rows import fmt, nanmax, span
from tools.render.stems.end_to_end.rows import BATCH
from tools.render.stems.peak_memory import rows as peak_memory

# The variables of the formulas.
SHAPE = ("d_model", "d_ff", "num_layers", "num_heads")
MORE = ("kv_heads", "vocab", "embeddings")
STEP = ("context", "batch", "checkpoint", "optimizer_states", "workspace_bytes")
NAMES = (*SHAPE, *MORE, *STEP)
# Public models: shape, KV heads, vocabulary, embedding matrices (1 if input and output
# share it). The formulas assume three feed-forward matrices and GPT-2 has two, so its
# d_ff is reduced here, to get the right number of weights.
MODELS = {
    "GPT-2": (ModelSize(768, 2048, 12, 12), 12, 50_257, 1),
    "GPT-2 XL": (ModelSize(1600, 4267, 48, 25), 25, 50_257, 1),
    "Llama 3.2 1B": (ModelSize(2048, 8192, 16, 32), 8, 128_256, 1),
    "Llama 3 8B": (ModelSize(4096, 14336, 32, 32), 8, 128_256, 2),
    "Qwen2.5 0.5B": (ModelSize(896, 4864, 24, 14), 2, 151_936, 1),
    "Qwen2.5 7B": (ModelSize(3584, 18944, 28, 28), 4, 152_064, 2),
}
PRECISIONS = ("fp32", "bf16", "pure_bf16")
ATTENTIONS = ("eager", "flash")
# What is recomputed in the backward pass: nothing, runs of `checkpoint` blocks, or
# attention.
RECOMPUTED = ("none", "blocks", "attention")


def fragments(found: Found) -> dict[str, str]:
    """Return `calculator.js`, and a table of peaks for browsers without JavaScript."""
    assigned = {n: (s, s.num_heads, VOCAB_SIZE, 2) for n, s in SIZES.items()}
    data = {
        "categories": CATEGORIES,
        "sizes": {
            name: {**asdict(shape), **dict(zip(MORE, more, strict=True))}
            for name, (shape, *more) in {**assigned, **MODELS}.items()
        },
        "labels": LABELS,
        "vocab": VOCAB_SIZE,
        "context_bytes": CONTEXT_BYTES,
        "gpus": {
            name: {
                "name": gpu.name,
                "memory_bytes": gpu.memory_mib * 2**20,
                "workspace_bytes": gpu.workspace_bytes,
                **asdict(gpu.peak),
            }
            for name, gpu in GPUS.items()
        },
        "measured_on": primary_gpu_key(),
        "programs": dict(step_instructions()),
        "memory": measured_peaks(found),
        "steps": timed_steps(found),
    }
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return {
        "calculator.js": f"window.CALCULATOR = {text}\n",
        "calculator-sizes.md": sizes_table(),
    }


def step_instructions() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a step's options, as "bf16 flash none", and its `pass_instructions`."""
    symbols: dict[str, Any] = {name: Expression(name) for name in NAMES}
    shape = ModelSize(*(symbols[name] for name in SHAPE))
    numbers = {name: symbols[name] for name in ("context", "batch", *MORE)}
    for options in product(PRECISIONS, ATTENTIONS, RECOMPUTED):
        precision, attention, recomputed = options
        if (attention, recomputed) == ("flash", "attention"):
            continue
        p = Pass(
            shape,
            mode="step",
            precision=precision,
            attention=attention,
            checkpoint=symbols["checkpoint"] if recomputed == "blocks" else 0,
            recompute_attention=recomputed == "attention",
            optimizer_states=symbols["optimizer_states"],
            workspace_bytes=symbols["workspace_bytes"],
            **numbers,
        )
        yield " ".join(options), pass_instructions(p)


def pass_instructions(p: Pass) -> dict[str, Any]:
    """Return a pass's formulas as `instructions`; other values index their results."""
    made = Program()
    return {
        "moments": {
            when: [made.index(moment[category]) for category in CATEGORIES]
            for when, moment in peak_candidates(p).items()
        },
        "flops": made.index(step_flops(p)),
        "moved_bytes": made.index(optimizer_moved_bytes(p)),
        "instructions": made.instructions,
    }


def measured_steps(found: Found) -> Frame:
    """Return the training steps whose memory was measured."""
    record = primary_record(found, "peak_memory")
    return peak_memory.passes(record).where(bool, mode="step")


def measured_peaks(found: Found) -> list[dict[str, Any]]:
    """Return each step's configuration and its measured peak of requested bytes."""
    points = []
    for c in measured_steps(found):
        p = peak_memory.make_pass(c)
        point = {name: c.config[name] for name in ("size", "context", "batch")}
        point |= {"precision": p.precision, "attention": p.attention}
        points.append({**point, "checkpoint": p.checkpoint, "bytes": c["requested"]})
    return points


def timed_steps(found: Found) -> list[dict[str, Any]]:
    """Return settings and wall-clock ms of steps with eager or with flash attention."""
    plain = frame(primary_record(found, "end_to_end"), mode="step", batch=BATCH)
    flash = frame(primary_record(found, "model_attention"), attention="flash")
    alike = {"precision": "bf16", "attention": "eager", "batch": BATCH}
    names = ("size", "context", "batch", "precision", "attention")
    return [
        {name: (alike | c.config)[name] for name in names} | {"ms": c.ms()}
        for c in (*plain, *flash)
        if c and (alike | c.config)["precision"] in PRECISIONS
    ]


def facts(found: Found) -> dict[str, str]:
    """Return {name: number as text}: how many steps were measured, the largest relative
    error of predicted peaks, and the percentage by which the allocator rounds peaks up.
    """
    steps = measured_steps(found)
    ratios = (peak_bytes(peak_memory.make_pass(c)) / c["requested"] for c in steps)
    rounding = (100 * (c["peak"] / c["requested"] - 1) for c in steps)
    return {
        "steps": str(len(steps)),
        "worst": fmt(100 * nanmax(abs(x - 1) for x in ratios), "{:.2f} %"),
        "rounding": span(rounding, "{:.1f}"),
    }


def sizes_table() -> str:
    """Return a table of predicted peaks in GiB of a step at context 512, by size."""
    flash = {"precision": "bf16", "attention": "flash"}
    steps: dict[str, dict[str, Any]] = {
        "fp32": {"precision": "fp32"},
        "bf16 autocast": {"precision": "bf16"},
        "flash, bf16": flash,
        "flash, bf16, blocks recomputed": {**flash, "checkpoint": 1},
    }

    def peak_gib(name: str, size: str) -> float:
        return peak_bytes(Pass(size, 512, "step", **steps[name])) / 2**30

    shown = ((name, partial(peak_gib, name), "{:.1f}") for name in steps)
    return items_table(SIZES, ("size", str), *shown) + "\n"

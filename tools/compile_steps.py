"""Compile the kernels of each optimization step in the guide's FlashAttention "ladder"
for an H100, without a GPU, and write their resources: registers, spills, shared memory,
thread blocks per SM, instructions per score.

    python tools/compile_steps.py

takes half a minute and writes the results for the installed version of Triton into
docs/results/flash_ablation-compiled.json.
"""

# The type checker rejects plain Python values as arguments for constexpr parameters.
# pyright: reportArgumentType=false

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import cast

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from systems import require, run_cli

if __name__ == "__main__":
    require("torch", "triton", "packaging", "typer", "msgspec")

import torch
import triton
from packaging.version import Version
from torch import Tensor

from systems.attention import first
from systems.attention.hopper import launches
from systems.attention.hopper.one_pass_launches import launch_one_pass
from systems.attention.hopper.walks import ShiftWalk
from systems.attention.triton.launches import launch_backward, launch_forward
from systems.experiments import flash_ablation
from systems.records.files import write_atomically
from systems.records.source_hash import hash_code
from systems.records.store import RecordError, digest_record
from tools.compile_ahead import TARGETS, check_can_compile, compile_launch
from tools.render.compiled_files import PATH, Kernel, read_compiled_steps
from tools.render.stems.flash_ablation import BACKWARD, FORWARD, LAUNCHERS
from tools.rendering import fail

GPU = TARGETS["h100"]
# Steps that run another step's kernel (`forward` launches it with another grid).
SAME_KERNEL = {"forward": "one_item_forward"}


def make_launch(step: str) -> Callable[[], object]:
    """Return a function that launches a step's kernels on the meta device."""
    c = flash_ablation.Config()
    shape = c.heads, c.n, c.d
    q, k, v, do, o = (
        torch.empty(shape, dtype=torch.bfloat16, device="meta") for _ in range(5)
    )
    lse = torch.empty(shape[:-1], device="meta")
    options = True, c.d**-0.5
    forward, backward = (q, k, v, *options), (do, q, k, v, o, lse, *options)
    match step:
        case "first_forward":
            return partial(launch_first_forward, q, k, v, o, lse, c.n, options[1])
        case "first_backward":
            return partial(launch_first_backward, q, k, v, do, lse, c.n, options[1])
        case "plain_forward":
            return partial(launch_forward, *forward)
        case "atomic_backward":
            return partial(flash_ablation.atomic_backward, do, q, k, v, o, lse)
        case "plain_backward":
            return partial(launch_backward, *backward)
        case "one_item_forward":
            return partial(launches.launch_forward, *map(add_batch, forward))
        case "two_passes_backward":
            return partial(launches.launch_two_passes, *map(add_batch, backward))
        case "backward":
            return partial(launch_one_pass, *map(add_batch, backward), ShiftWalk(1))
    return flash_ablation.prepare_step(step, q, k, v, do)


def add_batch(x: object) -> object:
    """Add a batch dimension to a tensor; return anything else as it is."""
    return x[None] if isinstance(x, Tensor) else x


def launch_first_forward(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, n: int, scale: float
) -> None:
    """Launch the forward kernel of `attention.first`, without checking the inputs."""
    options = first.launch_options(q)
    grid = (len(q) * n // options["TILE"],)
    first.forward_kernel[grid](q, k, v, o, lse, n, scale, CAUSAL=True, **options)


def launch_first_backward(
    q: Tensor, k: Tensor, v: Tensor, do: Tensor, lse: Tensor, n: int, scale: float
) -> None:
    """Launch the backward kernels of `attention.first`, without checking the inputs."""
    options = first.launch_options(q)
    grid = (len(q) * n // options["TILE"],)
    inputs = q, k, v, do, lse, lse
    first.dk_dv_kernel[grid](*inputs, k, v, n, scale, CAUSAL=True, **options)
    first.dq_kernel[grid](*inputs, q, n, scale, CAUSAL=True, **options)


def compile_step(step: str) -> list[Kernel]:
    """Return resources of a step's kernels that compute scores. Exit on an error."""
    result = compile_launch(GPU, make_launch(step))
    if isinstance(result, str):
        fail(f"{step}: {result}", 1)
    found = (x._asdict() | {"programs": x.blocks_per_sm(GPU)} for x in result)
    return [
        cast(Kernel, {name: kernel[name] for name in Kernel.__annotations__})
        for kernel in found
        if kernel["per_score"]
    ]


def main() -> None:
    check_can_compile()
    try:
        versions = read_compiled_steps()
    except RecordError as error:
        fail(str(error))
    steps = (*FORWARD, *BACKWARD)
    compiled = {step: compile_step(step) for step in steps if step not in SAME_KERNEL}
    versions[triton.__version__] = {
        "source_hash": hash_code(LAUNCHERS),
        "steps": {step: compiled[SAME_KERNEL.get(step, step)] for step in steps},
    }
    in_order = {version: versions[version] for version in sorted(versions, key=Version)}
    data = {"digest": digest_record(in_order), **in_order}
    write_atomically(PATH, json.dumps(data, indent=1) + "\n")
    print(f"{PATH}: Triton {triton.__version__}")


if __name__ == "__main__":
    run_cli(main, __doc__)

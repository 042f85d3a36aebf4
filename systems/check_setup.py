"""Check the setup: print versions, the device and the available attention kernels, and
run a small model forward and backward once.

    python -m systems.check_setup
"""

import math

from systems import align_rows, escape_text, find_missing, require, run_cli, torch_fault

if __name__ == "__main__":
    require("torch", "jaxtyping", "msgspec", "packaging")

import torch

from systems.benchmarking.timing import Clock, default_device
from systems.model.train_step import precision_context, training_step
from systems.model.transformer import BasicsTransformerLM
from systems.records.device import find_gpu, why_no_gpu
from systems.running.machine import why_unusable
from systems.running.software import installed_versions


# --8<-- [start:check]
def time_small_model(device: str) -> dict[str, list[float]]:
    """Run a small model forward and backward, and return times in ms by phase. Raise
    RuntimeError if the norm of its gradients is 0 or not finite.
    """
    torch.manual_seed(0)
    with torch.device(device):
        model = BasicsTransformerLM(
            1000, context_length=64, d_model=128, num_layers=2, num_heads=4, d_ff=512
        )
        token_ids, targets = torch.randint(1000, (2, 4, 64))
    clock = Clock(device)
    training_step(
        model, token_ids, targets, precision_context("fp32", device), phase=clock.phase
    )
    grads = (p.grad for p in model.parameters() if p.grad is not None)
    norm = math.sqrt(sum(grad.square().sum().item() for grad in grads))
    if not (math.isfinite(norm) and norm > 0):
        fault = f"the gradients of a small model have norm {norm}"
        raise RuntimeError(f"{fault}: this build of torch computes wrongly here")
    return clock.samples_ms
    # --8<-- [end:check]


def attention_status(device: str) -> dict[str, str]:
    """Return {backend: text} that says whether its kernels run here, or why not."""
    if text := find_missing("triton"):
        return {"hopper, triton": f"need Triton: {text}"}
    from systems.attention.triton.available import describe_kernels

    return describe_kernels(torch.device(device))


def main() -> None:
    """Print versions, kernels and the times of a pass; exit with 2 on a problem."""
    device, gpu = default_device(), find_gpu()
    rows = {
        **installed_versions(),
        "GPU by the driver": gpu.name_and_driver if gpu else "none",
        "torch runs on": torch.cuda.get_device_name() if device == "cuda" else "CPU",
        **{f"attention: {k}": text for k, text in attention_status(device).items()},
    }
    trouble = ""
    try:
        for name, samples in time_small_model(device).items():
            rows[f"first {name.removesuffix('_ms')}"] = f"{samples[0]:.1f} ms"
    except RuntimeError as error:
        # Print the versions before the error, because they help to find its cause.
        trouble = str(error).splitlines()[0]
    print(align_rows(rows))
    if trouble:
        problem = f"the first pass failed: {escape_text(trouble)}"
    elif not (problem := torch_fault()):
        if gpu and device == "cpu":
            problem = why_unusable(gpu)
        elif device == "cuda" and not gpu:
            problem = f"torch finds a GPU, and measuring {why_no_gpu()}"
    without = ", without a GPU: everything but the GPU measurements runs"
    print(problem or f"ready{'' if gpu else without}")
    if problem:
        raise SystemExit(2)


if __name__ == "__main__":
    run_cli(main, __doc__)

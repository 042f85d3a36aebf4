"""Compare FLOPs, parameters and memory with PyTorch, and rates with data sheets."""

from dataclasses import asdict

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode, sdpa_backward_flop_count

from systems.experiments import attention, model_sizes
from systems.formulas import costs
from systems.formulas.costs import PEAKS, Peak, Work, floor_seconds, matmul_work
from systems.formulas.gpus import CHIPS
from systems.model.sizes import SIZES, VOCAB_SIZE
from systems.profiling import probes
from systems.records.device import gpu_slug
from tests.cpu_allocator import Allocator


@pytest.mark.parametrize("size", SIZES)
def test_formulas_equal_what_pytorch_counts(size):
    config = model_sizes.Config(size, context=256, batch=2)
    counted = model_sizes.run(config)
    shape = {"vocab_size": VOCAB_SIZE, **asdict(SIZES[size])}
    for part, parameters in costs.parameters_by_part(**shape).items():
        assert counted[f"{part}_parameters"] == parameters
    flops = costs.forward_flops(**shape, context=256, batch=2)
    assert counted["forward_flops"] == sum(flops.values())
    assert costs.pass_flops(10, "forward", "loss", "backward", "optimizer") == 30


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_memory_formulas_equal_measured_bytes(dtype, causal):
    shape = {"batch": 3, "n": 160, "d": 16, "causal": causal}
    shape["element_bytes"] = dtype.itemsize
    q, k, v, do = (torch.randn(3, 1, 160, 16, dtype=dtype) for _ in range(4))
    inputs = [x.requires_grad_() for x in (q, k, v)]
    saved = probes.SavedTensors(inputs)
    with saved.phase("forward"):
        o = attention.choose_attention(causal)(q, k, v)
    kept = sum(tensor["adds_bytes"] for tensor in saved.tensors)
    kept += o.untyped_storage().nbytes()
    assert kept == sum(costs.attention_saved_bytes(**shape).values())
    with Allocator() as memory:
        o = attention.choose_attention(causal)(q, k, v)
        memory.reset_peak()
        o.backward(do)
    # The formula neglects small tensors.
    expected = sum(costs.attention_peak_bytes(**shape).values())
    assert memory.peak == pytest.approx(expected, abs=64)


def test_attention_flops_equal_pytorch_s_counter():
    inputs = torch.randn(3, 2, 3, 40, 16, device="meta")
    q, k, v = (x.requires_grad_() for x in inputs)
    shape = {"batch": 2, "heads": 3, "n": 40, "d": 16}
    with FlopCounterMode(display=False) as counted:
        torch.softmax(q @ k.mT, -1) @ v
    forward = counted.get_total_flops()
    assert forward == costs.attention_flops("forward", causal=False, **shape)
    backward = sdpa_backward_flop_count(q.shape, q.shape, k.shape, v.shape)
    assert backward == costs.attention_flops("backward", causal=False, **shape)
    both = costs.attention_flops("both", causal=True, **shape)
    assert 2 * both == forward + backward
    # One pass does the formula's matmuls; two passes compute scores and dP twice.
    matmuls = {name: work.matmuls for name, work in costs.KERNELS.items()}
    both = costs.ATTENTION_MATMULS["both"]
    assert matmuls["forward"] + matmuls["one_pass"] == both
    assert matmuls["forward"] + matmuls["dkdv"] + matmuls["dq"] == both + 2
    for work in costs.KERNELS.values():
        assert work.exponentials == min(work.matmuls, 1) and work.tensors > 0


def test_attention_part_costs_equal_hand_counts():
    """A matmul moves n scores, the mask 4 n numbers, and softmax 8 n."""
    shape = {"context": 40, "batch": 2, "d_model": 48, "num_heads": 3}
    parts = costs.attention_part_costs(**shape, num_layers=5, element_bytes=4)
    n, inputs = 5 * 2 * 3 * 40**2, 5 * 2 * 40 * 48
    of_head = {"batch": 2, "heads": 3, "n": 40, "d": 16, "causal": False}
    scores, mask, softmax, output = parts.values()
    assert scores == output == (scores[0], 4 * (2 * inputs + n))
    assert scores[0] + output[0] == 5 * costs.attention_flops("forward", **of_head)
    assert (mask, softmax) == ((n, 4 * 4 * n), (5 * n, 4 * 8 * n))


@pytest.mark.parametrize("slug", CHIPS)
def test_clock_and_units_give_the_data_sheet_rate(slug):
    chip, peak = CHIPS[slug], PEAKS[slug]
    rate = chip.sms * chip.fp32_flops_per_clock * chip.clock
    assert rate == pytest.approx(peak.fp32, rel=0.01)
    # Tensor cores may run below the boost clock.
    fastest = chip.sms * chip.bf16_flops_per_clock * chip.clock
    assert 0.9 * fastest < peak.bf16 < 1.01 * fastest
    # Operations per clock are powers of two.
    per_clock = chip.bf16_flops_per_clock, chip.fp32_flops_per_clock
    assert all(n.bit_count() == 1 for n in (*per_clock, chip.exponentials_per_clock))


def test_names_of_slices_and_variants_match_no_gpu():
    names = "A100X", "A100-SXM4-80GB MIG 3g.40gb", "H100-40C", "H100 64GB HBM2"
    rtx = ("4090 Laptop GPU", "4090 D", "4090 SUPER", "3090 Ti", "5090 D v2")
    for name in ("A100-SXM-64GB", *names, *(f"GeForce RTX {x}" for x in rtx)):
        slug = gpu_slug(f"NVIDIA {name}")
        assert CHIPS.get(slug) is PEAKS.get(slug) is None
    assert PEAKS.get("nvidia-h200-nvl") and not CHIPS.get("nvidia-h200-nvl")


def test_work_and_its_lower_bound():
    peak = Peak(fp32=10.0, tf32=20.0, bf16=40.0, bandwidth=2.0)
    assert floor_seconds(Work(100, 1), peak, "fp32") == 10
    assert floor_seconds(Work(100, 1), peak, "bf16") == 2.5
    assert floor_seconds(Work(1, 100), peak, "bf16") == 50
    assert Work(100, 20).intensity == costs.ridge_intensity(peak, "fp32") == 5
    assert matmul_work(2, 3, 5, element_bytes=4) == Work(60, 4 * (10 + 15 + 6))

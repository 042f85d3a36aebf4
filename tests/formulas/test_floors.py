"""Test peak rates against data sheets, and lower bounds on time."""

import pytest

from systems.formulas.costs import PEAKS, Peak
from systems.formulas.floors import Work, floor_seconds, matmul_work, ridge_intensity
from systems.formulas.gpus import CHIPS
from systems.records.device import gpu_slug

PEAK = Peak(fp32=10.0, tf32=20.0, bf16=40.0, bandwidth=2.0)


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
    assert floor_seconds(Work(100, 1), PEAK, "fp32") == 10
    assert floor_seconds(Work(100, 1), PEAK, "bf16") == 2.5
    assert floor_seconds(Work(1, 100), PEAK, "bf16") == 50
    assert Work(100, 20).intensity == ridge_intensity(PEAK, "fp32") == 5
    assert matmul_work(2, 3, 5, element_bytes=4) == Work(60, 4 * (10 + 15 + 6))

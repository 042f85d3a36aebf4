"""Test the kernel that measures the rate of TMA additions to global memory."""

import pytest
import torch

HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)


@pytest.mark.gpu
@pytest.mark.skipif(not HOPPER, reason="needs a Hopper GPU")
@pytest.mark.parametrize(("programs", "steps", "each"), [(4, 6, 3), (132, 993, 16384)])
def test_all_programs_add_to_all_tiles(programs, steps, each):
    """Each tile gets the same number of additions, or one more."""
    from systems.attention.hopper.reduce_rate import ROWS, add_ones

    sums = torch.zeros(8, ROWS, 32, device="cuda")
    add_ones(sums, programs, steps)
    assert sums.double().sum().item() == programs * steps * ROWS * 32
    assert ((sums == each) | (sums == each + 1)).all()

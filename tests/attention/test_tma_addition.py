"""Test the kernel that measures the rate of TMA additions to global memory."""

import pytest
import torch

from tests.attention.checks import needs_hopper


@needs_hopper
@pytest.mark.parametrize(("programs", "steps", "each"), [(4, 6, 3), (132, 993, 16384)])
def test_all_programs_add_to_all_tiles(programs, steps, each):
    """Each tile gets the same number of additions, or one more."""
    from systems.attention.hopper.tma_addition import ROWS, add_ones

    sums = torch.zeros(8, ROWS, 32, device="cuda")
    add_ones(sums, programs, steps)
    assert sums.double().sum().item() == programs * steps * ROWS * 32
    assert ((sums == each) | (sums == each + 1)).all()

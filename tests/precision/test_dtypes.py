"""The one measure of error."""

import pytest
import torch

from systems.precision.dtypes import relative_error


def test_an_error_is_relative_to_the_norm_of_the_exact_result():
    exact = torch.tensor([3.0, 4.0], dtype=torch.float64)
    found = torch.tensor([3.0, 4.5], dtype=torch.bfloat16)
    assert relative_error(found, exact) == pytest.approx(0.1, rel=1e-12)

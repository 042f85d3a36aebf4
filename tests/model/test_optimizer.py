"""Compare the course's AdamW with PyTorch's, which applies weight decay first."""

import pytest
import torch

from systems.model.optimizer import AdamW


@pytest.mark.parametrize("options", [{}, {"lr": 0.05, "weight_decay": 0.3}], ids=str)
def test_twenty_steps_equal_pytorch_s_adamw(options):
    torch.manual_seed(0)
    ours = [torch.randn(5, 7, requires_grad=True), torch.randn(3, requires_grad=True)]
    theirs = [p.detach().clone().requires_grad_() for p in ours]
    optimizer = AdamW(ours, **options)
    lr, decay = options.get("lr", 1e-3), options.get("weight_decay", 0.01)
    # PyTorch decays before the update, the course after: let PyTorch update without
    # decay, then decay.
    oracle = torch.optim.AdamW(theirs, lr=lr, weight_decay=0.0)
    for _ in range(20):
        for p, q in zip(ours, theirs, strict=True):
            p.grad = torch.randn_like(p)
            q.grad = p.grad.clone()
        optimizer.step()
        oracle.step()
        with torch.no_grad():
            for q in theirs:
                q.mul_(1 - lr * decay)
    for p, q in zip(ours, theirs, strict=True):
        assert torch.allclose(p, q, rtol=0, atol=1e-6)


def test_optimizer_state_has_the_course_s_names():
    with_gradient, without = (torch.ones(2, requires_grad=True) for _ in range(2))
    optimizer = AdamW([with_gradient, without])
    with_gradient.grad = torch.ones(2)
    optimizer.step()
    state = optimizer.state[with_gradient]
    assert set(state) == {"m", "v", "t"} and state["t"] == 2
    assert torch.equal(without, torch.ones(2))


@pytest.mark.parametrize(
    "bad", [{"lr": -1}, {"eps": -1}, {"betas": (1.0, 0.9)}, {"weight_decay": -0.1}]
)
def test_invalid_settings_are_rejected(bad):
    with pytest.raises(ValueError, match="AdamW takes no"):
        AdamW([torch.ones(1)], **bad)

"""Test flash attention under torch.compile and torch.export, and in the model."""

from itertools import product

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad

from systems.attention import (
    FlashAttentionPyTorch,
    FlashAttentionTriton,
    flash_attention,
    torch_tiles,
)
from systems.attention.dispatch import flash_backward, flash_forward
from systems.model.transformer import BasicsTransformerLM
from tests.attention import checks

# A compiler backend without C++; GPU tests use the default.
COMPILER = "aot_eager"
# PyTorch warns when it traces any autograd Function.
DEPRECATED = "ignore:.*should not be instantiated:DeprecationWarning"
quiet = pytest.mark.filterwarnings(DEPRECATED)


@pytest.mark.slow
def test_operators_pass_opcheck(device):
    heads = {"lead": (1, 4), "lead_k": (1, 2)}
    q, k, v, do = checks.make_inputs(5, 9, 16, torch.bfloat16, device, **heads)
    # The fake kernel must return the strides of this transposed view.
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    torch.library.opcheck(flash_forward, (*leaves, True, 0.25))
    torch.library.opcheck(flash_forward, (q, k, v, False, 0.25))
    o, lse = flash_forward(q, k, v, True, 0.25)
    torch.library.opcheck(flash_backward, (do, q, k, v, o, lse, True, 0.25))
    o, _ = flash_forward(*leaves, False, 0.25)
    with pytest.raises(ValueError, match="can't be differentiated again"):
        torch.autograd.grad(o.sum(), leaves, create_graph=True)


# Ways to call attention; compilers accept transforms of the first two only.
CALLS = {
    "function": lambda q, k, v: flash_attention(q, k, v, causal=True),
    "class": lambda q, k, v: FlashAttentionTriton.apply(q, k, v, True),
}


@quiet
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("call", CALLS)
def test_compile_makes_one_graph(call, dynamic, device):
    """There is no graph break, and results are bitwise equal to eager."""

    def function(q, k, v):
        return CALLS[call](q * 2, k, v).cos()

    torch.compiler.reset()
    options = {"fullgraph": True, "backend": COMPILER, "dynamic": dynamic}
    compiled = torch.compile(function, **options)
    for n in (20, 33):
        q, k, v, do = checks.make_inputs(n, n, 16, device=device)
        leaves = tuple(x.requires_grad_() for x in (q, k, v))
        expected, actual = function(*leaves), compiled(*leaves)
        ours = actual, *torch.autograd.grad(actual, leaves, do)
        theirs = expected, *torch.autograd.grad(expected, leaves, do)
        assert all(map(torch.equal, ours, theirs))


def test_autocast_under_compile_equals_eager(device):
    torch.compiler.reset()
    q, k, v, _ = checks.make_inputs(20, 20, 16, device=device)

    def run(q, k, v):
        with torch.autocast(device, dtype=torch.bfloat16):
            return flash_attention(q, k, v, causal=True)

    actual = torch.compile(run, fullgraph=True, backend=COMPILER)(q, k, v)
    assert actual.dtype == torch.bfloat16 and torch.equal(actual, run(q, k, v))


@pytest.mark.slow
def test_lengths_share_a_compilation_of_the_pytorch_tiles(monkeypatch):
    """After too many recompiles PyTorch would run the function eagerly."""
    torch.compiler.reset()
    graphs = []

    def record_graph(graph, _):
        graphs.append(graph)
        return graph.forward

    compiled = torch.compile(torch_tiles.tile_vjp, backend=record_graph, dynamic=True)
    monkeypatch.setattr(torch_tiles, "tile_vjp", compiled)
    shapes = [(128, 128, 64), (257, 97, 64), (63, 130, 32), (200, 200, 48)]
    for causal, shape in product((False, True), [*shapes, (20, 333, 128)]):
        inputs = checks.make_inputs(*shape, lead=(2,))
        results = checks.run_class(FlashAttentionPyTorch, *inputs, causal)
        checks.check_against_reference(results, *inputs, causal)
    assert 1 <= len(graphs) <= 6


# Compiled calls support only vmap; torch warns that it loops over the batch.
one_by_one = pytest.mark.filterwarnings("ignore:There is a performance drop:")


@quiet
@one_by_one
@pytest.mark.parametrize("call", ["function", "class"])
def test_compiled_vmap_equals_a_batched_call(call, device):
    """Values and gradients are right, also if the mapped dimension is not the first."""
    torch.compiler.reset()
    q, k, v, do = checks.make_inputs(20, 20, 16, device=device, lead=(2, 3))
    expected = checks.run_class(FlashAttentionTriton, q, k, v, do, True)
    leaves = [x.movedim(0, 1).contiguous().requires_grad_() for x in (q, k, v)]

    def vmap_call(*inputs):
        return torch.func.vmap(CALLS[call], in_dims=1)(*inputs)

    o = torch.compile(vmap_call, fullgraph=True, backend=COMPILER)(*leaves)
    found = (o, *(x.movedim(1, 0) for x in torch.autograd.grad(o, leaves, do)))
    for name, value in zip(("o", "dq", "dk", "dv"), found, strict=True):
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-5, msg=name)


def output_tangent(call, x):
    with forward_ad.dual_level():
        o = call(forward_ad.make_dual(x, torch.ones_like(x)), x, x)
        return forward_ad.unpack_dual(o).tangent


REFUSED = {
    "grad": lambda call, x: torch.func.grad(lambda x: call(x, x, x).sum())(x),
    "jvp": lambda call, x: torch.func.jvp(lambda x: call(x, x, x), (x,), (x,))[1],
    "vmap of grad": lambda call, x: torch.func.vmap(
        torch.func.grad(lambda x: call(x, x, x).sum())
    )(x),
    "forward mode": output_tangent,
}


@quiet
@pytest.mark.filterwarnings("ignore:.*jit.script:FutureWarning")
@pytest.mark.parametrize("transform", REFUSED)
@pytest.mark.parametrize("call", ["function", "class"])
def test_compiled_calls_reject_the_same_transforms(call, transform, device):
    """Forward-mode tangents must not be ignored silently."""
    torch.compiler.reset()
    x = torch.randn(2, 3, 20, 16, device=device)

    def run(x):
        return REFUSED[transform](CALLS[call], x)

    compiled = torch.compile(run, fullgraph=True, backend=COMPILER)
    text = "has no jvp" if transform == "forward mode" else "transformed by torch.func"
    with pytest.raises(Exception, match=f"flash attention .*{text}"):
        compiled(x)


def test_compiled_call_inside_unrelated_forward_mode_is_allowed(device):
    """The call is allowed, because none of its inputs has a tangent."""
    torch.compiler.reset()
    x = torch.randn(2, 3, 20, 16, device=device)
    compiled = torch.compile(CALLS["function"], backend=COMPILER)
    with forward_ad.dual_level():
        assert torch.equal(compiled(x, x, x), CALLS["function"](x, x, x))


class Attend(torch.nn.Module):
    def forward(self, q, k, v):
        return flash_attention(q, k, v, causal=True)


@pytest.mark.slow
def test_exported_program_runs_other_lengths(device, tmp_path):
    q, k, v, _ = checks.make_inputs(20, 20, 16, device=device, lead=(2, 2))
    batch, length = torch.export.Dim("batch", max=64), torch.export.Dim("n", max=4096)
    free = {0: batch, 2: length}
    program = torch.export.export(Attend(), (q, k, v), dynamic_shapes=[free] * 3)
    called = [str(x.target) for x in program.graph.nodes if x.op == "call_function"]
    assert "systems.flash_forward.default" in called
    torch.export.save(program, tmp_path / "attention.pt2")
    loaded = torch.export.load(tmp_path / "attention.pt2").module()
    for b, n in ((2, 20), (1, 33), (5, 130)):
        q, k, v, _ = checks.make_inputs(n, n, 16, device=device, lead=(b, 2))
        assert torch.equal(loaded(q, k, v), flash_attention(q, k, v, causal=True))


def loss_and_gradients(model: BasicsTransformerLM, ids: torch.Tensor):
    loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    names, parameters = zip(*model.named_parameters(), strict=True)
    found = torch.autograd.grad(loss, parameters)
    return {"loss": loss.detach(), **dict(zip(names, found, strict=True))}


@pytest.mark.parametrize("attention", ["sdpa", "flash", "flash_torch"])
def test_model_gradients_agree_across_attentions(attention, device):

    def seeded_model(name: str) -> BasicsTransformerLM:
        torch.manual_seed(0)
        return BasicsTransformerLM(
            50, 80, d_model=48, num_layers=2, num_heads=3, d_ff=64, attention=name
        ).to(device)

    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(50, (2, 71), generator=generator).to(device)
    exact = loss_and_gradients(seeded_model("eager").double(), ids)
    eager = loss_and_gradients(seeded_model("eager"), ids)
    actual = loss_and_gradients(seeded_model(attention), ids)
    for name, value in exact.items():
        band = 32 * torch.finfo(torch.float32).eps * value.abs().max().item()
        bound = 2 * checks.max_error(eager[name], value) + band
        assert checks.max_error(actual[name], value) <= bound, name

"""Test the model's parameters, keys, results and rotary tables, and its AdamW."""

import copy
import io
import math

import pytest
import torch
from torch.nn.functional import silu

from systems.model import transformer as model_module
from systems.model.optimizer import AdamW
from systems.model.sizes import SIZES
from systems.model.transformer import BasicsTransformerLM, build_model, load_attention

PARAMETERS = {
    "small": 128_625_408,
    "medium": 423_183_360,
    "large": 969_411_840,
    "xl": 1_998_235_200,
    "2.7B": 3_406_809_600,
    "10B": 12_832_823_808,
}


@pytest.fixture
def toy_model() -> BasicsTransformerLM:
    torch.manual_seed(1)
    return BasicsTransformerLM(
        50, 16, d_model=24, num_layers=2, num_heads=3, d_ff=40, rope_theta=10_000.0
    )


@pytest.mark.parametrize("size", SIZES)
def test_each_size_has_its_parameter_count(size):
    with torch.device("meta"):
        model = build_model(size, 128)
    assert sum(p.numel() for p in model.parameters()) == PARAMETERS[size]


def test_state_dict_has_the_course_s_keys(toy_model):
    keys = {"token_embeddings.weight", "ln_final.weight", "lm_head.weight"}
    for i in range(2):
        keys |= {f"layers.{i}.attn.{p}_proj.weight" for p in ("q", "k", "v", "output")}
        keys |= {f"layers.{i}.ffn.w{j}.weight" for j in (1, 2, 3)}
        keys |= {f"layers.{i}.ln{j}.weight" for j in (1, 2)}
    assert set(toy_model.state_dict()) == keys
    assert toy_model.state_dict()["layers.0.ffn.w2.weight"].shape == (24, 40)


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Rotate each pair of a row as a complex number, by its position."""
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    powers = -2 * torch.arange(x.shape[-1] // 2) / x.shape[-1]
    angle = torch.arange(x.shape[0])[:, None] * 10_000.0**powers
    turned = pairs * torch.polar(torch.ones_like(angle), angle)
    return torch.view_as_real(turned).flatten(-2)


def plain_forward(weights: dict, ids: torch.Tensor, heads: int, layers: int):
    """Compute the model's logits by loops and complex numbers, without its code."""

    def norm(x, weight):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * weight

    def attend(q, k, v):
        scores = rotate(q) @ rotate(k).T / math.sqrt(q.shape[-1])
        scores += torch.full_like(scores, float("-inf")).triu(1)
        return torch.softmax(scores, -1) @ v

    logits = []
    for sequence in ids:
        x = weights["token_embeddings.weight"][sequence]
        for i in range(layers):
            w = {key.removeprefix(f"layers.{i}."): x for key, x in weights.items()}
            h = norm(x, w["ln1.weight"])
            q, k, v = (
                (h @ w[f"attn.{p}_proj.weight"].T).chunk(heads, -1) for p in "qkv"
            )
            outputs = torch.cat([*map(attend, q, k, v)], -1)
            x = x + outputs @ w["attn.output_proj.weight"].T
            h = norm(x, w["ln2.weight"])
            gate, up = h @ w["ffn.w1.weight"].T, h @ w["ffn.w3.weight"].T
            x = x + (silu(gate) * up) @ w["ffn.w2.weight"].T
        logits.append(norm(x, weights["ln_final.weight"]) @ weights["lm_head.weight"].T)
    return torch.stack(logits)


def test_forward_equals_a_plain_implementation(toy_model):
    ids = torch.randint(50, (3, 11))
    with torch.no_grad():
        for parameter in toy_model.parameters():
            if parameter.ndim == 1:
                parameter.uniform_(0.5, 1.5)
        expected = plain_forward(dict(toy_model.state_dict()), ids, heads=3, layers=2)
        assert torch.allclose(toy_model(ids), expected, rtol=1e-5, atol=1e-5)


def test_rotary_embedding_keeps_pairs_adjacent(toy_model):
    """Compare rotated values, because reordering q and k alike changes no score."""
    x = torch.randn(11, 8)
    found = toy_model.layers[0].attn.rotary(x, torch.arange(11))
    assert torch.allclose(found, rotate(x), rtol=0, atol=1e-5)


def test_unknown_attention_and_wrong_shapes_are_refused(toy_model):
    text = "no attention implementation is named 'flash9'; there are: eager"
    with pytest.raises(ValueError, match=text):
        load_attention("flash9")
    with pytest.raises(ValueError, match="17 tokens exceeds the context of 16"):
        toy_model(torch.zeros(1, 17, dtype=torch.int64))
    with pytest.raises(ValueError, match="split into 5 heads"):
        BasicsTransformerLM(50, 16, d_model=24, num_layers=1, num_heads=5, d_ff=40)


def test_initialization_is_a_truncated_normal():
    torch.manual_seed(0)
    linear, embedding = model_module.Linear(300, 500), model_module.Embedding(400, 300)
    for weight, std in ((linear.weight, math.sqrt(2 / 800)), (embedding.weight, 1.0)):
        # Truncation at three deviations lowers the standard deviation by 1.4 %.
        assert weight.std().item() == pytest.approx(0.986 * std, rel=0.01)
        assert 2.8 * std < weight.abs().max().item() <= 3 * std


def test_norm_and_softmax_do_not_overflow():
    norm = model_module.RMSNorm(8)
    x = torch.full((1, 8), 1000.0, dtype=torch.float16)
    # 1000² overflows fp16, whose largest number is 65504.
    assert norm(x).dtype == torch.float16
    assert torch.allclose(norm(x).float(), torch.ones(8), atol=1e-3)
    # exp(1000) overflows in every dtype.
    found = model_module.softmax(torch.tensor([1000.0, 0.0]), dim=-1)
    assert torch.equal(found, torch.tensor([1.0, 0.0]))


def tiny_model() -> BasicsTransformerLM:
    return BasicsTransformerLM(50, 1000, 24, 2, 3, 40)


def build_tiny(dtype=torch.float32, device=None):
    """Return a model made with this default dtype and device."""
    torch.set_default_dtype(dtype)
    torch.set_default_device(device)
    try:
        return tiny_model()
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)


def build_on_meta() -> BasicsTransformerLM:
    with torch.device("meta"):
        return tiny_model()


def allocate_on_cpu(model: BasicsTransformerLM) -> BasicsTransformerLM:
    return model.to_empty(device="cpu")


def save_and_load(model, **options):
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False, **options)


def load_weights(model, dtype=torch.float32):
    """Return the model after loading a checkpoint of this dtype."""
    model.load_state_dict(tiny_model().to(dtype).state_dict(), assign=True)
    return model


def rotary_table(layer) -> torch.Tensor:
    return layer.attn.rotary.get_buffer("cos_sin")


BF16, FP16, FP32, FP64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
# Ways to make a model, and the dtype of the resulting model, by name.
ORIGINS = {
    "built": (tiny_model, FP32),
    "built in bf16": (lambda: build_tiny(BF16), BF16),
    "built in fp64": (lambda: build_tiny(FP64), FP64),
    "cast to fp64": (lambda: tiny_model().to(FP64), FP64),
    "cast to fp16 and back": (lambda: tiny_model().to(FP16).to(FP32), FP32),
    "built in bf16, cast to fp32": (lambda: build_tiny(BF16).float(), FP32),
    "meta in bf16": (lambda: allocate_on_cpu(build_on_meta().to(BF16)), BF16),
    "meta as default": (lambda: allocate_on_cpu(build_tiny(device="meta")), FP32),
    "moved to meta": (lambda: allocate_on_cpu(tiny_model().to("meta")), FP32),
    "weights given to meta": (lambda: load_weights(build_on_meta()), FP32),
    "bf16 given to meta": (lambda: load_weights(build_on_meta(), BF16), BF16),
    "bf16 given to fp32": (lambda: load_weights(tiny_model(), BF16), BF16),
    "copied, then cast": (lambda: copy.deepcopy(tiny_model()).to(BF16).float(), FP32),
    "saved, then cast": (lambda: save_and_load(tiny_model()).to(BF16).float(), FP32),
    "saved, then loaded on meta": (
        lambda: allocate_on_cpu(save_and_load(tiny_model(), map_location="meta")),
        FP32,
    ),
}


@pytest.mark.parametrize("origin", ORIGINS)
def test_rotary_angles_are_right_however_a_model_is_made(origin):
    build, dtype = ORIGINS[origin]
    model = build()
    # Checkpoints don't contain the angles, so they must be right without loading.
    model.load_state_dict(tiny_model().state_dict())
    position, pair = torch.arange(1000, dtype=FP64), torch.arange(4, dtype=FP64)
    angle = torch.outer(position, 10_000.0 ** (-pair / 4))
    for layer in model.layers:
        found = rotary_table(layer)
        assert found.dtype == layer.get_parameter("ln1.weight").dtype == dtype
        # Allow rounding of an angle near 1,000 to fp32, and of a cosine to the dtype.
        allowed = {FP32: 1e-4, FP64: 1e-12}.get(dtype, torch.finfo(dtype).eps / 2)
        error = found.double() - torch.stack((angle.cos(), angle.sin()))
        assert error.abs().max() < allowed
    assert model(torch.randint(50, (1, 9))).dtype == dtype


def test_loading_weights_keeps_the_table_s_address():
    model = tiny_model()
    table = rotary_table(model.layers[0])
    model.load_state_dict(tiny_model().state_dict())
    model.to(torch.float32)
    assert rotary_table(model.layers[0]) is table


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

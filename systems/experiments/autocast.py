"""Record the dtype in which each part of a model computes under autocast, and the
result dtype of each operation.

    python -m systems.experiments.autocast --part toy --dtype fp16
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from systems.benchmarking import timing
from systems.model.optimizer import AdamW
from systems.model.sizes import SIZES
from systems.model.transformer import BasicsTransformerLM
from systems.precision.dtype_trace import DtypeTrace
from systems.precision.dtypes import DTYPE_NAMES, DTYPES
from systems.running.command import main, option

PROTOCOL = {
    "found by": "hooks on modules, gradients and the optimizer, and a trace of every "
    "operation"
}
PARTS = ("toy", "transformer", "operations")


@dataclass(frozen=True)
class Config:
    part: str = option("toy", "what is looked at", choices=PARTS)
    dtype: str = option(
        "fp16", "dtype of autocast; fp32 is no autocast", choices=DTYPES
    )


def configs(quick: bool = False) -> list[Config]:
    if quick:
        return [Config(part, "bf16") for part in PARTS]
    return [Config(part, dtype) for part in PARTS for dtype in ("fp16", "bf16")] + [
        Config("transformer", "fp32")
    ]


# --8<-- [start:toy]
class ToyModel(nn.Module):
    """The assignment's model: linear, ReLU, layer norm, linear."""

    def __init__(self, in_features: int, out_features: int):
        super().__init__()
        self.fc1 = nn.Linear(in_features, 10, bias=False)
        self.ln = nn.LayerNorm(10)
        self.fc2 = nn.Linear(10, out_features, bias=False)
        self.relu = nn.ReLU()

    def forward(self, x: Float[Tensor, "b i"]) -> Float[Tensor, "b o"]:
        return self.fc2(self.ln(self.relu(self.fc1(x))))

    # --8<-- [end:toy]


# --8<-- [start:run]
def trace_step(
    model: nn.Module, inputs: Tensor, targets: Tensor, config: Config, device: str
) -> DtypeTrace:
    """Run a training step, under autocast unless fp32; return its `DtypeTrace`."""
    loss_function, optimizer = nn.CrossEntropyLoss(), AdamW(model.parameters())
    autocast = torch.autocast(
        device, dtype=DTYPES[config.dtype], enabled=config.dtype != "fp32"
    )
    with DtypeTrace(model, loss_function, optimizer) as trace:
        with autocast:
            logits = model(inputs)
        trace.count_forward()
        with autocast:
            loss = loss_function(logits.flatten(0, -2), targets.flatten())
        loss.backward()
        optimizer.step()
    return trace
    # --8<-- [end:run]


def run(config: Config) -> dict[str, object]:
    """Return dtype names by tensor or operation; for a transformer also op counts."""
    device = timing.default_device()
    torch.manual_seed(0)
    if config.part == "operations":
        return operation_dtypes(DTYPES[config.dtype], device)
    if config.part == "toy":
        model = ToyModel(16, 4).to(device)
        trace = trace_step(
            model,
            torch.randn(8, 16, device=device),
            torch.arange(8, device=device) % 4,
            config,
            device,
        )
        return toy_dtypes(trace)
    # Use a narrow model as deep as `small`: depth sets the number of operations.
    with torch.device(device):
        model = BasicsTransformerLM(
            64,
            16,
            d_model=32,
            num_layers=SIZES["small"].num_layers,
            num_heads=2,
            d_ff=64,
        )
        token_ids, targets = torch.randint(64, (2, 2, 16))
    return transformer_dtypes(trace_step(model, token_ids, targets, config, device))


def toy_dtypes(trace: DtypeTrace) -> dict[str, object]:
    """Return {tensor: dtype name} of a training step of the toy model."""
    return {
        "parameters": trace.parameters["fc1"],
        "fc1": trace.outputs["fc1"],
        "relu": trace.outputs["relu"],
        "ln": trace.outputs["ln"],
        "logits": trace.outputs["fc2"],
        "loss": trace.outputs["loss"],
        "gradients": trace.join_dtypes(trace.gradients),
        "logits_gradient": trace.output_gradients["fc2"],
        "fc1_output_gradient": trace.output_gradients["fc1"],
        "optimizer_state": trace.join_dtypes(trace.optimizer_state),
        "optimizer_update": trace.result_dtype("optimizer", "addcdiv_"),
    }


def transformer_dtypes(trace: DtypeTrace) -> dict[str, object]:
    """Return {name: dtype}, mostly of block 0, and counts of forward ops and casts."""
    layer = "layers.0"
    norm, attention, feed_forward = f"{layer}.ln1", f"{layer}.attn", f"{layer}.ffn"
    return {
        "parameters": trace.join_dtypes(trace.parameters),
        "embedding": trace.outputs["token_embeddings"],
        "rmsnorm_square": trace.result_dtype(norm, "pow"),
        "rmsnorm_rsqrt": trace.result_dtype(norm, "rsqrt"),
        "rmsnorm": trace.outputs[norm],
        "q_projection": trace.outputs[f"{attention}.q_proj"],
        "rotary": trace.outputs[f"{attention}.rotary"],
        "scores": trace.result_dtype(attention, "bmm"),
        "softmax_max": trace.result_dtype(attention, "max"),
        "softmax_subtract": trace.result_dtype(attention, "sub"),
        "softmax_exp": trace.result_dtype(attention, "exp"),
        "softmax_sum": trace.result_dtype(attention, "sum"),
        "softmax_divide": trace.result_dtype(attention, "div", last=True),
        "weighted_values": trace.result_dtype(attention, "bmm", last=True),
        "attention": trace.outputs[attention],
        "residual": trace.outputs[layer],
        "swiglu_gate": trace.outputs[f"{feed_forward}.w1"],
        "swiglu_sigmoid": trace.result_dtype(feed_forward, "sigmoid"),
        "swiglu_product": trace.result_dtype(feed_forward, "mul", last=True),
        "swiglu": trace.outputs[feed_forward],
        "logits": trace.outputs["lm_head"],
        "loss": trace.outputs["loss"],
        "gradients": trace.join_dtypes(trace.gradients),
        "logits_gradient": trace.output_gradients["lm_head"],
        "optimizer_state": trace.join_dtypes(trace.optimizer_state),
        "optimizer_update": trace.result_dtype("optimizer", "addcdiv_"),
        "forward_operations": trace.forward_operations,
        "forward_casts": trace.forward_casts,
    }


# Operations by name: functions of three positive matrices (8, 8) and class indices t.
OPERATIONS = {
    "matmul": lambda a, b, c, t: a @ b,
    "bmm": lambda a, b, c, t: torch.bmm(a[None], b[None]),
    "addmm": lambda a, b, c, t: torch.addmm(a, b, c),
    "einsum": lambda a, b, c, t: torch.einsum("ij,kj->ik", a, b),
    "linear": lambda a, b, c, t: F.linear(a, b),
    "scaled_dot_product_attention": lambda a, b, c, t: F.scaled_dot_product_attention(
        a[None, None], b[None, None], c[None, None]
    ),
    "exp": lambda a, b, c, t: a.exp(),
    "log": lambda a, b, c, t: a.log(),
    "pow": lambda a, b, c, t: a.pow(2),
    "rsqrt": lambda a, b, c, t: a.rsqrt(),
    "reciprocal": lambda a, b, c, t: a.reciprocal(),
    "softmax": lambda a, b, c, t: a.softmax(-1),
    "log_softmax": lambda a, b, c, t: a.log_softmax(-1),
    "sum": lambda a, b, c, t: a.sum(-1),
    "cumsum": lambda a, b, c, t: a.cumsum(-1),
    "norm": lambda a, b, c, t: a.norm(),
    "softplus": lambda a, b, c, t: F.softplus(a),
    "layer_norm": lambda a, b, c, t: F.layer_norm(a, (8,)),
    "cross_entropy": lambda a, b, c, t: F.cross_entropy(a, t),
    "mse_loss": lambda a, b, c, t: F.mse_loss(a, b),
    "addcmul": lambda a, b, c, t: torch.addcmul(a, b, c),
    "atan2": lambda a, b, c, t: torch.atan2(a, b),
    "dot": lambda a, b, c, t: torch.dot(a[0], b[0]),
    "cross": lambda a, b, c, t: torch.cross(a[:, :3], b[:, :3], dim=1),
    "scatter_add": lambda a, b, c, t: a.scatter_add(0, t[None], b),
    "add": lambda a, b, c, t: a + b,
    "mul": lambda a, b, c, t: a * b,
    "div": lambda a, b, c, t: a / b,
    "cat": lambda a, b, c, t: torch.cat((a, b)),
    "where": lambda a, b, c, t: torch.where(t > 3, a, b),
    "mean": lambda a, b, c, t: a.mean(-1),
    "max": lambda a, b, c, t: a.max(-1).values,
    "sqrt": lambda a, b, c, t: a.sqrt(),
    "sigmoid": lambda a, b, c, t: a.sigmoid(),
    "silu": lambda a, b, c, t: F.silu(a),
    "relu": lambda a, b, c, t: a.relu(),
    "rms_norm": lambda a, b, c, t: F.rms_norm(a, (8,)),
}


def operation_dtypes(low: torch.dtype, device: str) -> dict[str, object]:
    """Return {operation: [result dtype or "raises"] * 4}: under autocast from inputs in
    `low`, in fp32 and mixed (low and fp32), then from mixed inputs without autocast.
    """
    wide = torch.rand(3, 8, 8, device=device) + 0.5
    narrow, t = wide.to(low), torch.arange(8, device=device)
    dtypes: dict[str, object] = {}
    for name, operation in OPERATIONS.items():
        # Mixed: `a` and `c` in low precision, `b` in fp32.
        mixed = (narrow[0], wide[1], narrow[2], t)
        with torch.autocast(device, dtype=low):
            in_autocast = [
                result_dtype(operation, *inputs)
                for inputs in ((*narrow, t), (*wide, t), mixed)
            ]
        dtypes[name] = [*in_autocast, result_dtype(operation, *mixed)]
    return dtypes


def result_dtype(operation, *inputs: Tensor) -> str:
    """Return the name of a result's dtype ("fp32"), or "raises" for a RuntimeError."""
    try:
        return DTYPE_NAMES[operation(*inputs).dtype]
    except RuntimeError:
        return "raises"


if __name__ == "__main__":
    main(Config, run)

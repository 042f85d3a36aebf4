"""Measure how precision affects training: loss curves in fp32, under bf16 autocast and
in pure bf16, on a synthetic language whose entropy is the minimum of the loss.

Rounding changes the effective step size, so fp32 and pure bf16 also train at a lower
and a higher learning rate. The seed sets the initial weights and the data.

    python -m systems.experiments.mixed_precision --precision bf16 --seed 0 --steps 300
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from systems.benchmarking import gpu_time, timing
from systems.model import synthetic_language
from systems.model.optimizer import AdamW
from systems.model.sizes import SIZES
from systems.model.train_step import Phase, precision_context
from systems.model.transformer import build_model
from systems.records.outcome import Unsupported
from systems.running.command import main, option

LEARNING_RATE, LEARNING_RATE_WARMUP = 3e-4, 20
OTHER_RATES = (1e-4, 1e-3)
PROTOCOL = gpu_time.STEP_CLOCKS | {
    "language": f"Markov chain of {synthetic_language.SUCCESSORS} successors per "
    "token, new sequences in each step",
    "optimizer": f"AdamW, the learning rate after {LEARNING_RATE_WARMUP} rising steps",
    "tf32": "off",
}
PRECISIONS = {
    "fp32": "everything in fp32",
    "bf16": "bf16 autocast; weights, gradients and optimizer state in fp32",
    "bf16_pure": "weights, gradients and optimizer state in bf16",
}
# Weights of different magnitude: embedding and norm about 1, matrix a few hundredths.
WATCHED_WEIGHTS = {
    "embedding": "token_embeddings.weight",
    "matrix": "layers.0.ffn.w1.weight",
    "gain": "layers.0.ln1.weight",
}
WATCH_EVERY = 10


@dataclass(frozen=True)
class Config:
    precision: str = option("fp32", "precision of training", choices=PRECISIONS)
    seed: int = option(1, "seed of the weights and the data")
    size: str = option("small", "model size of Table 1", choices=SIZES)
    context: int = option(128, "sequence length in tokens")
    batch: int = option(16, "sequences in a batch")
    vocab: int = option(1024, "tokens of the language")
    steps: int = option(300, "training steps")
    learning_rate: float = option(LEARNING_RATE, "learning rate of AdamW")


def configs(quick: bool = False) -> list[Config]:
    if quick:
        return [Config("bf16", context=16, batch=1, vocab=64, steps=2)]
    seeds = (1, 2, 3)
    rows = [Config(precision, seed) for seed in seeds for precision in PRECISIONS]
    return rows + [
        Config(precision, seed, learning_rate=rate)
        for rate in OTHER_RATES
        for seed in seeds
        for precision in ("fp32", "bf16_pure")
    ]


# --8<-- [start:run]
def run(config: Config) -> dict[str, object]:
    """Train a model. Return each step's loss, the minimum possible loss, the shares of
    weights that steps don't change, times and memory. Raise Unsupported on divergence.
    """
    device = timing.default_device()
    torch.manual_seed(config.seed)
    with torch.device(device):
        model = build_model(config.size, config.context, config.vocab)
    if config.precision == "bf16_pure":
        model.to(torch.bfloat16)
    autocast = precision_context(
        "bf16" if config.precision == "bf16" else "fp32", device
    )
    optimizer = AdamW(model.parameters())
    sequences = synthetic_language.sample(
        config.vocab, config.steps * config.batch, config.context + 1, config.seed
    )
    batches = iter(sequences.to(device).split(config.batch))
    losses: list[Tensor] = []
    watch = UnchangedWeights(model)

    def train(tokens: Tensor, phase: Phase) -> Tensor:
        with phase("step"):
            with autocast:
                logits = model(tokens[:, :-1])
            # Always compute the loss in fp32, because bf16 has only two decimal digits.
            loss = functional.cross_entropy(
                logits.flatten(0, 1).float(), tokens[:, 1:].flatten()
            )
            loss.backward()
            optimizer.step()
            model.zero_grad()
        return loss.detach()

    def step(phase: Phase) -> None:
        optimizer.param_groups[0]["lr"] = config.learning_rate * min(
            1, (len(losses) + 1) / LEARNING_RATE_WARMUP
        )
        watch.before(len(losses))
        loss = train(next(batches), phase)
        watch.after(len(losses))
        losses.append(loss)

    def repeat_first_step(phase: Phase) -> None:
        train(sequences[: config.batch].to(device), phase)

    samples = timing.measure(step, warmup=0, repeats=config.steps, device=device)
    values = torch.stack(losses)
    if len(diverged := (~values.isfinite()).nonzero()):
        raise Unsupported(f"diverges: no finite loss in step {diverged[0].item() + 1}")
    return {
        "loss": [round(value, 5) for value in values.tolist()],
        "floor": synthetic_language.ENTROPY,
        **watch.unchanged,
        **samples,
        **gpu_time.measure(repeat_first_step, device),
    }
    # --8<-- [end:run]


class UnchangedWeights:
    """Record what share of each watched weight each 10th step leaves unchanged."""

    def __init__(self, model: nn.Module):
        self.tensors = {
            name: model.get_parameter(path) for name, path in WATCHED_WEIGHTS.items()
        }
        self.unchanged: dict[str, list[float]] = {
            f"unchanged_{name}": [] for name in WATCHED_WEIGHTS
        }
        self.old: dict[str, Tensor] = {}

    def before(self, step: int) -> None:
        if step % WATCH_EVERY == WATCH_EVERY - 1:
            self.old = {
                name: tensor.detach().clone() for name, tensor in self.tensors.items()
            }

    def after(self, step: int) -> None:
        if step % WATCH_EVERY == WATCH_EVERY - 1:
            for name, tensor in self.tensors.items():
                share = (tensor.detach() == self.old[name]).double().mean().item()
                self.unchanged[f"unchanged_{name}"].append(round(share, 5))


if __name__ == "__main__":
    main(Config, run)

"""Count each model's parameters by part, and FLOPs of a forward pass by PyTorch's
counter. The meta device (shapes without data) needs no GPU.

    python -m systems.experiments.model_sizes --size 2.7B --context 512
"""

from dataclasses import asdict, dataclass

import torch
from torch.utils.flop_counter import FlopCounterMode

from systems.model.sizes import SIZES, VOCAB_SIZE
from systems.model.transformer import build_model
from systems.running.command import main, option

PROTOCOL = {"statistic": "exact counts", "device": "meta"}

# Parts of the model, by the word in a parameter's name that identifies them.
PARTS = {
    "token_embeddings": "embedding",
    "attn": "attention",
    "ffn": "feed_forward",
    "ln1": "norms",
    "ln2": "norms",
    "ln_final": "norms",
    "lm_head": "head",
}


@dataclass(frozen=True)
class Config:
    size: str = option("small", "model size of Table 1", choices=SIZES)
    context: int = option(512, "sequence length in tokens")
    batch: int = option(4, "sequences in a batch")
    vocab: int = option(VOCAB_SIZE, "vocabulary size")


def configs(quick: bool = False) -> list[Config]:
    return [
        Config(size, context)
        for size in SIZES
        for context in ((512,) if quick else (128, 256, 512, 1024))
    ]


# --8<-- [start:run]
def run(config: Config) -> dict[str, int]:
    """Return the model size's fields, parameter counts by part, and forward FLOPs."""
    with torch.device("meta"):
        model = build_model(config.size, config.context, config.vocab)
        token_ids = torch.zeros(config.batch, config.context, dtype=torch.int64)
    counts: dict[str, int] = dict.fromkeys(PARTS.values(), 0)
    for name, parameter in model.named_parameters():
        part = next(PARTS[word] for word in name.split(".") if word in PARTS)
        counts[part] += parameter.numel()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(token_ids)
    parameters = {f"{part}_parameters": n for part, n in counts.items()}
    return {
        **asdict(SIZES[config.size]),
        **parameters,
        "forward_flops": counter.get_total_flops(),
    }
    # --8<-- [end:run]


if __name__ == "__main__":
    main(Config, run)

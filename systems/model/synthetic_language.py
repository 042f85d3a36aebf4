"""A synthetic language whose minimal loss is known and that a model learns in minutes:
a sparse Markov chain.

Each token has a few random successors, with probabilities proportional to 1, 1/2, 1/3,
... So the next token has the same entropy in any context.
"""

import math

import torch
from jaxtyping import Int
from torch import Tensor

SUCCESSORS = 8
WEIGHTS = [1 / rank for rank in range(1, SUCCESSORS + 1)]
PROBABILITIES = [weight / sum(WEIGHTS) for weight in WEIGHTS]
# Entropy of the next token in nats: the minimum of the cross-entropy loss.
ENTROPY = -sum(p * math.log(p) for p in PROBABILITIES)


# --8<-- [start:sample]
def sample(
    vocab: int, sequences: int, length: int, seed: int
) -> Int[Tensor, "sequences length"]:
    """Return random sequences of the language (int64, on the CPU). Its transitions
    depend on `vocab`, not on the seed. Raise ValueError if `vocab` < SUCCESSORS.
    """
    if vocab < SUCCESSORS:
        raise ValueError(f"vocab must be {SUCCESSORS} or more, not {vocab}")
    fp32 = {"dtype": torch.float32, "device": "cpu"}
    generator = torch.Generator().manual_seed(vocab)
    scores = torch.rand(vocab, vocab, generator=generator, **fp32)
    table = scores.topk(SUCCESSORS).indices
    generator.manual_seed(seed)
    tokens = [torch.randint(vocab, (sequences,), generator=generator, device="cpu")]
    probabilities = torch.tensor(PROBABILITIES, **fp32)
    for _ in range(length - 1):
        choice = torch.multinomial(
            probabilities, sequences, replacement=True, generator=generator
        )
        tokens.append(table[tokens[-1], choice])
    return torch.stack(tokens, dim=1)
    # --8<-- [end:sample]

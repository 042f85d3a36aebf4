"""Does the measuring add anything? The same forward pass timed by our clock and by bare CUDA events, taking turns.

python -m systems.experiments.method --context 128 --precision fp32
"""

from dataclasses import dataclass

import torch

from systems import phases, timing
from systems.experiments.command import main, option
from systems.model import SIZES, VOCAB_SIZE, build_model
from systems.train_step import Phase, precision_context

PROTOCOL = {"order": "10 steps by the clock, 10 by events, in turns", "tf32": "off"}
STEPS_A_TURN = 10


@dataclass(frozen=True)
class Config:
    size: str = option("small", "model size of Table 1", choices=SIZES)
    context: int = option(128, "sequence length in tokens")
    precision: str = option("fp32", "precision: fp32 (TF32 off) or bf16 autocast", choices=("fp32", "bf16"))
    turns: int = option(10, "turns of each way to measure, 10 steps a turn")


def configs(quick: bool = False) -> list[Config]:
    """`small` at the assignment's contexts in both precisions."""
    if quick:
        return [Config(turns=2)]
    return [Config("small", context, p) for context in (128, 256, 512, 1024) for p in ("fp32", "bf16")]


# --8<-- [start:run]
def run(config: Config) -> dict[str, list[float]]:
    """Samples in ms of the same pass: `clock_ms` by `timing.measure`, `events_ms` by a bare loop with CUDA events."""
    device = timing.default_device()
    if device != "cuda":
        raise ValueError("CUDA events exist on a GPU only, and torch sees none here")
    with torch.device(device):
        torch.manual_seed(0)
        model = build_model(config.size, config.context)
        token_ids = torch.randint(VOCAB_SIZE, (4, config.context))
    autocast = precision_context(config.precision, device)

    def step(phase: Phase) -> None:
        with phase(phases.FORWARD), torch.no_grad(), autocast:
            model(token_ids)

    timing.measure(step, warmup=0, repeats=5, device=device)
    clock_ms: list[float] = []
    events_ms: list[float] = []
    for _ in range(config.turns):
        samples = timing.measure(step, warmup=0, repeats=STEPS_A_TURN, device=device)[f"{phases.FORWARD}_ms"]
        assert isinstance(samples, list)
        clock_ms += samples
        pairs = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(STEPS_A_TURN)]
        for start, end in pairs:
            start.record()
            with torch.no_grad(), autocast:
                model(token_ids)
            end.record()
        torch.cuda.synchronize()
        events_ms += [start.elapsed_time(end) for start, end in pairs]
    return {"clock_ms": clock_ms, "events_ms": events_ms}


# --8<-- [end:run]

if __name__ == "__main__":
    main(Config, run)

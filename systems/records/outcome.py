"""What comes of one configuration: numbers, or why there are none."""

import sys
from collections.abc import Callable, Generator, Iterator
from dataclasses import asdict
from typing import Any

from systems.records.record import Row


class Unsupported(Exception):
    """What was asked for can't run this configuration: a result, like running out of
    memory.
    """


# What an experiment's `run` returns: metrics, or a generator that ends each of its
# turns with a `yield` and returns them. Rows measured in turns meet the same clocks,
# temperatures and neighbours, so that their ratios don't depend on when each ran.
Metrics = dict[str, Any]
Turns = Generator[None, None, Metrics]
Run = Callable[[Any], Metrics | Turns]


def measure_row(config: Any, run: Run) -> Row:
    """Run one configuration, all its turns at once. Out of memory and `Unsupported`
    are results; anything else raises.
    """
    *_, row = turns_of(config, run)
    assert row is not None
    return row


def turns_of(config: Any, run: Run) -> Iterator[Row | None]:
    """None after each turn of a configuration, then its row. What a row can't hold
    raises: see `measure_row`.
    """
    metrics, status, reason = {}, "ok", None
    try:
        found = run(config)
        metrics = found if isinstance(found, dict) else (yield from found)
    except Unsupported as error:
        status, reason = "unsupported", str(error)
    except Exception as error:
        if (reason := out_of_memory_reason(error)) is None:
            raise
        status = "out_of_memory"
    yield Row(asdict(config), status, metrics, reason)


def out_of_memory_reason(error: BaseException | None) -> str | None:
    """What says that the device had no memory left: `error` itself or what it wraps, as
    the compiler's do. None if not.

    Asks torch only where an experiment has imported it.
    """
    torch = sys.modules.get("torch")
    while torch is not None and error is not None:
        if isinstance(error, torch.OutOfMemoryError):
            # "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total
            # capacity ...": two sentences of it.
            return ". ".join(str(error).split(". ")[:2])
        error = getattr(error, "inner_exception", None) or error.__cause__
    return None

"""What comes of one configuration: numbers, or why there are none."""

import sys
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from systems.records.record import Row


class Unsupported(Exception):
    """What was asked for can't run this configuration: a result, like running out of
    memory.
    """


def measure_row(config: Any, run: Callable[[Any], dict[str, Any]]) -> Row:
    """Run one configuration. Out of memory and `Unsupported` are results; anything else
    raises.
    """
    metrics, status, reason = {}, "ok", None
    try:
        metrics = run(config)
    except Unsupported as error:
        status, reason = "unsupported", str(error)
    except Exception as error:
        if (reason := out_of_memory_reason(error)) is None:
            raise
        status = "out_of_memory"
    return Row(asdict(config), status, metrics, reason)


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

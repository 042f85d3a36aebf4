"""What compiling gains over the shorter of two eager steps: that which took turns with
the compiled one, and that of `end_to_end`.

Taking turns makes up for the GPU's clock, not for a slow host: it lengthens the eager
step most, for that has the most launches.
"""

import math

from systems.records.record import Record
from tools.render.load import Found, ours
from tools.render.rows import known, say
from tools.render.stems.compile import PRECISIONS, TOLD, at, compile_seconds, eager_of
from tools.render.stems.end_to_end.rows import at as timed

CONTEXT = 512


def shorter_ms(
    compiled: Record | None, clock: Record | None, size: str, precision: str
) -> float:
    """The eager step. Missing where the record of compiling has none."""
    eager = eager_of(compiled, at(compiled, size, precision)).ms()
    other = timed(clock, size, CONTEXT, "step", precision).ms()
    return min([eager, *known([other])]) if known([eager]) else eager


def facts(found: Found) -> dict[str, str]:
    """The gain, and the steps after which compiling has paid."""
    compiled, clock = ours(found, "compile"), ours(found, "end_to_end")
    told: dict[str, str] = {}
    for size in TOLD:
        for precision in PRECISIONS:
            key, c = (
                f"{size.replace('.', '_')}_{precision}",
                at(compiled, size, precision),
            )
            eager = shorter_ms(compiled, clock, size, precision)
            told[f"gain_{key}"] = say(eager / c.ms(), "{:.2f}")
            saved = (eager - c.ms()) / 1e3
            steps = math.inf if saved <= 0 else compile_seconds(c) / saved
            told[f"steps_{key}"] = (
                "never" if steps == math.inf else say(steps, "{:,.0f}")
            )
    return told

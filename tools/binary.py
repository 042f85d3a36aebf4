"""Read registers, stack bytes and loop instructions from a compiled kernel (cubin)."""

import re

from systems.profiling.compiled_kernels import count_ops, find_loops, run_cuobjdump


def count_resources(cubin: bytes) -> tuple[int, int]:
    """Return the number of registers and the stack bytes per thread."""
    output = run_cuobjdump("-res-usage", cubin)
    match = re.search(r"REG:(\d+) STACK:(\d+)", output)
    assert match, output
    return int(match[1]), int(match[2])


def hottest_loop(assembly: str) -> dict[str, int]:
    """Count instructions, register spills and reloads in the loop over unmasked tiles,
    which has the fewest instructions per matmul. Return {} if there is no loop.
    """
    bodies = find_loops(assembly)
    body = min(bodies, key=lambda body: len(body) / count_ops(body, "MMA"), default=[])
    if not body:
        return {}
    return {
        "instructions": len(body),
        "spilled": count_ops(body, "STL"),
        "reloaded": count_ops(body, "LDL"),
    }


# Matches a load from global memory to registers (LDG) or to shared memory (LDGSTS).
LOAD = re.compile(r"\b(?:LDG|LDGSTS)\.E([.\w]*)")
LOAD_BYTES = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}


def global_load_widths(assembly: str) -> tuple[int, ...]:
    """Return the distinct widths of loads from global memory, in bytes per thread."""
    widths = {
        next((LOAD_BYTES[x] for x in suffixes.split(".") if x in LOAD_BYTES), 4)
        for suffixes in LOAD.findall(assembly)
    }
    return tuple(sorted(widths))

"""Read registers, stack bytes and loop instructions from a compiled kernel (cubin)."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile

import triton

# Matches a line of SASS: its address, and its instruction without the predicate.
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/ +(?:{ *)?(?:@!?\w+ +)?([A-Z][^;]*);")
# Matches a branch and the address that it jumps to.
BRANCH = re.compile(r"BRA.* 0x([0-9a-f]+)")


def run_cuobjdump(option: str, cubin: bytes) -> str:
    """Return the output of cuobjdump (the copy that Triton brings) for a kernel."""
    reader = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        line = [str(reader), option, file.name]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout


def count_resources(cubin: bytes) -> tuple[int, int]:
    """Return the number of registers and the stack bytes per thread."""
    output = run_cuobjdump("-res-usage", cubin)
    match = re.search(r"REG:(\d+) STACK:(\d+)", output)
    assert match, output
    return int(match[1]), int(match[2])


def find_loops(assembly: str) -> Iterator[list[str]]:
    """Yield the instructions of each loop that contains matmuls and exponentials."""
    listing = [(int(at, 16), text) for at, text in INSTRUCTION.findall(assembly)]
    for i, (address, text) in enumerate(listing):
        branch = BRANCH.match(text)
        if branch and int(branch[1], 16) < address:
            start = int(branch[1], 16)
            body = [text for at, text in listing[: i + 1] if at >= start]
            if count_ops(body, "MMA") and count_ops(body, "MUFU.EX2"):
                yield body


def count_ops(body: list[str], name: str) -> int:
    """Count the instructions of a loop whose text contains a name."""
    return sum(name in text for text in body)


def instructions_per_score(assembly: str) -> float:
    """Return the shortest loop's instructions per attention score; 0 if none exists."""
    body = min(find_loops(assembly), key=len, default=[])
    return round(len(body) / count_ops(body, "MUFU.EX2"), 2) if body else 0.0


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

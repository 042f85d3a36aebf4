"""Read the binary of a kernel: registers and stack of a thread, and the instructions of
its loops.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile

import triton

# An address and an instruction without its predicate; the address a branch jumps to.
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/ +(?:{ *)?(?:@!?\w+ +)?([A-Z][^;]*);")
BRANCH = re.compile(r"BRA.* 0x([0-9a-f]+)")


def read_binary(option: str, cubin: bytes) -> str:
    """Return what cuobjdump, which comes with Triton, prints about a kernel."""
    reader = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        line = [str(reader), option, file.name]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout


def count_resources(cubin: bytes) -> tuple[int, int]:
    """Return the registers and the bytes of stack of a thread."""
    output = read_binary("-res-usage", cubin)
    match = re.search(r"REG:(\d+) STACK:(\d+)", output)
    assert match, output
    return int(match[1]), int(match[2])


def find_loops(assembly: str) -> Iterator[list[str]]:
    """Yield the instructions of each loop that has matmuls and exponentials, from its
    first instruction to the branch back.
    """
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
    """Return the instructions per exponential in the shortest loop, which is the work
    of a thread per attention score; 0 without such a loop.
    """
    body = min(find_loops(assembly), key=len, default=[])
    return round(len(body) / count_ops(body, "MUFU.EX2"), 2) if body else 0.0


def hottest_loop(assembly: str) -> dict[str, int]:
    """Count instructions in the loop over whole tiles, which has the fewest per matmul:
    all, those that spill registers to the stack, and those that reload them. Empty
    without a loop.
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


# Loads from global memory, and copies of a thread from there to shared memory.
LOAD = re.compile(r"\b(?:LDG|LDGSTS)\.E([.\w]*)")
LOAD_BYTES = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}


def load_widths(assembly: str) -> tuple[int, ...]:
    """Return the distinct widths of a thread's loads from global memory, in bytes. A
    load without a width in its name takes four.
    """
    widths = {
        next((LOAD_BYTES[x] for x in suffixes.split(".") if x in LOAD_BYTES), 4)
        for suffixes in LOAD.findall(assembly)
    }
    return tuple(sorted(widths))

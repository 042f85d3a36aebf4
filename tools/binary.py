"""What the binary of a kernel says: the registers and the stack of a thread, and what a
warp executes in a step of its hottest loop.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile

import triton

# An address and an instruction without its predicate; where a branch leads.
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/ +(?:{ *)?(?:@!?\w+ +)?([A-Z][^;]*);")
BRANCH = re.compile(r"BRA.* 0x([0-9a-f]+)")

# Multiplications and additions of one HMMA.16816, which a warp does.
OF_HMMA = 16 * 8 * 16
# What a warp group multiplies at once: 64 x N x 16.
OF_HGMMA = re.compile(r"HGMMA\.64x(\d+)x16")


def read_binary(option: str, cubin: bytes) -> str:
    """What NVIDIA's reader of binaries, which comes with Triton, says of a kernel."""
    reader = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        line = [str(reader), option, file.name]
        return subprocess.run(line, check=True, capture_output=True, text=True).stdout


def resources(cubin: bytes) -> tuple[int, int]:
    """Registers and bytes of stack of a thread."""
    said = read_binary("-res-usage", cubin)
    found = re.search(r"REG:(\d+) STACK:(\d+)", said)
    assert found, said
    return int(found[1]), int(found[2])


def loops(assembly: str) -> Iterator[list[str]]:
    """The instructions of each loop with products, from its head to its branch back."""
    found = [(int(at, 16), what) for at, what in INSTRUCTION.findall(assembly)]
    for i, (at, what) in enumerate(found):
        to = BRANCH.match(what)
        if to and int(to[1], 16) < at:
            body = [x for start, x in found[: i + 1] if start >= int(to[1], 16)]
            if any("MMA" in x for x in body):
                yield body


def instructions_per_score(assembly: str) -> float:
    """Instructions of the shortest loop with products and exponentials, for each of its
    exponentials: what a thread does for a score. 0 where there is no such loop.
    """
    counted = [
        (len(body), exponentials)
        for body in loops(assembly)
        if (exponentials := sum(x.startswith("MUFU.EX2") for x in body))
    ]
    return round(min(counted)[0] / min(counted)[1], 2) if counted else 0.0


def hottest_loop(assembly: str) -> dict[str, int]:
    """What a warp executes in a step of the loop that every whole tile passes through:
    the one with the fewest instructions per matmul. Empty where there is no loop.

    `products`: multiply-adds on tensor cores; `spilled` and `reloaded`: instructions
    that move registers to the stack for want of room, and back.
    """
    bodies = [body for body in loops(assembly) if any("EX2" in x for x in body)]
    if not bodies:
        return {}
    body = min(bodies, key=lambda body: len(body) / sum("MMA" in x for x in body))
    return {
        "instructions": len(body),
        "products": sum(map(products, body)),
        "spilled": sum(x.startswith("STL") for x in body),
        "reloaded": sum(x.startswith("LDL") for x in body),
    }


# Loads of global memory, and copies from it to shared memory that a thread issues.
LOAD = re.compile(r"\b(?:LDG|LDGSTS)\.E([.\w]*)")
LOAD_WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}


def load_bytes(assembly: str) -> tuple[int, ...]:
    """Bytes that loads of a thread take at a time, each once; what names no width takes
    four.
    """
    found = {
        next((LOAD_WIDTHS[x] for x in suffixes.split(".") if x in LOAD_WIDTHS), 4)
        for suffixes in LOAD.findall(assembly)
    }
    return tuple(sorted(found))


def products(instruction: str) -> int:
    """Of one instruction, in each of its warps. 0 for those of Blackwell's data-centre
    chips, whose binary does not tell.
    """
    if instruction.startswith("HMMA"):
        return OF_HMMA
    group = OF_HGMMA.match(instruction)
    return 64 * int(group[1]) * 16 // 4 if group else 0

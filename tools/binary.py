"""What the binary of a kernel says: the registers and the stack of a thread, and what a
warp executes in a step of its hottest loop.
"""

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from tempfile import NamedTemporaryFile

import triton

# An address and an instruction without its predicate; where a branch leads.
INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/ +(?:{ *)?(?:@!?\w+ +)?([A-Z][^;]*);")
BRANCH = re.compile(r"BRA.* 0x([0-9a-f]+)")

# Names of instructions, up to the first dot. Those of tensor cores; those that the unit
# for special functions takes, conversions among them; those of the plain float32 units.
SPECIAL = ("MUFU", "F2F", "F2I", "I2F")
PLAIN = ("FFMA", "FMUL", "FADD", "IMAD", "HFMA2", "HADD2", "HMUL2")
MOVES = ("LDSM", "LDS", "STS", "STSM", "LDG", "STG", "LDGSTS", "LDL", "STL")
CONTROL = ("BAR", "BRA", "NOP", "WARPSYNC", "LDGDEPBAR", "DEPBAR", "BSSY", "BSYNC")
# Multiplications and additions of one HMMA.16816, which a warp does.
OF_HMMA = 16 * 8 * 16
# What a warp group multiplies at once: 64 x N x 16.
OF_HGMMA = re.compile(r"HGMMA\.64x(\d+)x16")
# Registers of a thread that one instruction moves, in bytes; those of LDSM are of 4.
WIDTHS = ((".128", 16), (".64", 8), (".U16", 2), (".S16", 2), (".U8", 1))


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
    """What a warp does in a step of the loop that every whole tile passes through: the
    one with the fewest instructions for its products. Empty where there is no loop.

    `products`: multiplications with an addition, on tensor cores; `shared_bytes`: to
    and from shared memory; `l2_bytes`: from the cache behind it; `special`, `plain` and
    `other` instructions, by the unit that takes them; `spilled` and `reloaded`: those
    that move registers to memory for want of room, and back.
    """
    bodies = [body for body in loops(assembly) if any("EX2" in x for x in body)]
    if not bodies:
        return {}
    body = min(bodies, key=lambda body: len(body) / sum("MMA" in x for x in body))
    count = Counter(re.split(r"[.\s]", x, maxsplit=1)[0] for x in body)
    matrix = [x for x in body if "MMA" in x]
    known = (*SPECIAL, *PLAIN, *MOVES, *CONTROL)
    own = sum(
        n
        for name, n in count.items()
        # What begins with U is done once for a warp, by a unit beside the others.
        if name not in known and "MMA" not in name and not name.startswith("U")
    )
    shared = sum(map(shared_bytes, body))
    return {
        "instructions": len(body),
        "matrix": len(matrix),
        "products": sum(map(products, matrix)),
        "shared_bytes": shared,
        "l2_bytes": sum(moved(x) for x in body if x.startswith(("LDGSTS", "LDG."))),
        "special": sum(count[name] for name in SPECIAL),
        "plain": sum(count[name] for name in PLAIN),
        "other": own,
        "moves": sum(count[name] for name in MOVES),
        "spilled": count["STL"],
        "reloaded": count["LDL"],
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


def moved(instruction: str) -> int:
    """Bytes that a warp moves by it."""
    name = instruction.split()[0]
    if name.startswith("LDSM"):
        return 128 * (4 if ".4" in name else 2 if ".2" in name else 1)
    return 32 * next((width for mark, width in WIDTHS if mark in name), 4)


def shared_bytes(instruction: str) -> int:
    """Bytes of shared memory that one warp reads or writes by it. Registers that were
    spilled pass through the same memory.
    """
    if instruction.startswith(("LDS", "STS", "LDGSTS", "LDL", "STL")):
        return moved(instruction)
    if group := OF_HGMMA.match(instruction):
        # The right factor, and the left one where it is not in registers: R24,
        # gdesc[UR4]. A quarter for each of four warps.
        left = 64 if re.match(r"\S+ R\d+, gdesc", instruction) else 0
        return (int(group[1]) + left) * 16 * 2 // 4
    return 0

"""How long attention takes a GPU, from the instructions of its kernels' loops: a model,
to rank launch configurations and to predict where nothing was timed.

An SM runs several programs; a *round* is one step of the loop in each. Each kind of
unit needs so many cycles for what a round asks of it. Where all units work side by side
the slowest of them decides. Where exponentials and what goes with them wait for the
products that they need, the two follow each other. The model knows these two bounds,
and nothing of latency, DRAM, the tiles on the diagonal or what surrounds a loop.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Units:
    """What one SM does in a clock: multiplications with an addition of 16-bit numbers,
    lanes of its other units, bytes.
    """

    products: int
    plain: int
    other: int = 64
    special: int = 16
    schedulers: int = 4
    shared_bytes: int = 128
    l2_bytes: int = 64


# By compute capability, from the throughput table of CUDA's programming guide; products
# by the makers' white papers, with sums in float32, which a GeForce forms at half rate.
UNITS = {
    "8.0": Units(products=1024, plain=64),
    "8.6": Units(products=256, plain=128),
    "8.9": Units(products=256, plain=128),
    "9.0": Units(products=2048, plain=128),
    "10.0": Units(products=4096, plain=128),
    "12.0": Units(products=256, plain=128),
}
LANES = 32


def cycles(
    loop: Mapping[str, int], warps: int, programs: int, units: Units
) -> dict[str, float]:
    """Of each kind of unit, for a round of `programs` that run side by side.

    `loop` is what a warp executes, as `tools.binary.hottest_loop` counts it.
    """
    all_warps = warps * programs
    return {
        "products": all_warps * loop["products"] / units.products,
        "instructions": all_warps * loop["instructions"] / units.schedulers,
        "plain": all_warps * loop["plain"] * LANES / units.plain,
        "other": all_warps * loop["other"] * LANES / units.other,
        "special": all_warps * loop["special"] * LANES / units.special,
        "shared memory": all_warps * loop["shared_bytes"] / units.shared_bytes,
        "L2": all_warps * loop["l2_bytes"] / units.l2_bytes,
    }


def round_cycles(
    loop: Mapping[str, int], warps: int, programs: int, units: Units
) -> tuple[float, float]:
    """The least that a round takes, and what it takes if products, with the traffic
    that feeds them, and the arithmetic between them never overlap.
    """
    of = cycles(loop, warps, programs, units)
    between = loop["instructions"] - loop["matrix"] - loop["moves"]
    products = max(of["products"], of["shared memory"], of["L2"])
    rest = max(
        warps * programs * between / units.schedulers,
        *(of[unit] for unit in ("plain", "other", "special")),
    )
    return max(of.values()), products + rest


def limit(
    loop: Mapping[str, int], warps: int, programs: int, units: Units
) -> tuple[str, float]:
    """The unit that the loop keeps busiest, and the share of its time that the tensor
    cores would work if every unit worked side by side.
    """
    of = cycles(loop, warps, programs, units)
    busiest = max(of, key=of.__getitem__)
    return busiest, of["products"] / of[busiest]


def repeats(
    kernel: str, q: int, k: int, d: int, loop: Mapping[str, int], warps: int, limbs: int
) -> float:
    """How often each product of a step is computed: 1, unless warps are given the same
    rows. 0 where the binary does not tell (`tools.binary.products`).

    Of float32 in two or three limbs a product is three or six.
    """
    each = {1: 1, 2: 3, 3: 6}[limbs]
    return warps * loop["products"] / (PRODUCTS[kernel] * q * k * d * each)


# Products of a tile of queries and one of keys that a kernel forms.
PRODUCTS = {"forward": 2, "dq": 3, "dkdv": 4}


def steps(kernel: str, q: int, k: int, n: int, causal: bool) -> int:
    """Pairs of a tile of queries and one of keys that are visited, for n of both."""
    if not causal:
        return -(-n // q) * -(-n // k)
    if kernel == "dkdv":
        return sum(-(-n // q) - start // q for start in range(0, n, k))
    return sum(-(-min(n, start + q) // k) for start in range(0, n, q))


def times_ms(
    kernel: str,
    q: int,
    k: int,
    heads: int,
    n: int,
    causal: bool,
    of_round: tuple[float, float],
    programs: int,
    sms: int,
    clock: float,
) -> tuple[float, float]:
    """Both bounds of the time in ms of all heads' tiles, shared evenly by `sms` at
    `clock` Hz.
    """
    pairs = heads * steps(kernel, q, k, n, causal)
    least, most = (1e3 * pairs * r / programs / sms / clock for r in of_round)
    return least, most

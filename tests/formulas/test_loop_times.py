"""The model of a loop's time: cycles by hand, and the tiles that are visited."""

import pytest

from systems.formulas.loop_times import (
    UNITS,
    Units,
    cycles,
    repeats,
    round_cycles,
    steps,
    times_ms,
)

SM = Units(products=1000, plain=64, other=32, special=16)
# Of a warp.
LOOP = {
    "instructions": 100,
    "matrix": 10,
    "products": 5000,
    "shared_bytes": 1280,
    "l2_bytes": 640,
    "special": 4,
    "plain": 20,
    "other": 10,
    "moves": 10,
}


def test_cycles_of_each_unit_for_all_warps_of_an_sm():
    assert cycles(LOOP, 4, 2, SM) == {
        "products": 8 * 5,
        "instructions": 8 * 100 / 4,
        "plain": 8 * 10,
        "other": 8 * 10,
        "special": 8 * 8,
        "shared memory": 8 * 10,
        "L2": 8 * 10,
    }


def test_a_round_takes_what_its_busiest_unit_takes_or_one_part_after_the_other():
    least, most = round_cycles(LOOP, 4, 2, SM)
    assert least == 200
    # The traffic of products; then all that neither moves nor multiplies.
    assert most == 80 + 8 * (100 - 10 - 10) / 4
    # Two programs do twice the work of one in twice the time.
    assert round_cycles(LOOP, 4, 1, SM) == (least / 2, most / 2)


def test_products_that_two_warps_compute_count_twice():
    once = {"products": 2 * 64 * 64 * 128 // 4}
    assert repeats("forward", 64, 64, 128, once, 4, 1) == 1
    assert repeats("forward", 64, 64, 128, once, 8, 1) == 2
    # Two limbs have three products, three have six.
    assert (
        repeats("forward", 64, 64, 128, {"products": 3 * once["products"]}, 4, 2) == 1
    )
    assert repeats("dkdv", 64, 64, 128, {"products": 12 * once["products"]}, 4, 3) == 1


@pytest.mark.parametrize("kernel", ["forward", "dq", "dkdv"])
@pytest.mark.parametrize(("q", "k"), [(64, 64), (128, 32), (32, 128)])
@pytest.mark.parametrize("n", [512, 300])
def test_every_tile_that_holds_a_visible_score_is_visited_once(kernel, q, k, n):
    tiles = {(i // q, j // k) for i in range(n) for j in range(n)}
    seen = {(i // q, j // k) for i in range(n) for j in range(i + 1)}
    assert steps(kernel, q, k, n, causal=False) == len(tiles)
    assert steps(kernel, q, k, n, causal=True) == len(seen)


def test_a_time_is_all_steps_shared_by_all_sms():
    tiles = ("forward", 64, 64, 3, 256, False)
    found = times_ms(*tiles, (100.0, 200.0), 2, sms=4, clock=1e6)
    # 3 heads of 16 tiles, 50 cycles each on one of 4 SMs, at 1 MHz.
    assert found == (pytest.approx(3 * 16 * 50 / 4 / 1e3), pytest.approx(1.2))


def test_an_a100_forms_as_many_products_as_its_data_sheet_says():
    """312 TFLOP/s, of two FLOPs each, on 108 SMs at 1.41 GHz."""
    assert 2 * UNITS["8.0"].products * 108 * 1.41e9 == pytest.approx(312e12, rel=0.01)
    assert 2 * UNITS["9.0"].products * 132 * 1.83e9 == pytest.approx(989.5e12, rel=0.01)

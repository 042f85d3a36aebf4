"""The models behind the drawings of Hopper's kernels: units do one thing at a time, the
ring keeps its order whoever is slow, and its waits are the kernel's.
"""

import random
from itertools import pairwise

import pytest

from systems import ROOT
from tools.render.spanning import hopper_models
from tools.render.spanning.hopper_models import (
    COPY,
    LANES,
    PRODUCT,
    READERS,
    SOFTMAX,
    STAGES,
    Ring,
    played,
    tiles_done,
    timeline,
)

UNTIL = 20_000


@pytest.mark.parametrize(("groups", "stages"), [(1, 1), (1, 3), (2, 3), (3, 2)])
def test_a_unit_does_one_thing_at_a_time_and_a_tile_keeps_its_order(groups, stages):
    found = timeline(groups, stages, UNTIL)
    for lane in LANES:
        busy = sorted((b.start, b.end) for b in found if b.unit == lane)
        assert all(end <= start for (_, end), (start, _) in pairwise(busy))
    copied = {b.tile: b for b in found if b.unit == "copy"}
    for group in range(groups):
        mine = [b for b in found if b.group == group]
        # S, exp, P V of one tile after another, none before its copy has arrived.
        assert all(a.end <= b.start for a, b in pairwise(mine))
        assert [b.what for b in mine[:6]] == ["S", "exp", "P V"] * 2
        assert all(copied[b.tile].end <= b.start for b in mine)
        # A stage is written when nobody reads it.
        for b in mine:
            over = copied.get(b.tile + stages)
            assert over is None or b.end <= over.start


def test_what_copies_ahead_and_a_second_group_gain():
    """In turn; without the copy; with both units at work all the time."""
    cycles = {
        "one stage": (timeline(1, 1, UNTIL), COPY + 2 * PRODUCT + SOFTMAX),
        "ahead": (timeline(1, 3, UNTIL), 2 * PRODUCT + SOFTMAX),
        "two groups": (timeline(2, 3, UNTIL), max(2 * PRODUCT, SOFTMAX)),
    }
    for found, of_a_tile in cycles.values():
        assert abs(tiles_done(found, UNTIL) - UNTIL / of_a_tile) <= 3
    # As the page's table has it.
    assert 2 * PRODUCT == SOFTMAX == 512


def test_nobody_reads_another_tile_whoever_is_slow():
    for seed in range(200):
        ring, choose, tiles = Ring(), random.Random(seed), 20
        filled, arrived, reads = 0, 0, [0] * READERS
        while min(reads) < tiles:
            who = choose.choice(["fill", "arrive", *range(READERS)])
            if who == "fill" and filled < tiles:
                filled += ring.fill(filled)
            elif who == "arrive" and arrived < filled:
                ring.arrives(arrived)
                arrived += 1
            elif isinstance(who, int) and reads[who] < tiles:
                tile = reads[who]
                if ring.await_full(tile):
                    assert ring.holds[tile % STAGES] == tile and tile < arrived
                    ring.release(tile)
                    reads[who] += 1


def test_the_drawing_s_ring_waits_for_the_bits_that_the_kernel_waits_for():
    def body(path, name):
        return (ROOT / path).read_text().partition(f"def {name}(")[2].split("def ")[0]

    for name, in_kernel, bit in (
        ("fill", "fill_stage", "(i // STAGES & 1) ^ 1"),
        ("await_full", "wait_full", "i // STAGES & 1"),
    ):
        kernel = body("systems/attention/hopper/forward.py", in_kernel)
        drawn = body("tools/render/spanning/hopper_models.py", name)
        assert bit in kernel and bit in drawn
        assert ("^ 1" in kernel) == ("^ 1" in drawn) == (name == "fill")


def test_the_sentences_of_the_ring_tell_what_happens():
    for seen, (actions, said) in zip(played(), hopper_models.SCRIPT, strict=True):
        who = {"A": "A", "B": "B"}.get(actions[-1][0][0], "producer")
        waits = "waits" in seen.does[who] and actions[-1][0] != "arrives"
        assert waits == ("stall" in said)
    assert played()[-1].ring.holds == [3, 1, 2]

"""Test the Hopper kernels: supported inputs, schedules and (on Hopper) results."""

import itertools
import math
import random
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from systems import ROOT
from systems.attention import FlashAttentionTriton, dispatch, flash_attention
from systems.attention.dispatch import choose_backend
from systems.attention.hopper import launches, limits
from systems.attention.hopper.configs import (
    CONFIGS,
    ONE_PASS_KEYS,
    ONE_PASS_QUERIES,
    SHORT_FORWARD,
)
from systems.attention.hopper.descriptors import rows_descriptor, statistics_descriptor
from systems.attention.hopper.launches import (
    launch_backward,
    launch_forward,
    launch_two_passes,
)
from systems.attention.hopper.limits import MIN_SCORES, TILE_DIMS, is_tma_readable
from systems.attention.hopper.one_pass_launches import launch_one_pass
from systems.attention.hopper.schedule import ITEM_STEPS, make_schedule
from systems.attention.hopper.walks import (
    OrderedWalk,
    ShiftWalk,
    choose_walk,
    count_shift_groups,
)
from systems.attention.relaunch import Layout, make_layout, shape_and_strides
from systems.attention.triton import launches as plain
from systems.attention.triton.configs import count_sms
from systems.experiments import flash_accuracy
from systems.precision.dtypes import relative_error
from tests.attention.checks import (
    BATCHED,
    NAMES,
    FakeGpuTensor,
    check_against_reference,
    check_batched_gradients,
    fake_tensor,
    make_inputs,
    needs_hopper,
    poison_buffers,
    run_class,
    to_dict,
)

MASKS = pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
LAST_ITEMS = CONFIGS["forward"][64].last_items
# Query tiles per key tile of the one-pass backward.
QUERY_TILES = ONE_PASS_KEYS // ONE_PASS_QUERIES
DTYPES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
# Head dimension 80 is padded to 128.
HEAD_DIMS = pytest.mark.parametrize("d", (64, 80, 128))
LENGTHS = [1, 17, 63, 64, 65, 128, 130, 191, 257, 1000, 2048, 4096]
PAIRS = [(1, 1000), (1000, 1), (65, 191), (191, 65), (128, 2048), (1000, 130)]


def attend(q, k, v, do, causal: bool, scale: float | None = None):
    """Return o, lse, dq, dk and dv of the Hopper kernels, also for small inputs."""
    options = causal, scale or q.shape[-1] ** -0.5
    o, lse = launch_forward(q, k, v, *options)
    return to_dict((o, lse, *launch_backward(do, q, k, v, o, lse, *options)))


@pytest.fixture
def fake_hopper(monkeypatch):
    """Simulate a Hopper GPU and a supported Triton."""
    monkeypatch.setattr(limits, "missing_on_device", lambda device: "")


def is_hopper(*shape: int, **options) -> bool:
    """Return whether "auto" selects the Hopper kernels for this shape."""
    x = fake_tensor(*shape, **options)
    return choose_backend("auto", x, x, x) == "hopper"


@pytest.mark.usefixtures("fake_hopper")
def test_auto_selects_the_hopper_kernels():
    long = 1, 16, 16384
    assert [d for d in (32, 40, 64, 80, 84, 256) if is_hopper(*long, d)] == [40, 64, 80]
    assert is_hopper(128, 1024, 128) and is_hopper(8, 17, 1023, 64, dtype=torch.float16)
    assert not is_hopper(*long, 64, dtype=torch.float32)
    assert not is_hopper(*long, 64, device="cpu")
    assert is_hopper(8, 4096, 64) and not is_hopper(8, 4095, 64)
    assert MIN_SCORES == 8 * 4096**2
    # A single head is enough only if it has more tiles than there are SMs.
    assert is_hopper(1, 32768, 64) and not is_hopper(1, 16384, 64)


@pytest.mark.usefixtures("fake_hopper")
def test_accuracy_grid_covers_both_backends():
    """The grid has Triton kernels for few heads, and both Hopper backward passes."""
    seen = set()
    for c in flash_accuracy.configs():
        few = c.heads == flash_accuracy.HEADS
        assert is_hopper(1, c.heads, c.n, c.d) is not few
        if not few:
            layouts = (make_layout((1, c.heads, c.n, c.d), (1, 1, 1, 1)),) * 2
            seen.add(choose_walk(*layouts, c.causal, 132) is not None)
    assert seen == {True, False}


CPU = torch.device("cpu")


@MASKS
@pytest.mark.parametrize(
    ("n_q", "n_k", "heads", "head_swizzle"),
    [(1000, 1000, 5, 2), (130, 5000, 3, 1), (64, 64, 1, 1)],
)
@pytest.mark.parametrize("last_items", [0, 2])
def test_each_item_is_scheduled_once(n_q, n_k, heads, head_swizzle, last_items, causal):
    tiles = 128, 64, causal, 7, last_items, CPU
    starts, items = make_schedule(n_q, n_k, heads, head_swizzle, *tiles)
    assert sorted(items.tolist()) == list(range(-(-n_q // 128) * heads))
    assert starts[0] == 0 and starts[-1] == len(items) and len(starts) <= 8
    assert (starts.diff() > 0).all()


SCHEDULES = (
    (16384, 16, 2, 192, 128, 1.02),
    (1024, 512, 1, 256, 64, 1.02),
    (4096, 64, 8, 128, 128, 1.01),
)


@pytest.mark.parametrize(("n", "heads", "swizzle", "rows", "keys", "most"), SCHEDULES)
def test_schedule_balances_programs_at_the_end(n, heads, swizzle, rows, keys, most):
    """Without interleaving the last heads, some programs would end 4 to 6 % later."""
    tiles = rows, keys, True, 132, LAST_ITEMS, CPU
    starts, items = make_schedule(n, n, heads, swizzle, *tiles)
    ends = [min(n, end) for end in range(rows, n + rows, rows)]
    steps = torch.tensor([-(-end // keys) + ITEM_STEPS for end in ends])
    times = [
        steps[items[a:b] % len(steps)].sum()
        for a, b in itertools.pairwise(starts.tolist())
    ]
    assert len(times) == 132 and max(times) <= most * sum(times) / len(times)


def test_tma_descriptor_equals_that_of_triton():
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    x = torch.empty(2, 70, 3, 64, dtype=torch.bfloat16).transpose(1, 2)
    made = rows_descriptor(make_layout(*shape_and_strides(x)), 16, 64, x.dtype)(x)
    strides = [13440, 64, 192, 1]
    theirs = TensorDescriptor(x, [2, 3, 70, 64], strides, [1, 1, 16, 64], made.layout)
    assert made.base is x
    assert vars(made) | {"base": None} == vars(theirs) | {"base": None}
    # Without a batch dimension, the descriptor has a batch of 1.
    lies = make_layout(*shape_and_strides(x[0]))
    assert rows_descriptor(lies, 16, 64, x.dtype)(x[0]).shape == [1, 3, 70, 64]
    statistics = torch.empty(6, 72)
    assert vars(statistics_descriptor(6, 70, 72, 16)(statistics))["strides"] == [72, 1]
    with pytest.raises(AssertionError):
        rows_descriptor(Layout((1, 1, 8, 64), (0, 0, 65, 1)), 16, 64, torch.bfloat16)


NEEDS = {
    "no GPU": (fake_tensor(1, 1, 8, 64, device="cpu"), "needs a CUDA GPU, found cpu"),
    "another dtype": (
        fake_tensor(1, 1, 8, 64, dtype=torch.float32),
        "needs float16 or bfloat16, found torch.float32",
    ),
    "another head dimension": (
        fake_tensor(1, 1, 8, 32),
        "needs a head dimension from 40 to 128 that 8 divides, found 32",
    ),
    "rows apart": (
        FakeGpuTensor(torch.empty(1, 8, 65, dtype=torch.bfloat16)[..., :64]),
        r"needs rows .* 16 bytes, found q with strides \(520, 65, 1\)",
    ),
}


@pytest.mark.usefixtures("fake_hopper")
@pytest.mark.parametrize("case", NEEDS)
def test_backend_hopper_runs_or_gives_the_reason(case):
    """Backend "hopper" runs small inputs too; "auto" selects other kernels silently."""
    small, (bad, message) = fake_tensor(1, 1, 8, 64), NEEDS[case]
    assert choose_backend("hopper", small, small, small) == "hopper"
    with pytest.raises(ValueError, match=f"hopper: {message}"):
        choose_backend("hopper", bad, bad, bad)
    assert choose_backend("auto", bad, bad, bad) == "triton"


def test_setup_page_names_supported_versions():
    page = (ROOT / "docs" / "setup.md").read_text(encoding="utf-8")
    *names, last = (f"`{version.rstrip('.')}`" for version in limits.VERSIONS)
    assert f"Triton {', '.join(names)} and {last}" in page


def test_layouts_that_tma_can_read_are_recognized():
    x = torch.empty(4, 8, 100, 64, dtype=torch.bfloat16)
    flat = torch.empty(6401, dtype=torch.bfloat16)
    # A dimension of size 1 may have any stride.
    one = flat.as_strided((1, 100, 64), (3, 64, 1))
    for readable in (x, x[0], x[:, ::2, 3:], x.transpose(1, 2), one):
        assert is_tma_readable(readable)
    # TMA can't read rows 65 elements apart, an address off by two bytes, a strided head
    # dimension or an expanded row.
    gaps, late = flat.new_empty(2, 100, 65)[..., :64], flat[1:].view(1, 100, 64)
    for unreadable in (gaps, late, x.mT, x[:, :, :1].expand_as(x)):
        assert not is_tma_readable(unreadable)


@pytest.fixture
def only_hopper(monkeypatch, fake_hopper):
    """Remove the Triton kernels; `VERSIONS` lists a version only after these tests."""
    monkeypatch.delitem(dispatch.LAUNCHERS, "triton")


def misalign(x: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.numel() + 1)[1:].view(x.shape).copy_(x)


# Changes that give a tensor a layout that TMA can't read, by name.
UNREADABLE = {
    "off by one number": misalign,
    "gaps": lambda x: torch.stack((x, torch.full_like(x, float("nan"))), -1)[..., 0],
    "head dimension outermost": lambda x: x.mT.contiguous().mT,
    "heads beside tokens, off by one": lambda x: misalign(x.transpose(1, 2)).transpose(
        1, 2
    ),
}


@pytest.fixture
def portable_launches(monkeypatch):
    """Replace the Hopper kernels by the Triton kernels; list the backward launches."""
    ran = []

    def unsupported_reason(*inputs):
        return "" if all(map(is_tma_readable, inputs)) else "needs rows without gaps"

    def make_launch(name):
        def launch(do, q, k, v, o, lse, causal, scale, *walk):
            ran.append(name)
            assert all(map(is_tma_readable, (do, q, k, v, o)))
            assert lse.is_contiguous()
            return plain.launch_backward(do, q, k, v, o, lse, causal, scale)

        return launch

    monkeypatch.setattr(limits, "unsupported_reason", unsupported_reason)
    monkeypatch.setattr(launches, "count_sms", lambda device: 132)
    monkeypatch.setattr(launches, "launch_forward", plain.launch_forward)
    monkeypatch.setattr(launches, "launch_one_pass", make_launch("one pass"))
    monkeypatch.setattr(launches, "launch_two_passes", make_launch("two passes"))
    return ran


def gradients_of_layout(inputs, change, backend: str):
    """Return gradients after `change` changed the layout of do and of saved tensors."""
    *leaves, do = inputs
    leaves = [x.detach().requires_grad_() for x in leaves]
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, change):
        o = flash_attention(*leaves, causal=True, backend=backend)
    return torch.autograd.grad(o, leaves, change(do))


@pytest.mark.parametrize("walk", [None, ShiftWalk(1)], ids=["two passes", "one pass"])
@pytest.mark.parametrize("layout", UNREADABLE)
def test_backward_copies_tensors_unreadable_by_tma(
    layout, walk, portable_launches, monkeypatch, device
):
    monkeypatch.setattr(launches, "choose_walk", lambda *_: walk)
    inputs = make_inputs(40, 40, 64, torch.float16, device, lead=(1, 2))
    expected = gradients_of_layout(inputs, lambda x: x, "hopper")
    found = gradients_of_layout(inputs, UNREADABLE[layout], "hopper")
    assert all(map(torch.equal, found, expected))
    assert portable_launches == 2 * ["one pass" if walk else "two passes"]


@pytest.mark.usefixtures("portable_launches")
@pytest.mark.parametrize("layout", UNREADABLE)
def test_gradients_of_copies_have_the_promised_strides(layout, device):
    q, k, v, do = make_inputs(40, 40, 64, torch.float16, device, lead=(1, 2))
    o, lse = plain.launch_forward(q, k, v, True, 0.125)
    inputs = [UNREADABLE[layout](x) for x in (q, k, v)]
    found = dispatch.run_backward(do, *inputs, o, lse, True, 0.125, "hopper")
    for gradient, x in zip(found, inputs, strict=True):
        assert gradient.stride() == torch.empty_like(x).stride()


def shift_walk(number: int, tiles: int, heads: int, groups: int, causal: bool):
    """Yield (head, query tile, number of earlier partial dq) by step of a program."""
    pytest.importorskip("triton.experimental.gluon")
    from systems.attention.hopper.shift import Program, get_item, get_tile

    group, column = divmod(number, tiles)
    program = Program(group, groups, column, tiles)
    for n in range(-(-(heads - group) // groups)):
        head, keys, steps = (int(x) for x in get_item.fn(n, program, causal))
        for step in range(steps):
            tile, order = (int(x) for x in get_tile.fn(step, n, keys, tiles, causal))
            assert not causal or tile >= keys * QUERY_TILES
            yield head, tile, order


@MASKS
@pytest.mark.parametrize(
    ("tiles", "heads", "groups"), [(1, 3, 2), (8, 6, 3), (16, 4, 2), (5, 3, 1)]
)
def test_shift_walk_adds_partial_dq_in_order(tiles, heads, groups, causal):
    """If programs run in lockstep, each partial dq is added after all earlier ones."""
    walks = [
        [*shift_walk(i, tiles, heads, groups, causal)] for i in range(tiles * groups)
    ]
    held: Counter[tuple[int, int]] = Counter()
    for steps in itertools.zip_longest(*walks):
        # Only partials that were added in earlier steps count.
        before = held.copy()
        for head, tile, order in filter(None, steps):
            assert before[head, tile] == order
            held[head, tile] += 1
    every = itertools.product(range(heads), range(tiles * QUERY_TILES))
    assert held == {
        (head, tile): tile // QUERY_TILES + 1 if causal else tiles
        for head, tile in every
    }


def ordered_walks(heads: int, kv_heads: int, n_q: int, n_k: int, causal: bool, order):
    """Yield each work item, and (head, query tile, earlier partial dq) by step."""
    pytest.importorskip("triton.experimental.gluon")
    from systems.attention.hopper.ordered import Walk, get_item, get_tile

    heads_of, shared = kv_heads * order.parts, heads // kv_heads // order.parts
    tiles_q, tiles_k = -(-n_q // ONE_PASS_QUERIES), -(-n_k // ONE_PASS_KEYS)
    walk = Walk(heads, heads_of, tiles_q, tiles_k, *order)
    for number in range(heads_of * tiles_k):
        item = get_item.fn(number, walk, causal)
        item = type(item)(*(int(x) for x in item))
        tiles = [get_tile.fn(i, item, walk, causal) for i in range(item.steps)]
        members = range(item.batch_head * shared, (item.batch_head + 1) * shared)
        steps = [(int(tile), int(before)) for tile, before in tiles]
        yield item, [(member, *step) for member in members for step in steps]


def random_orders(cases: int):
    """Yield random valid (heads, kv_heads, n_q, n_k, causal, order)."""
    draw = random.Random(0)
    for _ in range(cases):
        kv_heads, shared = draw.choice((1, 2, 3, 8)), draw.choice((1, 1, 2, 4, 8))
        n_q, n_k = (draw.randint(1, draw.choice((64, 300, 1500))) for _ in range(2))
        if draw.random() < 0.5:
            n_k = n_q
        causal = draw.random() < 0.65
        parts = draw.choice([x for x in range(1, shared + 1) if shared % x == 0])
        total = kv_heads * parts
        turn = draw.randint(0, total) if causal else total
        order = OrderedWalk(draw.randint(1, total + 1), turn, parts)
        yield kv_heads * shared, kv_heads, n_q, n_k, causal, order


def test_ordered_walk_waits_only_for_earlier_programs():
    """Each partial dq is added after the partials of programs with smaller numbers."""
    for case in random_orders(300):
        heads, _, n_q, n_k, causal, _ = case
        held: dict[tuple[int, int], int] = {}
        items = set()
        for item, steps in ordered_walks(*case):
            items.add((item.batch_head, item.keys))
            for head, tile, before in steps:
                assert held.get((head, tile), 0) == before, case
                assert not causal or tile >= item.keys * QUERY_TILES, case
                held[head, tile] = before + 1
        tiles_k = -(-n_k // ONE_PASS_KEYS)
        assert len(items) == case[1] * case[-1].parts * tiles_k, case
        assert held == {
            (head, tile): min(tile // QUERY_TILES + 1, tiles_k) if causal else tiles_k
            for head in range(heads)
            for tile in range(-(-n_q // ONE_PASS_QUERIES))
        }, case


def walk_for(n, lead=(4, 16), lead_k=None, causal=True, d=128, n_q=None):
    q, k = Layout((*lead, n_q or n, d), ()), Layout((*(lead_k or lead), n, d), ())
    return choose_walk(q, k, causal, 132)


def test_ordered_walk_is_chosen_for_ragged_grouped_and_long_inputs():
    # Test ragged lengths, grouped heads, more tiles than SMs, and narrow heads.
    assert walk_for(4000) == OrderedWalk(4, 56)
    assert walk_for(4000, causal=False) == OrderedWalk(8, 64)
    assert walk_for(8192, (2, 32), (2, 8), d=64) == OrderedWalk(1, 12)
    assert walk_for(4096, (4, 32), (4, 8)) == OrderedWalk(2, 24)
    assert walk_for(8192, (2, 24), (2, 8)) == OrderedWalk(1, 12)
    assert walk_for(4096, (1, 32), (1, 8)) == OrderedWalk(2, 4)
    assert walk_for(32768, (1, 8)) == OrderedWalk(1, 6)
    assert walk_for(8192, (2, 16), d=96) == OrderedWalk(2, 28)
    # With few programs or long loops, each query head has its own programs.
    assert walk_for(4096, (1, 8), (1, 1), d=64) == OrderedWalk(4, 4, 8)
    assert walk_for(8192, (2, 64), (2, 8)) == OrderedWalk(4, 124, 8)
    assert walk_for(16384, (1, 32), (1, 8)) == OrderedWalk(2, 30, 4)
    assert walk_for(8192, (2, 64), (2, 8), causal=False) == OrderedWalk(4, 16)
    # If the lengths differ, the shorter one decides.
    assert walk_for(8192, n_q=4096) == OrderedWalk(2, 60)
    # The ordered walk needs enough keys and programs, and mostly several heads.
    assert not walk_for(3968) and not walk_for(2000, (8, 16))
    assert not walk_for(8192, n_q=1000)
    assert walk_for(2000, (8, 16), causal=False) and not walk_for(1900, causal=False)
    assert not walk_for(4000, (1, 4)) and not walk_for(32768, (1, 1), d=64)
    # A single head is enough if it is so long that idle SMs at its end don't matter.
    assert walk_for(65536, (1, 1), d=64) == OrderedWalk(1, 0)
    assert not walk_for(65536, (1, 1), d=64, causal=False)
    for n, *leads in ((4000, (4, 16), (4, 2)), (5000, (1, 8), (1, 4)), (4097, (9, 7))):
        found = walk_for(n, *leads)
        assert isinstance(found, OrderedWalk) and found.side > 0 <= found.turn, n


@pytest.mark.parametrize("program", range(5))
def test_drawing_shows_each_program_s_walk(program):
    """The drawing has two heads and five tiles; it shows a step per key tile."""
    svg = (ROOT / "docs/drawings/ordered-walk-wide.svg").read_text("utf-8")
    static, *_, last = svg.split('class="frame"')
    shown = re.findall(r'<text x="(\d+)" y="([\d.]+)">(\d)<', static + last)
    numbers = {(float(x), float(y)): int(text) for x, y, text in shown}
    walked = list(shift_walk(program, 5, 2, 1, True))
    for head, tile, order in walked[::QUERY_TILES]:
        x = (129, 461)[head] + 50 * (tile // QUERY_TILES)
        assert numbers[x, 58.5 + 24 * program] == order


def test_shift_walk_is_chosen_for_equal_whole_tiles():
    def groups(n, lead=(1, 16), causal=True, n_q=None, lead_k=None, d=64):
        found = walk_for(n, lead, lead_k, causal, d, n_q)
        return found.groups if isinstance(found, ShiftWalk) else 0

    assert groups(16384) == groups(16384, causal=False) == groups(16384, d=128) == 1
    assert groups(4096, (4, 16)) == groups(4096, (4, 16), d=128) == 4
    assert groups(2048, (16, 16)) == groups(2048, (16, 16), False, d=128) == 8
    assert groups(1024, (16, 32), False) == 16 and groups(8192, (2, 16), d=104) == 2
    # Unsupported: ragged or different lengths, grouped heads, more tiles than SMs.
    assert not groups(16320) and not groups(16384, n_q=8192) and not groups(17024)
    assert not groups(4096, (4, 32), lead_k=(4, 8))
    # Too many SMs would idle: with 96 programs, one causal head, or few steps.
    assert not groups(12288) and not groups(16384, (1, 1))
    assert groups(16384, (1, 1), causal=False)
    assert not groups(1024, (16, 32)) and not groups(2048, (16, 16), d=128)


def check_one_pass(inputs, causal: bool, *walks) -> None:
    """Check the one-pass backward in these walks, with bitwise equal calls."""
    (q, k, v, do), options = inputs, (causal, inputs[0].shape[-1] ** -0.5)
    o, lse = launch_forward(q, k, v, *options)
    for walk in walks:
        arguments = do, q, k, v, o, lse, *options, walk
        first = launch_one_pass(*arguments)
        check_against_reference((o, lse, *first), *inputs, causal)
        for _ in range(20):
            assert all(map(torch.equal, first, launch_one_pass(*arguments)))


@needs_hopper
@MASKS
@DTYPES
@HEAD_DIMS
def test_one_pass_backward_is_accurate_in_shift_walk(d, dtype, causal):
    for n, lead, groups in [
        (128, (1,), 1), (128, (3,), 2), (256, (2,), 1), (384, (2, 5), 4),
        (1024, (3,), 3), (2048, (2, 6), 4),
        (640, (2, 8), 1), (4096, (4,), 4),
    ]:  # fmt: skip
        inputs = make_inputs(n, n, d, dtype, "cuda", lead=lead)
        check_one_pass(inputs, causal, ShiftWalk(groups))


# Shapes for the ordered walk, by what they test: (n_q, n_k, heads, KV heads, d).
ORDERED = {
    "shared heads": (1024, 1024, (2, 8), (2, 2), 128),
    "shared heads, 64 columns": (1024, 1024, (2, 8), (2, 2), 64),
    "1000 rows": (1000, 1000, (2, 3), (2, 3), 128),
    "4000 rows": (4000, 4000, (1, 2), (1, 2), 128),
    "1000 rows, shared heads, 64 columns": (1000, 1000, (8,), (1,), 64),
    "more queries": (1500, 700, (2, 3), (2, 3), 128),
    "more keys": (700, 1500, (2, 3), (2, 3), 128),
    "more queries, 64 columns": (1500, 700, (3,), (3,), 64),
    "more keys, 64 columns": (700, 1500, (3,), (3,), 64),
    "many keys": (16960, 16960, (1, 1), (1, 1), 128),
    "a single head, 64 columns": (2048, 2048, (1, 1), (1, 1), 64),
    "96 columns": (1111, 1111, (2, 4), (2, 1), 96),
    "80 columns": (1111, 700, (2, 3), (2, 3), 80),
    "72 columns": (2048, 2048, (2, 4), (2, 4), 72),
    "104 columns": (1111, 1111, (2, 2), (2, 1), 104),
}


def list_orders(heads: int, shared: int, causal: bool) -> list[OrderedWalk]:
    """Return ordered walks over one, two or all heads, and with divided head groups."""
    if not causal:
        found = [OrderedWalk(1, heads), OrderedWalk(heads, heads)]
    else:
        found = [OrderedWalk(1, heads), OrderedWalk(2, 0), OrderedWalk(2, heads // 2)]
    if shared > 1:
        found.append(OrderedWalk(1, heads * shared, shared))
        found.append(OrderedWalk(2, heads * shared // (2 if causal else 1), shared))
    return found


@needs_hopper
@MASKS
@pytest.mark.parametrize("case", ORDERED)
def test_one_pass_backward_is_accurate_in_ordered_walk(case, causal):
    n_q, n_k, lead, lead_k, d = ORDERED[case]
    heads = {"lead": lead, "lead_k": lead_k}
    inputs = make_inputs(n_q, n_k, d, torch.bfloat16, "cuda", **heads)
    of_q, of_k = (math.prod(leads) for leads in (lead, lead_k))
    orders = list_orders(of_k, of_q // of_k, causal)
    # Test one order for long sequences, because float64 attention is slow.
    check_one_pass(inputs, causal, *(orders[-1:] if n_q > 4096 else orders))


@needs_hopper
@pytest.mark.filterwarnings("ignore")
def test_compiled_gradients_of_transposed_views_agree_with_eager():
    torch.compiler.reset()
    heads = {"lead": (1, 32), "lead_k": (1, 8)}
    inputs = make_inputs(8192, 8192, 128, torch.bfloat16, "cuda", **heads)
    q, k, v, do = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs)
    layouts = (make_layout(*shape_and_strides(x)) for x in (q, k))
    walk = choose_walk(*layouts, True, count_sms(q.device))
    assert isinstance(walk, OrderedWalk) and walk.parts > 1

    def loss(q, k, v):
        return flash_attention(q * 2, k * 2, v * 2, causal=True).cos()

    leaves = [x.requires_grad_() for x in (q, k, v)]
    compiled = torch.compile(loss, fullgraph=True)
    ours = torch.autograd.grad(compiled(*leaves), leaves, do)
    expected = torch.autograd.grad(loss(*leaves), leaves, do)
    for a, b in zip(ours, expected, strict=True):
        assert a.stride() == b.stride()
        # The compiler rounds less often.
        assert relative_error(a, b.double()) < 0.01


@needs_hopper
def test_padding_keys_are_masked_for_low_scores():
    """For padding keys, exp(0 - lse) would overflow."""
    q, k, *_ = inputs = make_inputs(1000, 1000, 128, torch.half, "cuda", lead=(2,))
    q += 4
    k -= 4
    check_one_pass(inputs, False, OrderedWalk(1, 2))


@needs_hopper
@MASKS
@DTYPES
@HEAD_DIMS
def test_hopper_kernels_are_accurate_at_every_length(d, dtype, causal):
    for n_q, n_k in [*((n, n) for n in LENGTHS), *PAIRS]:
        inputs = make_inputs(n_q, n_k, d, dtype, "cuda", lead=(2,))
        first = attend(*inputs, causal)
        check_against_reference(first, *inputs, causal)
        again = attend(*inputs, causal)
        assert all(torch.equal(first[name], again[name]) for name in NAMES)


@needs_hopper
@MASKS
@DTYPES
def test_both_forward_configurations_for_64_columns_are_accurate(dtype, causal):
    for config in (SHORT_FORWARD, CONFIGS["forward"][64]):
        for n_q, n_k in [(1000, 1000), (65, 2000), (2000, 130)]:
            q, k, v, do = inputs = make_inputs(n_q, n_k, 64, dtype, "cuda", lead=(2,))
            o, lse = launch_forward(q, k, v, causal, 0.125, config)
            found = launch_backward(do, q, k, v, o, lse, causal, 0.125)
            check_against_reference((o, lse, *found), *inputs, causal)


@needs_hopper
@MASKS
@HEAD_DIMS
def test_batches_grouped_heads_and_scales_are_accurate(d, causal):
    """With 400 heads each program computes several items."""
    for batch, heads, shared in [(3, 5, 5), (2, 6, 2), (1, 6, 1), (1, 1, 1)]:
        heads = {"lead": (batch, heads), "lead_k": (batch, shared)}
        inputs = make_inputs(300, 200, d, torch.bfloat16, "cuda", **heads)
        check_against_reference(attend(*inputs, causal), *inputs, causal)
    for scale, sigma, heads in [(0.02, 1.0, 2), (1.0, 1.0, 2), (0.125, 8.0, 400)]:
        more = {"lead": (2, heads // 2), "lead_k": (2, max(1, heads // 4))}
        inputs = make_inputs(333, 461, d, torch.bfloat16, "cuda", sigma=sigma, **more)
        check_against_reference(attend(*inputs, causal, scale), *inputs, causal, scale)


@needs_hopper
@pytest.mark.parametrize("d", sorted(set(TILE_DIMS) - {64, 80, 128}))
def test_remaining_head_dimensions_are_accurate(d):
    for n, lead in [(333, (2,)), (2048, (8, 8))]:
        inputs = make_inputs(n, n, d, torch.bfloat16, "cuda", lead=lead)
        check_against_reference(attend(*inputs, True), *inputs, True)


@needs_hopper
@MASKS
@HEAD_DIMS
def test_memory_around_views_is_not_read(d, causal):
    """Tensors are (b, n, h, d) views, and all memory around them is NaN."""
    b, h, n = 2, 3, 333
    parts = make_inputs(n, n, d, torch.bfloat16, "cuda", lead=(b, h))
    memory = torch.empty(b, n + 70, 5, h, d, dtype=torch.bfloat16, device="cuda")
    memory.fill_(float("nan"))
    views = [memory[:, 5 : 5 + n, i].transpose(1, 2) for i in range(4)]
    for view, part in zip(views, parts, strict=True):
        view.copy_(part)
    assert all(is_tma_readable(view) for view in views)
    expected, actual = attend(*parts, causal), attend(*views, causal)
    assert all(torch.equal(actual[name], expected[name]) for name in NAMES)


@needs_hopper
@MASKS
@pytest.mark.parametrize(
    ("n_q", "n_k", "lead", "d", "tensors"),
    [
        *((1000, 333, (2, 3), d, 6) for d in (64, 80, 128)),
        # These shapes run the one-pass backward, with each walk.
        (2048, 2048, (8, 8), 64, 7),
        (2048, 2048, (8, 8), 48, 7),
        (4096, 4096, (2, 4), 128, 7),
        (4000, 4000, (2, 8), 128, 7),
        (4001, 4003, (2, 8), 80, 7),
    ],
    ids=str,
)
def test_kernels_write_exactly_their_outputs(n_q, n_k, lead, d, tensors, causal):
    inputs = make_inputs(n_q, n_k, d, torch.bfloat16, "cuda", lead=lead)
    with poison_buffers(launches) as memories:
        actual = attend(*inputs, causal)
    check_against_reference(actual, *inputs, causal)
    assert len(memories) == tensors


@needs_hopper
@pytest.mark.parametrize(("backend", "n"), [("hopper", 100), ("auto", 8192)])
def test_public_class_runs_the_hopper_kernels(backend, n, only_hopper):
    """Run small inputs by backend name, large ones by "auto"; do has stride zero."""
    q, k, v, _ = make_inputs(n, n, 64, torch.bfloat16, "cuda", lead=(4,))
    one = torch.ones((), device="cuda", dtype=q.dtype).expand_as(q)
    actual = run_class(FlashAttentionTriton, q, k, v, one, True, None, backend)
    check_against_reference(actual, q, k, v, one, True)


@needs_hopper
@pytest.mark.parametrize("backend", ["hopper", "auto"])
@pytest.mark.parametrize("layout", UNREADABLE)
@pytest.mark.parametrize(
    ("n", "lead", "d", "walk"),
    [
        (1000, (8, 17), 64, type(None)),
        (4096, (4, 16), 64, ShiftWalk),
        (4000, (4, 16), 128, OrderedWalk),
    ],
    ids=["two passes", "one pass", "ordered"],
)
def test_gradients_of_tensors_unreadable_by_tma_are_right(
    n, lead, d, walk, layout, backend, fake_hopper
):
    inputs = make_inputs(n, n, d, torch.bfloat16, "cuda", lead=lead)
    layouts = (Layout((*lead, n, d), ()) for _ in range(2))
    assert isinstance(choose_walk(*layouts, True, count_sms(inputs[0].device)), walk)
    assert limits.is_faster(*inputs[:2])
    expected = gradients_of_layout(inputs, lambda x: x, backend)
    found = gradients_of_layout(inputs, UNREADABLE[layout], backend)
    for a, b in zip(found, expected, strict=True):
        # "auto" selects the Triton kernels if TMA can't read q, k or v.
        tolerance = 0 if backend == "hopper" else 0.02
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@needs_hopper
@pytest.mark.parametrize("n", [1000, 4096], ids=["two passes", "one pass"])
def test_output_gradient_unreadable_by_tma_is_supported(n, only_hopper):
    """The layouts of q, k and v decide the backend, even if TMA can't read do."""
    q, k, v, do = make_inputs(n, n, 64, torch.bfloat16, "cuda", lead=(4, 34))
    expected = run_class(FlashAttentionTriton, q, k, v, do, True)
    found = run_class(FlashAttentionTriton, q, k, v, misalign(do), True)
    assert all(torch.equal(found[name], expected[name]) for name in NAMES)


@needs_hopper
@pytest.mark.parametrize("backend", ["hopper", "auto"])
@pytest.mark.parametrize("n", [1000, 4096], ids=["two passes", "one pass"])
@pytest.mark.parametrize("way", BATCHED)
def test_batched_gradients_equal_single_passes(way, n, backend, only_hopper):
    q, k, v, _ = make_inputs(n, n, 64, torch.bfloat16, "cuda", lead=(4, 34))
    leaves = q.requires_grad_(), k.requires_grad_(), v.requires_grad_()
    o = flash_attention(*leaves, causal=True, backend=backend)
    check_batched_gradients(way, o, leaves)


@needs_hopper
@pytest.mark.parametrize("n", [1000, 4096], ids=["two passes", "one pass"])
def test_thread_without_cuda_context_can_launch(n):
    """The launch must create the context, because memory and kernels are cached."""
    q, k, v, do = make_inputs(n, n, 64, torch.bfloat16, "cuda", lead=(4, 34))
    options = True, 0.125
    o, lse = launch_forward(q, k, v, *options)
    calls = {
        "forward": lambda: launch_forward(q, k, v, *options),
        "backward": lambda: launch_backward(do, q, k, v, o, lse, *options),
        "two passes": lambda: launch_two_passes(do, q, k, v, o, lse, *options),
    }
    for name, call in calls.items():
        expected = call()
        # Free memory for the thread to reuse.
        call()
        torch.cuda.synchronize()
        with ThreadPoolExecutor(1) as pool:
            found = pool.submit(call).result()
        assert all(map(torch.equal, found, expected)), name


@needs_hopper
@pytest.mark.parametrize(("programs", "steps", "each"), [(4, 6, 3), (132, 993, 16384)])
def test_tma_additions_reach_all_tiles(programs, steps, each):
    """Each tile gets the same number of additions, or one more."""
    from systems.attention.hopper.tma_addition import ROWS, add_ones

    sums = torch.zeros(8, ROWS, 32, device="cuda")
    add_ones(sums, programs, steps)
    assert sums.double().sum().item() == programs * steps * ROWS * 32
    assert ((sums == each) | (sums == each + 1)).all()


@needs_hopper
def test_head_beyond_two_to_the_31_elements_equals_a_call_alone():
    """The last head, beyond 2³¹ elements, equals a call with that head alone."""
    heads, n, d = 2**31 // (4096 * 128) + 2, 4096, 128
    q, k, v, do = (
        torch.empty(heads, n, d, dtype=torch.bfloat16, device="cuda").normal_()
        for _ in range(4)
    )
    last = slice(heads - 1, heads)
    q_last, k_last, v_last, do_last = (x[last].clone() for x in (q, k, v, do))
    o, lse = launch_forward(q, k, v, True, d**-0.5)
    o_last, lse_last = launch_forward(q_last, k_last, v_last, True, d**-0.5)
    assert torch.equal(o[last], o_last) and torch.equal(lse[last], lse_last)
    found = launch_two_passes(do, q, k, v, o, lse, True, d**-0.5)
    one = do_last, q_last, k_last, v_last, o_last, lse_last
    expected = launch_two_passes(*one, True, d**-0.5)
    assert all(torch.equal(x[last], y) for x, y in zip(found, expected, strict=True))
    del found
    layouts = (make_layout(*shape_and_strides(x)) for x in (q, k))
    assert count_shift_groups(*layouts, True, count_sms(q.device))
    found = o, lse, *launch_backward(do, q, k, v, o, lse, True, d**-0.5)
    ours = [x[last] for x in found]
    check_against_reference(ours, q_last, k_last, v_last, do_last, True)

"""The table of launch configurations: complete, and its kernels compile for a GPU also
where there is none.
"""

import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from systems.attention.relaunch import Layout
from systems.attention.triton import configs, launches
from systems.attention.triton.configs import (
    FEW_ROWS,
    TILES,
    ByMask,
    Tile,
    architecture,
    choose,
    for_mask,
    heads_together,
    padded,
    parts_for,
)

ROOT = Path(__file__).resolve().parent.parent
HEAD_DIMS = {16, 32, 64, 128, 256}
CUDA = torch.device("cuda")
# Prints for each kernel, alone and sharing loops, the shared memory in bytes that it
# needs on a Hopper GPU, and how many of its loads many threads repeat: bfloat16,
# causal, d = 40 padded to 64. The same of float32 cut ahead, and what cuts it. Then
# what adds up the parts.
COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from systems.attention.triton.backward import dkdv_kernel, dq_kernel, sum_kernel
from systems.attention.triton.forward import forward_kernel, merge_kernel
from systems.attention.triton.primitives import cut_kernel
from systems.attention.triton.configs import TILES, for_mask

# Of a kernel that reads float32 cut ahead, what is float32 all the same; of the cutting one, what it reads.
WHOLE = ("o_ptr", "dq_ptr", "dk_ptr", "dv_ptr")
UNCUT = ("q_ptr", "k_ptr", "v_ptr", "do_ptr")
FLOAT32 = ("lse_ptr", "rows_ptr", "acc_ptr", "m_l_ptr", "dq_parts_ptr", "dk_parts_ptr", "dv_parts_ptr")
kernels = dict(forward=forward_kernel, dkdv=dkdv_kernel, dq=dq_kernel)

def compile(kernel, options, float32=(), **constants):
    signature, constexprs, attributes = {}, {}, {}
    for i, argument in enumerate(kernel.arg_names):
        if argument in constants or argument.startswith("stride") and argument.endswith("d"):
            signature[argument], constexprs[(i,)] = "constexpr", constants.get(argument, 1)
        elif argument.endswith("_ptr"):
            signature[argument] = "*fp32" if argument in (*FLOAT32, *float32) else "*bf16"
            attributes[(i,)] = [["tt.divisibility", 16]]
        else:
            signature[argument] = "fp32" if argument.startswith("scale") else "i32"
    source = ASTSource(fn=kernel, signature=signature, constexprs=constexprs, attrs=attributes)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options)
    # Where numbers are fewer than threads, Triton 3.6 lays them out as a product's result: all threads load them.
    loads = [line for line in compiled.asm["ttgir"].splitlines() if "tt.load" in line or "async_copy" in line]
    print(compiled.metadata.shared, sum("#ttg.slice" in line for line in loads))

for parts in (1, 4):
    for name in ("forward", "dkdv", "dq"):
        tile = for_mask(TILES["sm_90"]["half"][name][64], causal=True)
        compile(
            kernels[name], tile.options, BQ=tile.q, BK=tile.k, HEAD=40, D=64, GROUP=2, PARTS=parts, CAUSAL=True,
            RAGGED=True, PIECES=1, PRECISION="ieee",
        )
for name in ("forward", "dkdv", "dq"):
    for kind, pieces in (("high", 2), ("highest", 3)):
        tile = TILES["sm_90"][kind][name][64]
        assert tile.ahead
        compile(
            kernels[name], tile.options, WHOLE, BQ=tile.q, BK=tile.k, HEAD=40, D=64, GROUP=2, PARTS=1, CAUSAL=True,
            RAGGED=True, PIECES=pieces, PRECISION="ieee",
        )
compile(cut_kernel, {}, UNCUT, ROWS=32, HEAD=40, D=64, PIECES=3)
compile(merge_kernel, {}, PARTS=4, ROWS=8, HEAD=40, D=64)
for dq_parts, dkdv_parts in ((1, 4), (4, 1), (4, 4)):
    compile(sum_kernel, {}, DQ_PARTS=dq_parts, DKDV_PARTS=dkdv_parts, ROWS=8, HEAD=40, D=64)
"""


def test_the_table_is_complete():
    for arch, by_arithmetic in TILES.items():
        assert set(by_arithmetic) == set(launches.PIECES), arch
        for by_kernel in by_arithmetic.values():
            assert set(by_kernel) == {"forward", "dkdv", "dq"}
            for by_d in by_kernel.values():
                assert set(by_d) == HEAD_DIMS
                for tile in (
                    for_mask(entry, causal)
                    for entry in by_d.values()
                    for causal in (True, False)
                ):
                    assert (
                        {tile.q, tile.k} <= {16, 32, 64, 128, 256}
                        and tile.warps in (4, 8)
                        and tile.stages >= 1
                    )


def test_every_gpu_has_its_part_of_the_table():
    assert {architecture(c) for c in [(7, 5), (8, 6), (8, 9), (12, 0)]} == {"other"}
    assert (
        architecture((9, 0)) == "sm_90"
        and architecture((8, 0)) == architecture((10, 0)) == "sm_80"
    )
    assert set(TILES) == {"sm_90", "sm_80", "other"}


def test_head_dimensions_are_padded_to_powers_of_two():
    assert [padded(d) for d in (1, 16, 17, 64, 80, 129, 256)] == [
        16,
        16,
        32,
        64,
        128,
        256,
        256,
    ]


def test_a_gpu_gets_the_tile_of_its_arithmetic_and_mask(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    many = 2**20
    for kind, by_kernel in TILES["sm_90"].items():
        monkeypatch.setitem(by_kernel["dq"], 128, tile := Tile(64, 64, 4, 2))
        assert (
            choose("dq", 80, kind, True, many, CUDA)
            == choose("dq", 80, kind, False, many, CUDA)
            == tile
        )
        monkeypatch.setitem(
            by_kernel["dq"], 128, both := ByMask(causal=tile, full=Tile(128, 64, 4, 2))
        )
        assert (
            choose("dq", 80, kind, True, many, CUDA),
            choose("dq", 80, kind, False, many, CUDA),
        ) == both


def test_few_rows_get_tiles_of_their_own_where_there_are_some(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    for kind, tiers in FEW_ROWS["sm_90"].items():
        assert [few.most_rows for few in tiers] == sorted(
            {few.most_rows for few in tiers}
        )
        for kernel in ("forward", "dkdv", "dq"):
            for d in HEAD_DIMS:
                table = for_mask(TILES["sm_90"][kind][kernel][d], causal=False)
                entries = [
                    (few.most_rows, few.tiles[kernel][d])
                    for few in tiers
                    if d in few.tiles[kernel]
                ]
                for (most_rows, tile), (_, larger) in pairwise([*entries, (0, table)]):
                    assert choose(kernel, d, kind, False, most_rows, CUDA) == tile
                    assert (
                        choose(kernel, d, kind, False, most_rows + 1, CUDA)
                        == larger
                        != tile
                    )
                assert entries or choose(kernel, d, kind, False, 1, CUDA) == table
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    assert choose("dq", 128, "highest", True, 1, CUDA) == for_mask(
        TILES["sm_80"]["highest"]["dq"][128], causal=True
    )


def test_few_tiles_share_their_loops(monkeypatch):
    """Until 4 warps run on each of 132 multiprocessors, or 16 if loops are long; never
    more parts than steps.

    Two parts only where two are worth it.
    """
    monkeypatch.setattr(configs, "multiprocessors", lambda device: 132)
    monkeypatch.setitem(
        configs.SHARING, "half", (configs.Sharing(warps=4, least_rows=100),)
    )

    def parts(programs: int, n: int, warps: int = 4, rows: int = 64) -> int:
        return parts_for(programs, warps, n, rows, "half", CUDA)

    assert [parts(programs, 4096) for programs in (1, 8, 9, 33, 34, 66, 67, 1024)] == [
        16,
        16,
        8,
        4,
        2,
        2,
        1,
        1,
    ]
    assert parts(33, 4096, warps=8) == 2 and parts(1, 4096, rows=1024) == 4
    assert parts(1, 400) == 4 > parts(1, 399) == 2
    monkeypatch.setitem(
        configs.SHARING, "half", (configs.Sharing(4, 100, least_parts=4),)
    )
    assert [parts(programs, 4096) for programs in (9, 33, 34, 66)] == [8, 4, 1, 1]
    assert parts(1, 400) == 4 > parts(1, 399) == 1
    monkeypatch.setitem(
        configs.SHARING, "half", (configs.Sharing(4, 100), configs.Sharing(16, 1000))
    )
    assert [parts(programs, 4000) for programs in (1, 33, 34, 132, 133, 264, 265)] == [
        16,
        4,
        4,
        4,
        2,
        2,
        1,
    ]
    assert parts(132, 1999) == 1 < parts(132, 2000) == 2
    monkeypatch.setattr(configs, "MOST_PARTS", 2)
    assert parts(1, 4096) == 2
    assert parts_for(1, 4, 4096, 64, "half", torch.device("cpu")) == 1


def test_heads_run_together_while_their_keys_and_values_fit_the_cache():
    k = Layout((1, 16, 16384, 64), (2**24, 2**20, 64, 1))
    assert (
        heads_together(k, 16, True, "half") == 2
        and heads_together(k, 16, True, "highest") == 4
    )
    assert heads_together(k, 16, False, "half") == 1
    assert heads_together(k._replace(shape=(1, 1, 2**22, 64)), 1, True, "half") == 1
    # Never more than there are: the number of tiles of a group fits 32 bits.
    assert heads_together(k._replace(shape=(1, 1, 1, 1)), 3, True, "half") == 3


@pytest.mark.slow
def test_kernels_compile_for_a_gpu_that_is_not_here(tmp_path):
    environment = {
        key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"
    }
    # An empty cache, so that it is compiled and not found.
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", COMPILE],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    needs, repeated = zip(
        *(
            [int(number) for number in line.split()]
            for line in done.stdout.splitlines()
        ),
        strict=True,
    )
    # A block of a Hopper GPU has 227 KiB.
    assert len(needs) == 17 and max(needs) <= 227 * 1024
    # dq loads the numbers of its rows once, before its loop; dk and dv need others in
    # each step. Triton 3.8 lays few numbers out otherwise: there this holds for any
    # kernel.
    assert repeated[1] == repeated[4] == 0

"""Test that kernels compile for each kind of GPU, without it, and fit its memory."""

import json
import os
from pathlib import Path

import pytest
import triton

from systems.profiling.compiled_kernels import instructions_per_score
from tests.needed import run_python
from tools.compile_ahead import KernelNeeds, hottest_loop, list_table_configs
from tools.render.occupancy import TARGETS, blocks_per_sm

# In `make versions` the first test compiles for all GPUs, else only for the H100,
# which runs all kernels.
FIRST = "h100"
GPUS = [
    pytest.param(name, marks=[] if name == FIRST else [pytest.mark.versions])
    for name in TARGETS
]
# Compile the kernels for many rows with a mask, those of `attention.first`, those for
# few rows with split loops and no mask, and on Hopper GPUs the Hopper kernels.
COMPILE = """
from systems.attention import first

show("many", *compile_portable(gpu, "half", d, True))
tensors, lse = meta_inputs("half", d)
q, k, v, o, do, lse = (x.flatten(0, 1) for x in (*tensors, lse))
size, options = (q.shape[1], 0.125), {"CAUSAL": True, **first.launch_options(q)}
backward = q, k, v, do, lse, lse
for kernel, tensors in (
    (first.forward_kernel, (q, k, v, o, lse)),
    (first.dk_dv_kernel, (*backward, k, v)),
    (first.dq_kernel, (*backward, q)),
):
    show("first", compile_launch(gpu, kernel[64,], *tensors, *size, **options))
configs = list_table_configs(gpu, "half", d, causal=False)[-1]
show("few", *compile_portable(gpu, "half", d, False, configs, splits=4))
if gpu.capability == (9, 0):
    show("hopper full", *compile_hopper(gpu, d, causal=False))
    show("hopper causal", *compile_hopper(gpu, d, causal=True))
"""
# Compile for 16-bit inputs with a head dimension that is a multiple of 8 but not of 16,
# and with the next multiple of 16.
EIGHTS = """
for d in {widths}:
    show(d, *compile_portable(gpu, "half", d, causal=True))
"""
# Compile the configurations that need the most registers, with a register limit.
LARGEST = """
show("largest", *compile_portable(gpu, "highest", 256, causal=True))
"""
SHOW = f"""
import json
import triton

from tools.compile_ahead import (
    KernelNeeds,
    compile_hopper,
    compile_launch,
    compile_portable,
    meta_inputs,
    list_table_configs,
)
from tools.render.occupancy import TARGETS

# `make versions` names another than the one installed.
assert triton.__version__ == {triton.__version__!r}

def show(name, *found):
    for each in found:
        print(json.dumps([name, each]))
"""
PLAIN = ["forward_kernel", "dq_kernel", "dkdv_kernel"]
FIRST_KERNELS = ["forward_kernel", "dk_dv_kernel", "dq_kernel"]
# Kernels of the Hopper backward pass that computes dq, dk and dv in one kernel.
ONE_PASS = ["delta_kernel", "one_pass_kernel", "round_kernel"]
HOPPER = [*PLAIN, *ONE_PASS, "one_pass_kernel"]
# The delta and round kernels have no mask, so the case "full" compiled them before.
HOPPER_CAUSAL = [*PLAIN, "one_pass_kernel", "one_pass_kernel"]
# Kernels that run if loops are split.
SPLIT = ["forward_kernel", "combine_kernel", "dq_kernel", "dkdv_kernel", "sum_kernel"]
# These tiles were the fastest on an H200, although they spill registers.
SPILLS = {("h100", "forward_kernel"), ("h100", "dkdv_kernel")}


def spill_share(needs: KernelNeeds) -> float:
    """Return the share of loop instructions that spill or reload registers."""
    loop = needs.loop
    return (loop["spilled"] + loop["reloaded"]) / loop["instructions"]


def compile_for_gpu(gpu: str, code: str, cache: Path) -> dict[str, list[KernelNeeds]]:
    """Run this code in a process that compiles for a GPU; return what it prints."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    # Use an empty cache, so that kernels are compiled.
    environment |= {"TRITON_CACHE_DIR": str(cache)}
    code = f"{SHOW}\ngpu = TARGETS[{gpu!r}]\n{code}"
    done = run_python("-W", "error::UserWarning", "-c", code, env=environment)
    assert done.returncode == 0, done.stderr
    compiled: dict[str, list[KernelNeeds]] = {}
    for name, found in map(json.loads, done.stdout.splitlines()):
        assert isinstance(found, list), f"{name}: {found}"
        compiled.setdefault(name, []).extend(KernelNeeds(*needs) for needs in found)
    return compiled


@pytest.mark.slow
@pytest.mark.parametrize("name", GPUS)
def test_kernels_of_each_gpu_compile_and_fit(name, tmp_path):
    """The Hopper kernels must compile even with an unsupported version of Triton."""
    gpu, d = TARGETS[name], 64 if name == FIRST else 16
    compiled = compile_for_gpu(name, f"d = {d}\n{COMPILE}", tmp_path)
    kernels = {"many": PLAIN, "first": FIRST_KERNELS, "few": SPLIT}
    if gpu.capability == (9, 0):
        kernels |= {"hopper full": HOPPER, "hopper causal": HOPPER_CAUSAL}
    for of, names in kernels.items():
        assert [needs.kernel for needs in compiled[of]] == names, of
        for needs in compiled[of]:
            assert needs.shared_bytes <= gpu.block_bytes, (of, needs)
            # The assembler must not fall back to 32 registers and spill the rest.
            assert needs.registers > 32 or not needs.stack_bytes, (of, needs)
            assert needs.stack_bytes < 1024, (of, needs)
            size = needs.registers, needs.shared_bytes, needs.warps
            assert blocks_per_sm(gpu, *size) >= 1
            if of in ("many", "few") and needs.loop:
                spills = needs.loop["spilled"] > 0 or spill_share(needs) > 0.05
                assert not spills or (name, needs.kernel) in SPILLS, (of, needs)
    # Compilation must use the table's configurations.
    config = list_table_configs(gpu, "half", d, True)[0]["forward"]
    forward = compiled["many"][0]
    assert forward.tile == f"BQ={config.q} BK={config.k}"
    assert forward.warps == config.warps


versions = pytest.mark.versions


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "d", "longer"),
    [
        ("a100", 40, 48),
        pytest.param("a100", 72, 80, marks=versions),
        pytest.param("h100", 40, 48, marks=versions),
        pytest.param("b200", 40, 48, marks=versions),
    ],
)
def test_strides_divisible_by_8_load_16_bytes_at_once(name, d, longer, tmp_path):
    """Without `hint_factor`, Triton would load two bytes at a time."""
    code = EIGHTS.format(widths=(d, longer))
    eights, sixteens = compile_for_gpu(name, code, tmp_path).values()
    for found, other in zip(eights, sixteens, strict=True):
        assert found.load_bytes == other.load_bytes, (name, found)
        # Loads of 4 bytes are row statistics, which Triton 3.6 also loads in pairs.
        assert set(found.load_bytes) <= {4, 8, 16} and 16 in found.load_bytes
        assert found.per_score <= 1.1 * other.per_score, (found, other)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["a100", *(pytest.param(n, marks=versions) for n in ("h100", "rtx3090"))]
)
def test_largest_tiles_fit_and_spill_little(name, tmp_path):
    """Without a register limit the assembler uses 32 registers and spills 29 KB."""
    compiled = compile_for_gpu(name, LARGEST, tmp_path)["largest"]
    found = [needs for needs in compiled if needs.per_score]
    assert [needs.kernel for needs in found] == PLAIN
    for needs in found:
        assert needs.registers > 200 and needs.stack_bytes <= 4096, needs
        assert needs.shared_bytes <= TARGETS[name].block_bytes, needs
        # On Hopper these tiles were the fastest, although they spill.
        assert name == "h100" or spill_share(needs) <= 0.2, needs


# Record each launch twice: the second time `relaunch` has its kernels.
RECORD = """
from systems.attention.hopper.one_pass_launches import launch_one_pass
from systems.attention.hopper.walks import ShiftWalk
from systems.attention.triton.launches import launch_forward
from systems.profiling.compiled_kernels import record_kernels

(q, k, v, o, do), lse = meta_inputs("half", 64)
recorded = []
def record(work):
    metrics = [record_kernels(work)[1] for _ in "12"]
    assert metrics[0] == metrics[1] and len(metrics[0]["kernels"]) == 1
    recorded.append(KernelNeeds(tile="", loop={}, **metrics[0]["kernels"][0]))
for work in (
    lambda: launch_forward(q, k, v, True, 0.125),
    lambda: launch_one_pass(do, q, k, v, o, lse, True, 0.125, ShiftWalk(1)),
):
    show("compiled", compile_launch(gpu, record, work))
show("recorded", recorded)
"""


@pytest.mark.slow
def test_launched_kernels_are_recorded(tmp_path):
    found = compile_for_gpu("h100", RECORD, tmp_path)
    compiled = [x._replace(tile="", load_bytes=[], loop={}) for x in found["compiled"]]
    assert [needs.kernel for needs in compiled] == ["forward_kernel", *ONE_PASS]
    # Kernels that compute no scores are not recorded.
    assert found["recorded"] == [needs for needs in compiled if needs.per_score]


@pytest.mark.parametrize(
    ("registers", "shared_bytes", "warps", "blocks"),
    [
        # Registers: two blocks of four warps with 255 each, or three with 168 each.
        (255, 0, 4, 2),
        (168, 0, 4, 3),
        # Shared memory: each of two blocks takes 81 of 164 KiB, and 1 KiB for CUDA.
        (32, 81 * 1024, 4, 2),
        (32, 82 * 1024, 4, 1),
        # Warps: an SM of an A100 has 64, in at most 32 blocks.
        (16, 0, 4, 16),
        (16, 0, 1, 32),
    ],
)
def test_each_resource_limits_thread_blocks(registers, shared_bytes, warps, blocks):
    assert blocks_per_sm(TARGETS["a100"], registers, shared_bytes, warps) == blocks


MATMUL = "HMMA.16816.F32.BF16 R4, R8, R10, R4"
COMPARE = "ISETP.GE.AND P0, PT, R2, R3, PT"
# A matmul outside of loops, a loop with comparisons, and a loop without comparisons,
# which has fewer instructions per matmul. Addresses are 16 times the line number.
LINES = [
    "MOV R1, R2",
    MATMUL,
    *(MATMUL, *[COMPARE] * 8, "MUFU.EX2 R2, R2", "@P1 BRA 0x20"),
    *(MATMUL, MATMUL),
    *("LDSM.16.M88.4 R8, [R30]", "LDSM.16.MT88.2 R8, [R30]"),
    "LDGSTS.E.BYPASS.128 [R20], [R22.64]",
    *("@!P0 MUFU.EX2 R3, R3", "FFMA R3, R3, R4, R5"),
    *("LOP3.LUT R3, R3, R4, R5, 0x3c, !PT", "ULEA UR4, UR4, UR5, 0x10"),
    *("STL [R1], R3", "LDL.64 R4, [R1+0x8]", "LDL R4, [R1+0x8]"),
    *("BAR.SYNC.DEFER_BLOCKING 0x0", "@P1 BRA 0xd0"),
]
ASSEMBLY = "".join(f"  /*{16 * i:04x}*/  {x} ;\n" for i, x in enumerate(LINES))


def test_hottest_loop_counts_instructions_and_spills():
    assert hottest_loop(ASSEMBLY) == {"instructions": 14, "spilled": 1, "reloaded": 2}
    # The loop needs matmuls and exponentials.
    assert hottest_loop(ASSEMBLY.replace("HMMA", "FFMA")) == {}
    assert hottest_loop(ASSEMBLY.replace("EX2", "RCP")) == {}


def test_instructions_per_score_are_of_the_shortest_loop():
    assert instructions_per_score(ASSEMBLY) == 11
    # Without its backward jump the first loop is none, so the second loop counts.
    assert instructions_per_score(ASSEMBLY.replace("0x20 ;", "0xf00 ;")) == 14
    assert instructions_per_score(ASSEMBLY.replace("HMMA", "FFMA")) == 0

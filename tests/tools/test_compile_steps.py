"""Test the resources read from compiled kernels, and the file that lists them."""

import json
import os

import pytest
import triton

from systems.profiling.compiled_kernels import instructions_per_score
from systems.records.source_hash import hash_code
from systems.records.store import RecordError
from tests.needed import run_python, skip_or_fail
from tools.binary import hottest_loop
from tools.render.compiled_files import PATH, read_compiled_steps
from tools.render.stems.flash_ablation import BACKWARD, FORWARD, LAUNCHERS

REMEDY = "`python tools/compile_steps.py`"
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


def test_compiled_file_has_every_step():
    for found in read_compiled_steps().values():
        assert list(found["steps"]) == [*FORWARD, *BACKWARD]
        for kernels in found["steps"].values():
            assert kernels and all(k["per_score"] > 1 for k in kernels)
            # On Hopper, a thread block has at most 227 KiB of shared memory.
            assert all(0 < k["shared_bytes"] <= 227 * 1024 for k in kernels)


def test_compiled_file_edited_by_hand_is_rejected(tmp_path):
    edited = tmp_path / "edited.json"
    edited.write_text(PATH.read_text().replace('"warps": 8', '"warps": 4'))
    with pytest.raises(RecordError, match="edited by hand; restore it"):
        read_compiled_steps(edited)


def test_compiled_file_is_not_stale():
    of_this_code = hash_code(LAUNCHERS)
    versions = read_compiled_steps()
    stale = [v for v, found in versions.items() if found["source_hash"] != of_this_code]
    assert not stale, f"run {REMEDY} with each of these Tritons: {', '.join(stale)}"


AGAIN = """
import json
from tools.compile_steps import compile_step
print(json.dumps(compile_step("skip")))
"""


@pytest.mark.slow
def test_compiled_file_equals_compiling_again():
    here = read_compiled_steps().get(triton.__version__)
    if here is None:
        skip_or_fail(f"{PATH} has no Triton {triton.__version__}: run {REMEDY}")
    compiles = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    found = run_python("-c", AGAIN, env=compiles)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == here["steps"]["skip"], f"run {REMEDY}"

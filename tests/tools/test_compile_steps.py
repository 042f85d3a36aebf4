"""What the steps of the ladder need, by compiling them: the file has every step, and
the shortest loop is found.
"""

import json
import os
import subprocess
import sys

import pytest
import triton

from systems import ROOT
from systems.records.source_hash import hash_of
from tests.needed import missing
from tools.binary import instructions_per_score
from tools.render.compiled_files import PATH, read_steps
from tools.render.stems.flash_ablation import BACKWARD, FORWARD, LAUNCHERS

REMEDY = "`python tools/compile_steps.py`"
# A loop of four instructions with two exponentials, in one of six with a product more;
# and a short one that multiplies nothing.
ASSEMBLY = """
        /*0010*/                   MOV R1, c[0x0][0x28] ;
        /*0020*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR4] ;
        /*0030*/                   HGMMA.64x64x16.F32.BF16 R24, gdesc[UR8] ;
        /*0040*/                   MUFU.EX2 R2, R2 ;
        /*0050*/              @!P0 MUFU.EX2 R3, R3 ;
        /*0060*/               @P1 BRA 0x30 ;
        /*0070*/              @!UP0 BRA 0x20 ;
        /*0080*/                   MUFU.EX2 R3, R3 ;
        /*0090*/               @P1 BRA 0x80 ;
        /*00a0*/                   BRA 0xa0;
"""


def test_instructions_of_the_shortest_loop_with_products_and_exponentials():
    assert instructions_per_score(ASSEMBLY) == 4 / 2
    assert instructions_per_score(ASSEMBLY.replace("0x30", "0x60")) == 6 / 2
    assert instructions_per_score(ASSEMBLY.replace("HGMMA", "FFMA")) == 0


def test_every_step_was_compiled_by_each_version():
    for found in read_steps().values():
        assert list(found["steps"]) == [*FORWARD, *BACKWARD]
        for kernels in found["steps"].values():
            assert kernels and all(k["per_score"] > 1 for k in kernels)
            # Tiles of keys and values, which no SM holds more of than 227 KiB.
            assert all(0 < k["shared_bytes"] <= 227 * 1024 for k in kernels)


def test_what_each_version_compiled_is_of_this_code():
    of_this_code = hash_of(LAUNCHERS)
    versions = read_steps()
    stale = [v for v, found in versions.items() if found["source_hash"] != of_this_code]
    assert not stale, f"run {REMEDY} with each of these Tritons: {', '.join(stale)}"


AGAIN = """
import json
from tools.compile_steps import compile_step
print(json.dumps(compile_step("skip")))
"""


@pytest.mark.slow
def test_what_is_committed_is_what_compiling_finds():
    here = read_steps().get(triton.__version__)
    if here is None:
        missing(f"{PATH} has no Triton {triton.__version__}: run {REMEDY}")
    compiles = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    line = [sys.executable, "-c", AGAIN]
    found = subprocess.run(line, cwd=ROOT, env=compiles, capture_output=True, text=True)
    assert found.returncode == 0, found.stderr
    assert json.loads(found.stdout) == here["steps"]["skip"], f"run {REMEDY}"

"""Test the loops that are found in compiled kernels."""

from tools.binary import hottest_loop, instructions_per_score

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


def test_hottest_loop_needs_matmuls_and_exponentials():
    assert hottest_loop(ASSEMBLY.replace("HMMA", "FFMA")) == {}
    assert hottest_loop(ASSEMBLY.replace("EX2", "RCP")) == {}


def test_instructions_per_score_are_of_the_shortest_loop():
    assert instructions_per_score(ASSEMBLY) == 11
    # Without its backward jump the first loop is none, so the second loop counts.
    assert instructions_per_score(ASSEMBLY.replace("0x20 ;", "0xf00 ;")) == 14
    assert instructions_per_score(ASSEMBLY.replace("HMMA", "FFMA")) == 0

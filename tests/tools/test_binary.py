"""What the hottest loop of a kernel executes, from its binary's text."""

from tools.binary import hottest_loop

PRODUCT = "HMMA.16816.F32.BF16 R4, R8, R10, R4"
COMPARE = "ISETP.GE.AND P0, PT, R2, R3, PT"
# A product in no loop; a loop with comparisons; and that for whole tiles, which has
# fewer instructions for its products. Each starts at 16 times its line.
LINES = [
    "MOV R1, R2",
    PRODUCT,
    *(PRODUCT, *[COMPARE] * 8, "MUFU.EX2 R2, R2", "@P1 BRA 0x20"),
    *(PRODUCT, PRODUCT),
    *("LDSM.16.M88.4 R8, [R30]", "LDSM.16.MT88.2 R8, [R30]"),
    "LDGSTS.E.BYPASS.128 [R20], [R22.64]",
    *("@!P0 MUFU.EX2 R3, R3", "FFMA R3, R3, R4, R5"),
    *("LOP3.LUT R3, R3, R4, R5, 0x3c, !PT", "ULEA UR4, UR4, UR5, 0x10"),
    *("STL [R1], R3", "LDL.64 R4, [R1+0x8]", "LDL R4, [R1+0x8]"),
    *("BAR.SYNC.DEFER_BLOCKING 0x0", "@P1 BRA 0xd0"),
]
ASSEMBLY = "".join(f"  /*{16 * i:04x}*/  {x} ;\n" for i, x in enumerate(LINES))


def test_what_the_loop_for_whole_tiles_executes_is_counted():
    assert hottest_loop(ASSEMBLY) == {
        "instructions": 14,
        "spilled": 1,
        "reloaded": 2,
    }


def test_without_a_loop_that_multiplies_and_exponentiates_there_is_none():
    assert hottest_loop(ASSEMBLY.replace("HMMA", "FFMA")) == {}
    assert hottest_loop(ASSEMBLY.replace("EX2", "RCP")) == {}

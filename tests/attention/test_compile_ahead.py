"""What the chooser gives each kind of GPU compiles for it and fits, where there is no
such GPU. A sample: `tools/tune_flash.py --compile-only` compiles the rest.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import triton
from triton import knobs

from systems import ROOT
from systems.formulas.chips import TARGETS
from tools import compile_ahead, tune_flash
from tools.compile_ahead import TIMED, Needs, entries, faults, too_large

# Head dimensions of 16 bits: small ones compile in a second. Hopper's own kernels have
# none below 40.
SAMPLE = {name: 64 if name == "h100" else 16 for name in TARGETS}
COMPILE = f"""
from systems.formulas.chips import TARGETS
from tools.compile_ahead import cases, inputs, loaded_by
from tools.compile_steps import first_backward, first_forward

for name, d in {SAMPLE}.items():
    many, few, *hopper = cases(TARGETS[name], "half", d, causal=True)
    for found in many.compiled():
        show(name, found)
    tensors, lse = inputs("half", d)
    q, k, v, o, do, lse = (x.flatten(0, 1) for x in (*tensors, lse))
    rows = lse, q.shape[1], 0.125
    show(name + " first", loaded_by(TARGETS[name], first_forward, q, k, v, o, *rows))
    show(name + " first", loaded_by(TARGETS[name], first_backward, q, k, v, do, *rows))
    # Without a mask, the smallest tiles and loops that are split.
    for case in [*cases(TARGETS[name], "half", d, causal=False)][-1 - len(hopper) :]:
        for found in case.compiled():
            show(name + " " + case.of, found)
    for found in (found for case in hopper for found in case.compiled()):
        show(name + " causal", found)
"""
# 16 bits with a row that 8 divides and 16 does not, and the next that 16 divides.
EIGHTS = """
from systems.formulas.chips import TARGETS
from tools.compile_ahead import compile_for

for name, *widths in (("a100", 40, 48, 72, 80), ("h100", 40, 48), ("b200", 40, 48)):
    for d in widths:
        for found in compile_for(TARGETS[name], "half", d, causal=True):
            show(f"{name} {d}", found)
"""
# What has the most to hold, with the tables' limit of registers.
LIMITS = """
from systems.formulas.chips import TARGETS
from tools.compile_ahead import compile_for

for name in ("a100", "h100", "rtx3090"):
    for found in compile_for(TARGETS[name], "highest", 256, causal=True):
        show(name, found)
"""
SHOW = f"""
import json
import triton

# `make versions` names another than the one installed.
assert triton.__version__ == {triton.__version__!r}

def show(name, found):
    print(json.dumps([name, found]))
"""
PLAIN = ["forward_kernel", "dq_kernel", "dkdv_kernel"]
FIRST = ["forward_kernel", "dk_dv_kernel", "dq_kernel"]
# In two passes, and in one by either walk: what comes before and after is the same.
ONE_PASS = ["delta_kernel", "one_pass_kernel", "round_kernel"]
HOPPER = [*PLAIN, *ONE_PASS, "one_pass_kernel"]
# What comes before and after in one pass asks for no mask: it was compiled before.
OWN = {
    "h100 half, hopper": HOPPER,
    "h100 causal": [*PLAIN, "one_pass_kernel", "one_pass_kernel"],
}
# Where loops are split.
SPLIT = ["forward_kernel", "combine_kernel", "dq_kernel", "dkdv_kernel", "sum_kernel"]
# A fault that is known, with each Triton: the tile was timed for many rows, where it
# spills nothing. Once its loop is split, without a mask, it does; no other was timed.
SPILLS = {("h100 half", "dkdv_kernel")}


def compile_in_a_process(code: str, cache: Path) -> dict[str, list[Needs]]:
    """What the `show`s in this code name and found. A process of its own, since Triton
    asks when it is imported whether to compile.
    """
    environment = {
        key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"
    }
    # An empty cache, so that it is compiled and not found.
    environment |= {"TRITON_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-c", SHOW + code],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    compiled: dict[str, list[Needs]] = {}
    for name, found in map(json.loads, done.stdout.splitlines()):
        assert isinstance(found, list), f"{name}: {found}"
        compiled.setdefault(name, []).extend(Needs(*needs) for needs in found)
    return compiled


@pytest.mark.slow
def test_what_each_gpu_gets_compiles_for_it_and_fits(tmp_path):
    """Many rows under a mask, and few without one, which are combined and summed. With
    Hopper's kernels also where the chooser leaves them out for the version of Triton:
    they compile with those that were not tested on a GPU too.
    """
    compiled = compile_in_a_process(COMPILE, tmp_path)
    for name, gpu in TARGETS.items():
        hopper = gpu.capability == (9, 0)
        kernels = {
            name: PLAIN,
            f"{name} first": FIRST,
            f"{name} half": SPLIT,
            **(OWN if hopper else {}),
        }
        for of, names in kernels.items():
            assert [needs.kernel for needs in compiled[of]] == names, of
            for needs in compiled[of]:
                assert list(too_large(gpu, needs)) == [], (of, needs)
                # No fallback of the assembler to few registers, which spills the rest.
                assert needs.registers > 32 or not needs.stack_bytes, (of, needs)
                assert needs.stack_bytes < 1024, (of, needs)
                assert needs.programs(gpu) >= 1
        for of in (name, f"{name} half"):
            for needs in compiled[of]:
                found = [*faults(gpu, "half", SAMPLE[name], needs)]
                assert bool(found) == ((of, needs.kernel) in SPILLS), (needs, found)
    # They are those of the table.
    config = entries(TARGETS["a100"], "half", SAMPLE["a100"], True)[0]["forward"]
    forward = compiled["a100"][0]
    assert forward.tile == f"BQ={config.q} BK={config.k}"
    assert forward.warps == config.warps


@pytest.mark.slow
def test_a_row_that_only_8_divides_is_loaded_16_bytes_at_a_time(tmp_path):
    """As the next longer one is. Triton, told nothing, loads two bytes at a time and
    needs up to three times the instructions.
    """
    compiled = compile_in_a_process(EIGHTS, tmp_path)
    for name, d, next_d in (
        *((name, 40, 48) for name in ("a100", "h100", "b200")),
        ("a100", 72, 80),
    ):
        pairs = zip(compiled[f"{name} {d}"], compiled[f"{name} {next_d}"], strict=True)
        for found, longer in pairs:
            assert found.load_bytes == longer.load_bytes, (name, found)
            # Those of 4 bytes are row statistics, which Triton 3.6 loads in pairs too.
            assert set(found.load_bytes) <= {4, 8, 16} and 16 in found.load_bytes
            assert found.per_score <= 1.1 * longer.per_score, (found, longer)


@pytest.mark.slow
def test_the_largest_tiles_fit_have_all_registers_and_spill_little(tmp_path):
    """Not told of a limit the assembler falls to 32 registers for some of them, and
    spills up to 29 KB of what those can't hold. What lies in shared memory at a time
    differs from Triton to Triton.
    """
    compiled = compile_in_a_process(LIMITS, tmp_path)
    for name in ("a100", "h100", "rtx3090"):
        found = [needs for needs in compiled[name] if needs.per_score]
        assert [needs.kernel for needs in found] == PLAIN
        for needs in found:
            assert needs.registers > 200 and needs.stack_bytes <= 4096, (name, needs)
            assert list(faults(TARGETS[name], "highest", 256, needs)) == [], name


@pytest.mark.parametrize(
    ("needs", "programs"),
    [
        # Two of four warps have all registers of an A100, or three with 168 each.
        (Needs("", "", 4, 0, 255, 0), 2),
        (Needs("", "", 4, 0, 168, 0), 3),
        # Of 164 KiB two take 81, and one for CUDA, each.
        (Needs("", "", 4, 81 * 1024, 32, 0), 2),
        (Needs("", "", 4, 82 * 1024, 32, 0), 1),
        # 64 warps.
        (Needs("", "", 4, 0, 16, 0), 16),
        (Needs("", "", 1, 0, 16, 0), 32),
    ],
)
def test_how_many_programs_run_side_by_side(needs, programs):
    assert needs.programs(TARGETS["a100"]) == programs


LOOP = {"instructions": 400, "products": 196608, "spilled": 0, "reloaded": 20}
FITS = Needs("dq_kernel", "BQ=64 BK=64", 4, 163 * 1024, 255, 8, loop=LOOP)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (FITS, None),
        (
            FITS._replace(shared_bytes=163 * 1024 + 1),
            "needs 166913 bytes of shared memory, a block has 166912",
        ),
        (FITS._replace(stack_bytes=648), "has 648 bytes of stack, of 640"),
        (
            FITS._replace(loop=LOOP | {"spilled": 1, "reloaded": 0}),
            "spills 1 times in its hottest loop",
        ),
        (
            FITS._replace(loop=LOOP | {"reloaded": 21}),
            "spills or reloads in 21 of 400 instructions",
        ),
        (FITS._replace(warps=8), "computes its products 2.00 times"),
    ],
)
def test_what_speaks_against_a_kernel(found, said):
    assert list(faults(TARGETS["a100"], "half", 64, found)) == ([said] if said else [])


def test_what_was_timed_as_it_is_need_only_fit():
    """On a Hopper GPU, where it stands in the list of exceptions."""
    spills = FITS._replace(stack_bytes=9999, loop=LOOP | {"reloaded": 99}, warps=8)
    assert ("highest", "dq", 256) in TIMED and ("highest", "dq", 64) not in TIMED
    assert list(faults(TARGETS["h100"], "highest", 200, spills)) == []
    for name, d in (("a100", 256), ("h100", 64)):
        assert len(list(faults(TARGETS[name], "highest", d, spills))) >= 2
    large = spills._replace(shared_bytes=2**20)
    assert len(list(faults(TARGETS["h100"], "highest", 200, large))) == 1


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ([FITS], ""),
        (
            [FITS, FITS._replace(stack_bytes=648)],
            "error: half d=64 causal: dq_kernel BQ=64 BK=64 has 648 bytes of stack",
        ),
        ("launch_forward: it is too large", "error: half d=64 causal: launch_forward"),
    ],
)
def test_what_does_not_fit_is_a_line_and_exit_code_2(found, said, monkeypatch, capsys):
    monkeypatch.setattr(knobs.runtime, "interpret", False)
    monkeypatch.setattr(compile_ahead, "compile_for", lambda *_: [found])
    code = tune_flash.print_needs("a100", ["half"], [64])
    printed = capsys.readouterr().out
    assert code == (2 if said else 0) and said in printed
    assert said or "error" not in printed and "163.0" in printed


def test_the_interpreter_compiles_nothing(monkeypatch, capsys):
    monkeypatch.setattr(knobs.runtime, "interpret", True)
    with pytest.raises(SystemExit) as ended:
        tune_flash.print_needs("a100", ["half"], [64])
    assert ended.value.code == 2
    assert "unset TRITON_INTERPRET" in capsys.readouterr().err

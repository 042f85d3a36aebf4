"""Render from records what docs/scripts print, and render diffs between scripts."""

import re
from difflib import unified_diff

from systems import ROOT
from systems.model.sizes import TABLE_1
from tools.render.frame import Line, frame
from tools.render.load import Found, primary_record
from tools.render.markdown import NOTHING_YET, snippet_sections

SCRIPTS = ROOT / "docs" / "scripts"
# Matches a comment that begins or ends a section which a page shows.
MARK = re.compile(r" *# --8<-- .*\n")
# Pairs of a script and the script that extends it.
STEPS = (
    ("1_clock", "2_sizes"),
    ("1_clock", "3_nvtx"),
    ("2_sizes", "4_autocast"),
    ("4_autocast", "5_memory"),
)
STEP = {"batch": 4, "attention": "eager", "mode": "step"}
ATTENTION_HEAD = "  d tokens   forward kept, GiB  backward   (ms)"
FLASH_HEAD = "tokens name     forward  backward      both   (ms)"
# Implementations in `flash_benchmarking`, and their names in 7_flash.py's output.
FLASH = {"plain": "plain", "sdpa": "SDPA", "ours": "flash"}


def fragments(found: Found) -> dict[str, str]:
    """Return `scripts.md`: outputs (`prints-…`) and diffs (`adds-…`) of scripts."""
    parts = {
        f"prints-{command.split('.')[0]}": console_block(command, lines)
        for command, lines in script_outputs(found).items()
    }
    parts |= {f"adds-{new}": script_diff(old, new) for old, new in STEPS}
    return {"scripts.md": snippet_sections(parts)}


def console_block(command: str, lines: list[str]) -> str:
    """Return a command and its output as a code block; a notice if no record exists."""
    if not any(lines):
        return NOTHING_YET
    return "\n".join(["```console", f"$ python docs/scripts/{command}", *lines, "```"])


def script_outputs(found: Found) -> dict[str, list[str]]:
    """Return {command: lines that it would print}, computed from records."""
    step, memory, plain, flash = (
        primary_record(found, stem)
        for stem in ("end_to_end", "peak_memory", "attention", "flash_benchmarking")
    )

    def step_output(context: int, precision: str, *sizes: str) -> list[str]:
        options = {**STEP, "context": context, "precision": precision}
        return [
            line
            for size in sizes
            for line in step_lines(size, frame(step).one(**options, size=size))
        ]

    bf16 = step_output(512, "bf16", "small", "2.7B")
    large = {**STEP, "context": 512, "precision": "fp32", "checkpoint": False}
    peak = memory_lines("2.7B", frame(memory).one(**large, size="2.7B"))
    eager = frame(plain, d=64, causal=False, dtype="fp32", execution="eager")
    heads = frame(flash, dtype="bf16", d=64)
    lengths = (256, 1024, 4096, 8192, 16384)
    attentions = [attention_line(eager.one(n=n)) for n in lengths]
    flashes = [
        flash_line(name, heads.one(implementation=which, n=n))
        for n in (1024, 16384)
        for which, name in FLASH.items()
    ]
    return {
        "1_clock.py --size small --context 256": step_output(256, "fp32", "small"),
        "2_sizes.py --context 128": step_output(128, "fp32", *TABLE_1),
        "4_autocast.py --size small 2.7B --context 512 --precision bf16": bf16,
        "5_memory.py --size 2.7B --context 512": peak,
        "6_attention.py --d 64": prepend_head(ATTENTION_HEAD, attentions),
        "7_flash.py --d 64 --n 1024 16384": prepend_head(FLASH_HEAD, flashes),
    }


def prepend_head(head: str, lines: list[str]) -> list[str]:
    return [head, *filter(None, lines)] if any(lines) else []


def step_lines(size: str, c: Line) -> list[str]:
    if not c:
        return [f"{size:6} {c.reason}"] if c.reason else []
    parts = {name: c.summary(name) for name in ("forward", "backward", "optimizer")}
    return [
        f"{size:6} {name:9} {s.mean:8.2f} ± {s.std:.2f} ms" for name, s in parts.items()
    ]


def memory_lines(size: str, c: Line) -> list[str]:
    if not c:
        return step_lines(size, c)
    gib = c["peak_allocated_bytes"] / 2**30
    name = "{context}-batch{batch}-{precision}.pickle".format_map(c.config)
    return [f"{size:6} peak {gib:.2f} GiB, snapshot in {size}-{name}"]


def attention_line(c: Line) -> str:
    if not c:
        return f"{c.config['d']:3} {c.config['n']:6} {c.reason}" if c.reason else ""
    forward, backward = (c.summary(name).mean for name in ("forward", "backward"))
    numbers = (forward, c["before_backward_bytes"] / 2**30, backward)
    shape = f"{c.config['d']:3} {c.config['n']:6}"
    return " ".join([shape, *(f"{number:9.2f}" for number in numbers)])


def flash_line(name: str, c: Line) -> str:
    if not c:
        return f"{c.config['n']:6} {name:6} {c.reason}" if c.reason else ""
    times = (c.ms(part) for part in ("forward", "backward", "both"))
    return " ".join([f"{c.config['n']:6} {name:6}", *(f"{ms:9.3f}" for ms in times)])


def script_diff(old: str, new: str) -> str:
    """Return a code block with the unified diff of two scripts."""
    before, after = (
        MARK.sub("", (SCRIPTS / f"{name}.py").read_text(encoding="utf-8")).splitlines()
        for name in (old, new)
    )
    # Skip the two header lines of the diff.
    lines = list(unified_diff(before, after, n=1, lineterm=""))[2:]
    return "\n".join(["```diff", *lines, "```"])

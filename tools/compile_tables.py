"""What each launch configuration of the tables needs of its GPU, by compiling it here:
registers, spills, shared memory, programs on an SM, and what its loop executes.
Compiled, not timed.

    python tools/compile_tables.py
    python tools/compile_tables.py --gpu a100 --gpu h100

writes what the installed Triton makes of them beside what other versions made, to
docs/results/tables-compiled.json; `tools/render/spanning/compiled.py` shows it. That
takes half an hour, or as long as what has changed since: rows that are there of the
same code and configuration stay.
"""

import json
import sys
from itertools import product
from pathlib import Path
from typing import Annotated, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from systems import need, run_as_command

if __name__ == "__main__":
    need("torch", "triton", "packaging", "typer", "rich", "msgspec")

import triton
import typer
from packaging.version import Version
from rich.progress import Progress

from systems.attention.triton.configs import Config
from systems.attention.triton.tuned import HEAD_DIMS, kernels_hash
from systems.formulas.chips import TARGETS, Target
from systems.records.files import write_whole
from systems.records.store import RecordError
from tools.compile_ahead import DTYPES, Needs, compile_for, entries, need_compiler
from tools.render.compiled_files import TABLES as COMPILED
from tools.render.spanning.compiled import PREDICTED, WIDTHS
from tools.rendering import stop


class NotCompiled(Exception):
    """What the compiler says of a configuration."""


def cases(name: str) -> list[tuple[str, int, bool]]:
    """(arithmetic, head dimension, causal). Under a causal mask a loop needs more; both
    masks are compiled where times are predicted.
    """
    both = WIDTHS if name in PREDICTED else ()
    return [
        *((kind, d, True) for kind, d in product(DTYPES, HEAD_DIMS)),
        *(("half", d, False) for d in both),
    ]


def key_of(row: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(row[x] for x in ("gpu", "arithmetic", "d", "causal", "kernel"))


def place(row: dict[str, Any]) -> tuple[int, ...]:
    """Where a row stands: by GPU, arithmetic, head dimension, mask and kernel."""
    name, kind, d, causal, kernel = key_of(row)
    kernels = ("forward", "dq", "dkdv")
    by_kind = list(DTYPES).index(kind), d, not causal, kernels.index(kernel)
    return list(TARGETS).index(name), *by_kind


def is_there(
    rows: list[dict[str, Any]], name: str, kind: str, d: int, causal: bool
) -> bool:
    """Whether the rows have what the table has for this case."""
    there = {key_of(r): r["config"] for r in rows}
    wanted = entries(TARGETS[name], kind, d, causal)[0]
    return all(
        there.get((name, kind, d, causal, kernel)) == config
        for kernel, config in wanted.items()
    )


def row(
    name: str, kind: str, d: int, causal: bool, config: Config, needs: Needs
) -> dict[str, Any]:
    return {
        "gpu": name,
        "arithmetic": kind,
        "d": d,
        "causal": causal,
        "kernel": needs.kernel.removesuffix("_kernel"),
        "config": config,
        "shared_bytes": needs.shared_bytes,
        "registers": needs.registers,
        "stack_bytes": needs.stack_bytes,
        "programs": needs.programs(TARGETS[name]),
        "repeats": round(needs.repeats(kind, d), 2),
        "loop": dict(needs.loop),
    }


def compiled(name: str, kind: str, d: int, causal: bool) -> list[dict[str, Any]]:
    """A row for each kernel with products."""
    gpu: Target = TARGETS[name]
    (many, *_), rows = entries(gpu, kind, d, causal), []
    for found in compile_for(gpu, kind, d, causal, many):
        if isinstance(found, str):
            raise NotCompiled(f"{name} {kind} d={d}: {found}")
        for needs in found:
            if needs.loop:
                config = many[needs.kernel.removesuffix("_kernel")]
                rows.append(row(name, kind, d, causal, config, needs))
    return rows


def write(versions: dict[str, Any]) -> None:
    """A row a line, so that a change shows as the rows that changed."""
    parts = []
    for version in sorted(versions, key=Version):
        found = versions[version]
        rows = ",\n".join(
            f"   {json.dumps(r)}" for r in sorted(found["rows"], key=place)
        )
        head = f'  "source_hash": {json.dumps(found["source_hash"])}'
        parts.append(f' "{version}": {{\n{head},\n  "rows": [\n{rows}\n  ]\n }}')
    write_whole(COMPILED.path, "{\n" + ",\n".join(parts) + "\n}\n")


def main(
    gpu: Annotated[
        list[str], typer.Option(help=f"{', '.join(TARGETS)}; may be repeated.")
    ] = list(TARGETS),  # noqa: B006
    predicted: Annotated[
        bool, typer.Option("--predicted", help="Only what times are predicted from.")
    ] = False,
) -> None:
    """Compile the tables of these GPUs and write what they need."""
    if unknown := [name for name in gpu if name not in TARGETS]:
        stop(f"{unknown[0]} is none of {', '.join(TARGETS)}")
    need_compiler()
    try:
        versions = COMPILED.read()
    except RecordError as error:
        stop(str(error))
    own, source = versions.get(triton.__version__, {}), kernels_hash()
    kept = own["rows"] if own.get("source_hash") == source else []
    everything = [
        (name, case)
        for name in gpu
        for case in cases(name)
        if not predicted or (case[0] == "half" and case[1] in WIDTHS)
    ]
    failed = False
    with Progress() as progress:
        task = progress.add_task("compile", total=len(everything))
        for name, case in everything:
            progress.advance(task)
            if is_there(kept, name, *case):
                continue
            try:
                new = compiled(name, *case)
            except NotCompiled as error:
                progress.console.print(f"error: {error}", style="red")
                failed = True
                continue
            there = {key_of(r) for r in new}
            kept = [r for r in kept if key_of(r) not in there] + new
            versions[triton.__version__] = {"source_hash": source, "rows": kept}
            write(versions)
    versions[triton.__version__] = {"source_hash": source, "rows": kept}
    write(versions)
    print(f"{COMPILED.path}: Triton {triton.__version__}, {len(kept)} kernels")
    raise typer.Exit(2 if failed else 0)


if __name__ == "__main__":
    assert __doc__
    run_as_command(main, __doc__)

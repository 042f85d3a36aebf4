"""A record may be well-formed, carry its right digest, and still be none that tables
can be made of. It is named and left out; everything else is rendered.
"""

import copy
import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import yaml

from systems import ROOT
from systems.records import store
from tests.factories import RECORDS, RESULTS
from tools.render import everything
from tools.render.clocks import PROFILE
from tools.render.compiled_files import STEPS, TABLES
from tools.render.load import Broken

pytestmark = pytest.mark.usefixtures("few_figures")

Data = dict[str, Any]


def put(results: Path, name: str, change: Callable[[Data], object] | None = None):
    """The committed record of this name in a folder of results, changed or as it is,
    with the digest of what it holds.
    """
    data = json.loads((RESULTS / name).read_text())
    if change:
        change(data)
    path = results / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(signed(data))
    return path


def signed(data: Data) -> str:
    held = {key: data[key] for key in data if key not in ("schema", "digest")}
    digest = store.digest_of(held)
    return json.dumps({"schema": data["schema"], "digest": digest, **held})


def facts_of(files: everything.Rendered) -> dict[str, dict[str, str]]:
    return yaml.safe_load(files["facts.yml"])["facts"]


# By hand ------------------------------------------------------------------------------


SXM, PCIE = "reported-a100-sxm4-40gb", "reported-a100-80gb-pcie"


def test_a_reported_number_that_is_not_there_is_only_not_measured(tmp_path):
    """What spans records takes what it finds."""
    put(tmp_path, f"{SXM}/end_to_end.json", without("total_mean_ms", rows=1))
    put(tmp_path, f"{PCIE}/end_to_end.json", in_configs(size="nosuch"))
    files = everything.render_all(tmp_path)
    told = facts_of(files)["reported"]
    assert told["total_over_forward_least"] != "not measured" == told["rate_least"]


def without(metric: str, rows: int | None = None) -> Callable[[Data], object]:
    return lambda data: [r["metrics"].pop(metric, None) for r in data["rows"][:rows]]


def in_configs(**fields: Any) -> Callable[[Data], object]:
    return lambda data: [row["config"].update(fields) for row in data["rows"]]


def other_steps(data: Data) -> None:
    """No tables of the stem's own look at these rows."""
    for row in data["rows"]:
        row["config"]["dtype"] = "fp16"
        row["metrics"].pop("time_ms", None)


OURS = "nvidia-h200/flash_ablation.json"


def test_what_spans_stems_names_the_record_that_it_stumbles_over(tmp_path):
    path = put(tmp_path, OURS, other_steps)
    put(tmp_path, "nvidia-h200/flash_peers.json")
    files = everything.render_all(tmp_path)
    assert [(b.stem, b.path) for b in files.broken] == [("flash_ablation", path)]
    assert "restore it or measure again" in str(files.broken[0])
    # Left out everywhere, also where it stood before it was found to be broken.
    for name, text in files.items():
        if name.startswith("flash_ablation-") and name.endswith(".md"):
            assert text.startswith("**Missing:**"), name
    assert "window.RESULTS" in files["explorer.js"]
    assert '"flash_ablation"' not in files["explorer.js"]
    assert facts_of(files)["flash_peers"]["test_over_cudnn"] != "not measured"
    assert facts_of(files)["ladder"]["end"] == "not measured"


def one_sample_less(data: Data) -> None:
    for row in data["rows"]:
        if "backward_ms" in row["metrics"]:
            row["metrics"]["backward_ms"].pop()


def other_phases(data: Data) -> None:
    """Its own tables ask for phases by name; a profile takes what was timed."""
    for row in data["rows"]:
        row["metrics"] = {"forward_ms": [1.0, 2.0], "optimizer_ms": [1.0]}


@pytest.mark.parametrize("change", [one_sample_less, other_phases])
def test_a_clock_that_is_broken_takes_no_profile_with_it(tmp_path, change):
    path = put(tmp_path, "nvidia-h200/end_to_end.json", change)
    put(tmp_path, f"nvidia-h200/{PROFILE}.json")
    files = everything.render_all(tmp_path)
    assert [b.path for b in files.broken] == [path]
    alone = tmp_path / "alone"
    put(alone, f"nvidia-h200/{PROFILE}.json")
    wanted = everything.render_all(alone)
    names = [name for name in wanted if name.startswith(f"{PROFILE}-")]
    assert len(names) > 3 and all(files[name] == wanted[name] for name in names)


def test_a_clock_that_its_own_tables_can_be_made_of_is_at_fault_too(
    tmp_path, monkeypatch
):
    clock = put(tmp_path, "nvidia-h200/end_to_end.json")
    put(tmp_path, f"nvidia-h200/{PROFILE}.json")
    module = import_module(f"tools.render.stems.{PROFILE}")
    fragments = module.fragments

    def stumbling(records):
        if any(record.clock for record in records):
            raise ValueError("clock")
        return fragments(records)

    monkeypatch.setattr(module, "fragments", stumbling)
    files = everything.render_all(tmp_path)
    assert [b.path for b in files.broken] == [clock]
    tables = [name for name in files if name.startswith(f"{PROFILE}-")]
    assert tables and not any("**Missing" in files[name] for name in tables)


def test_two_records_that_go_together_only_apart_cost_one(tmp_path, monkeypatch):
    for name in ("warmup", "method", "autocast"):
        put(tmp_path, f"nvidia-h200/{name}.json")
    module = everything.spanning("causes")
    fragments = module.fragments

    def no_pair(found):
        if found.get("warmup") and found.get("method"):
            raise ValueError("both")
        return fragments(found)

    monkeypatch.setattr(module, "fragments", no_pair)
    files = everything.render_all(tmp_path)
    assert [(b.stem, "ValueError('both')" in b.why) for b in files.broken] == [
        ("method", True)
    ]
    assert facts_of(files)["warmup"]["first_step"] != "not measured"


def test_what_can_not_be_made_of_nothing_is_no_record_s_fault(tmp_path, monkeypatch):
    put(tmp_path, "nvidia-h200/warmup.json")
    module = everything.spanning("causes")
    monkeypatch.setattr(module, "facts", lambda found: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        everything.render_all(tmp_path)


# Drawn by lot -------------------------------------------------------------------------


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all that lies in a value; of long lists the first items."""
    items = value.items() if isinstance(value, dict) else ()
    for key, item in enumerate(value[:50]) if isinstance(value, list) else items:
        yield (*path, key)
        yield from places(item, (*path, key))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def other(value: Any, lot: random.Random) -> Any:
    """Something else of its type."""
    match value:
        case bool():
            return not value
        case str():
            return lot.choice(["", "nosuch", "fp32", 2 * value, 500 * "x"])
        case int():
            return lot.choice([0, 1, -value, value + 1, 1000 * value, 2**40])
        case float():
            return lot.choice([0.0, 1.0, -value, 1e6 * value, 1e-9, 1e300])
        case list():
            return lot.choice([[], value[:1], value[:-1], 2 * value, value[::-1]])
        case dict():
            items = [*value.items()]
            return dict(lot.choice([[], items[:1], items[:-1]]))
    return value


def in_place(rows: list[Data], lot: random.Random) -> None:
    """Something in one row, or in the same place of all, is gone or another."""
    part = lot.choice(["metrics", "metrics", "config"])
    found = [*places(lot.choice(rows)[part])]
    if not found:
        return
    # As often a metric as one of the many numbers in it.
    depth = lot.choice(sorted({len(path) for path in found}))
    path = lot.choice([path for path in found if len(path) == depth])
    gone = lot.random() < 0.5
    for row in rows if lot.random() < 0.3 else [lot.choice(rows)]:
        try:
            holder = at(row[part], path[:-1])
            holder[path[-1]] = other(holder[path[-1]], lot)
            if gone:
                del holder[path[-1]]
        except (KeyError, IndexError, TypeError):
            continue


def mutated(data: Data, lot: random.Random) -> Data:
    data = copy.deepcopy(data)
    rows = data["rows"]
    chosen = lot.sample(rows, lot.randint(1, len(rows)))
    match lot.choice(["place", "place", "place", "rows", "status", "around"]):
        case "place":
            in_place(rows, lot)
        case "rows":
            data |= {"rows": chosen, "expected_rows": len(chosen)}
        case "status":
            for row in chosen:
                row.update(status="out_of_memory", metrics={}, reason="why")
        case "around":
            kept = ("schema", "digest", "stem", "kind", "grid", "rows", "expected_rows")
            around = {key: data[key] for key in data if key not in kept}
            path = lot.choice([p for p in places(around) if p[-1] != "slug"])
            holder = at(data, path[:-1])
            holder[path[-1]] = other(holder[path[-1]], lot)
    return data


def assert_all_is_there(results: Path) -> list[Broken]:
    """Rendering raises nothing, and makes whatever pages include."""
    files = everything.render_all(results)
    assert INCLUDED <= files.keys()
    for broken in files.broken:
        assert broken.path.is_relative_to(results) and "\n" not in str(broken)
    return files.broken


INCLUDED = {*everything.render_all(RESULTS / "nowhere")}


@pytest.mark.slow
@pytest.mark.parametrize("path", RECORDS, ids=lambda p: f"{p.parent.name}/{p.stem}")
def test_whatever_is_wrong_with_one_record_ends_no_rendering(tmp_path, path):
    lot = random.Random(path.parent.name + path.stem)
    data = json.loads(path.read_text())
    copied = tmp_path / path.parent.name / path.name
    copied.parent.mkdir()
    copied.write_text(signed(mutated(mutated(data, lot), lot)))
    assert {b.path for b in assert_all_is_there(tmp_path)} <= {copied}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_wrong_with_all_records_ends_no_rendering(tmp_path, seed):
    lot = random.Random(seed)
    for path in RECORDS:
        copied = tmp_path / path.parent.name / path.name
        copied.parent.mkdir(exist_ok=True)
        copied.write_text(signed(mutated(json.loads(path.read_text()), lot)))
    assert assert_all_is_there(tmp_path)


LONGEST = """
import resource, sys
import torch
from tools import regen_tables

def held():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

imported = held()
code = regen_tables.main(sys.argv[1:])
print(code, held() - imported)
"""


@pytest.mark.slow
@pytest.mark.parametrize("longer", ["rows", "samples"])
def test_rendering_the_longest_record_takes_half_a_gigabyte_at_most(tmp_path, longer):
    """Beside PyTorch, whose import takes half of one, and with Python 3.13 more."""
    results = tmp_path / "results"
    path = put(results, "nvidia-h200/warmup.json")
    rows = json.loads(path.read_text())["rows"]
    if longer == "rows":
        times = int(0.95 * store.LONGEST_BYTES / len(json.dumps(rows)))
        rows = [copy.deepcopy(row) for _ in range(times) for row in rows]
        for i, row in enumerate(rows):
            row["config"]["warmup"] = i
    else:
        count = int(0.95 * store.LONGEST_BYTES / len(json.dumps([1.123456] * 4)))
        # The four parts of a step.
        for name in (n for n in rows[0]["metrics"] if n.endswith("_ms")):
            rows[0]["metrics"][name] = [1 + i / 1e6 for i in range(count)]
    new = {"rows": rows, "expected_rows": len(rows)}
    path = put(results, "nvidia-h200/warmup.json", lambda data: data.update(new))
    assert 0.8 * store.LONGEST_BYTES < path.stat().st_size < store.LONGEST_BYTES
    options = ["--render", "--results", results, "--generated", tmp_path / "generated"]
    child = subprocess.run(
        [sys.executable, "-c", LONGEST, *options],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    code, kib = child.stdout.splitlines()[-1].split()
    assert code == "0" and int(kib) < 2**19, child.stderr


# What was compiled --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("file", "shown"), [(STEPS, "ladder-needs.md"), (TABLES, "compiled-needs.md")]
)
def test_a_broken_file_of_what_was_compiled_is_named(
    tmp_path, monkeypatch, file, shown
):
    path, results = tmp_path / file.path.name, tmp_path / "results"
    monkeypatch.setattr(file, "path", path)
    for stem in ("flash_ablation", "flash_peers"):
        put(results, f"nvidia-h200/{stem}.json")
    path.write_text("null")
    files = everything.render_all(results)
    assert [b.path for b in files.broken] == [path]
    assert files[shown].startswith("**Missing:**")
    path.unlink()
    files = everything.render_all(results)
    assert files.broken == [] and files[shown].startswith("Not compiled")


@pytest.mark.parametrize("file", [STEPS, TABLES])
def test_so_is_one_that_was_cut_or_is_another(tmp_path, monkeypatch, file):
    text, copied = file.path.read_text(), tmp_path / "compiled.json"
    monkeypatch.setattr(file, "path", copied)
    cut = (text[:length] for length in range(0, len(text) - 2, len(text) // 20))
    for damaged in (*cut, "null", "[]", '{"3.6.0": {}}', text.replace("3.6.0", "x")):
        copied.write_text(damaged)
        assert str(file.broken).startswith(f"{copied}: ")
        assert "\n" not in str(file.broken)
    copied.write_text(text)
    assert file.broken is None and file.versions()

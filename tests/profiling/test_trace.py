"""Test readers of PyTorch's and Nsight Systems' traces: phases, rows and errors."""

import gzip
import json
import math
import re
import sqlite3
from collections import defaultdict
from contextlib import closing

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from systems.benchmarking import phases
from systems.profiling import nsys, torch_trace
from systems.profiling.trace import Launch, Span, TraceError, find_open_spans, span_ms

MARKS = ("step", "forward", "attention softmax", "backward")
MAIN, AUTOGRAD = 100, 107

# A step on the CPU's main thread, in us: (mark, start, end).
PHASES = [
    ("step", 0, 100),
    ("forward", 10, 40),
    ("attention softmax", 20, 30),
    ("backward", 50, 90),
]
# (name, launching thread, launch time, start, duration, correlation). The GPU is late:
# forward kernels run while the CPU is already in the backward phase.
KERNELS = [
    ("gemm", MAIN, 12, 55, 10, 1),
    ("exp", MAIN, 30, 65, 4, 2),
    ("gemm", MAIN, 35, 69, 12, 3),
    ("gemm", AUTOGRAD, 60, 81, 30, 4),
    ("stray", MAIN, 95, 111, 1, 5),
]
EXPECTED = {
    ("gemm", ("step", "forward")): (2, 0.022),
    ("exp", ("step", "forward", "attention softmax")): (1, 0.004),
    ("gemm", ("step", "backward")): (1, 0.030),
    ("stray", ("step",)): (1, 0.001),
}


def totals(kernels):
    times = defaultdict(list)
    for kernel in kernels:
        times[kernel.name, kernel.path].append(kernel.ms)
    return {key: (len(ms), pytest.approx(sum(ms))) for key, ms in times.items()}


TIMES = st.integers(0, 9)


@settings(deadline=None)
@given(st.lists(st.tuples(TIMES, TIMES)), st.lists(TIMES))
def test_find_open_spans_lists_spans_around_each_launch(spans, launches):
    inside = find_open_spans(
        [Span("", start, start + length, MAIN) for start, length in spans],
        [Launch(MAIN, time) for time in launches],
    )
    outermost = sorted((start, -start - length) for start, length in spans)
    assert {launch.time for launch in inside} == {*launches}
    for launch, found in inside.items():
        expected = [(a, -b) for a, b in outermost if a <= launch.time <= -b]
        assert [(span.start, span.end) for span in found] == expected


def make_trace(old=False):
    """Return a trace as PyTorch 2 writes it, or with PyTorch 1.9's spelling."""
    known = {
        "kernel": ("kernel", "Kernel"),
        "call": ("cuda_runtime", "Runtime"),
        "op": ("cpu_op", "Operator"),
        "id": ("External id", "external id"),
        "mark": ("user_annotation", "Operator"),
    }
    cats = {name: spelled[old] for name, spelled in known.items()}
    events: list[dict] = [{"ph": "M", "name": "process_name", "pid": 1}]

    def add_event(cat, name, tid, ts, dur, pid=1, **args):
        given = {"cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts}
        events.append({"ph": "X", **given, "dur": dur, "args": args})

    for name, start, end in PHASES:
        add_event(cats["mark"], name, MAIN, start, end - start)
    # Add ranges that are no phases: one on the GPU, and one by PyTorch's optimizer.
    add_event("gpu_user_annotation", "backward", 7, 55, 30)
    add_event(cats["mark"], "Optimizer.step#AdamW.step", MAIN, 0, 100)
    for name, thread, at, start, duration, number in KERNELS:
        launch = "cudaLaunchKernel" if number % 2 else "cuLaunchKernelEx"
        call = cats["call"] if old or number % 2 else "cuda_driver"
        op = "aten::mm" if name == "gemm" else "aten::exp"
        ids = {"correlation": number, cats["id"]: 70 + number}
        add_event(cats["op"], op, thread, at - 1, 3, **{cats["id"]: 70 + number})
        add_event(call, launch, thread, at, 1, correlation=number)
        add_event(cats["kernel"], name, 7, start, duration, pid=0, **ids, stream=7)
    return {"schemaVersion": 1, "traceEvents": events}


def write(path, content):
    path.write_text(
        json.dumps(content) if not isinstance(content, str) else content,
        encoding="utf-8",
    )
    return path


@pytest.mark.parametrize("old", [False, True])
def test_torch_kernels_belong_to_the_phase_that_launched_them(tmp_path, old):
    path = write(tmp_path / "t.json", make_trace(old))
    kernels = torch_trace.read_trace(path, MARKS)
    assert totals(kernels) == EXPECTED
    assert [k.op for k in kernels] == ["aten::mm", None, "aten::mm", "aten::mm", None]
    assert [k.start for k in kernels] == [55_000, 65_000, 69_000, 81_000, 111_000]
    assert span_ms(kernels) == pytest.approx(0.057)
    assert sum(k.ms for k in kernels) == pytest.approx(0.057)


def test_kernels_without_a_call_use_their_operation(tmp_path):
    trace = make_trace()
    for missing, expected in (("cu", EXPECTED), ("aten", None)):
        events = [e for e in trace["traceEvents"] if not e["name"].startswith(missing)]
        trace["traceEvents"] = events
        kernels = torch_trace.read_trace(write(tmp_path / "t.json", trace), MARKS)
        assert expected is None or totals(kernels) == expected
    # Without an operation, a kernel belongs to no phase, but is in the result.
    assert {k.path for k in kernels} == {()} and len(kernels) == len(KERNELS)


def test_real_profiler_trace_has_marked_operations(tmp_path, monkeypatch):
    """On a CPU, operations stand in for kernels."""
    monkeypatch.setattr(torch_trace, "GPU_CATEGORIES", {"cpu_op"})
    x = torch.ones(4, 4, requires_grad=True)

    def run_step():
        with phases.mark("step"):
            with phases.mark("forward"):
                y = (x @ x).exp().sum()
            with phases.mark("backward"):
                y.backward()
        return y.item()

    kept = tmp_path / "new" / "t.json.gz"
    result, kernels = torch_trace.profile_kernels(run_step, "cpu", MARKS, keep=kept)
    assert result == pytest.approx(16 * math.exp(4))
    assert torch_trace.read_trace(kept, MARKS) == kernels
    calls = {key: count for key, (count, _) in totals(kernels).items()}
    forward, backward = ("step", "forward"), ("step", "backward")
    assert {path for name, path in calls if name == "aten::mm"} == {forward, backward}
    assert {k: n for k, n in calls.items() if k[0] == "aten::exp"} == {
        ("aten::exp", forward): 1
    }


def read_error(read, path) -> str:
    """Return the one-line error of reading a trace."""
    with pytest.raises(TraceError) as error:
        read(path, MARKS)
    text = str(error.value)
    assert "\n" not in text and len(text) < 500
    return text


OTHER = "has an event that is none of torch.profiler's"
CUT = "is no whole trace .*: profile again"
NO_LIST = "has no traceEvents: give what"
BROKEN_TORCH = [
    ("empty.json", b"{", CUT),
    ("cut.json", json.dumps(make_trace())[:-40].encode(), CUT),
    ("foreign.json", b"\xff\xfe\x00", CUT),
    ("deep.json", b"[" * 100_000, CUT),
    ("cut.json.gz", gzip.compress(b"{}" * 999)[:-9], CUT),
    ("plain.json.gz", b"{}", CUT),
    # A valid header, followed by text that is not compressed.
    ("spoilt.json.gz", gzip.compress(b"")[:10] + b"\xff" * 50, CUT),
    ("list.json", b"[1, 2]", NO_LIST),
    ("object.json", b'{"traceEvents": {}}', NO_LIST),
    ("none.json", b'{"traceEvents": []}', "has no kernel of a GPU: profile with Profi"),
    ("event.json", b'{"traceEvents": [{"ph": "X", "cat": "kernel"}]}', OTHER),
    ("number.json", b'{"traceEvents": [7]}', OTHER),
]


@pytest.mark.parametrize(
    ("name", "content", "said"), BROKEN_TORCH, ids=range(len(BROKEN_TORCH))
)
def test_broken_torch_trace_gives_a_one_line_error(tmp_path, name, content, said):
    (tmp_path / name).write_bytes(content)
    text = read_error(torch_trace.read_trace, tmp_path / name)
    assert re.search(rf"{re.escape(name)} {said}", text)
    assert "is no whole trace" in read_error(torch_trace.read_trace, tmp_path)
    none = tmp_path / "no.json"
    assert "does not exist: give a trace" in read_error(torch_trace.read_trace, none)


# Faults of one event in an otherwise valid trace.
WRONG_EVENTS = [
    *(("kernel", {"ts": at}) for at in ("55", None, math.nan, math.inf)),
    *(("kernel", {"dur": took}) for took in ("10", math.inf, -1)),
    *(("kernel", {"name": name}) for name in (None, 7)),
    ("kernel", {"args": None}),
    ("cuda_runtime", {"args": "correlation"}),
    ("cuda_runtime", {"args": {"correlation": [1]}}),
    ("cpu_op", {"args": {"External id": [1]}}),
    ("cuda_runtime", {"tid": [1]}),
    ("user_annotation", {"dur": -5}),
    ("user_annotation", {"ts": None}),
]


@pytest.mark.parametrize(("category", "change"), WRONG_EVENTS, ids=str)
def test_invalid_event_gives_a_one_line_error(tmp_path, category, change):
    content = make_trace()
    next(e for e in content["traceEvents"] if e.get("cat") == category).update(change)
    text = read_error(torch_trace.read_trace, write(tmp_path / "t.json", content))
    assert re.search(rf"t\.json {OTHER} .*: profile again$", text)


@pytest.mark.parametrize("odd", [b"\xff", b"\t", b"\n"])
def test_kernel_names_may_have_any_bytes(tmp_path, odd):
    text = json.dumps(make_trace()).encode().replace(b'"gemm"', b'"ge' + odd + b'mm"')
    (tmp_path / "t.json").write_bytes(text)
    kernels = torch_trace.read_trace(tmp_path / "t.json", MARKS)
    renamed = {"gemm": f"ge{odd.decode(errors='replace')}mm"}
    expected = {(renamed.get(k, k), path): x for (k, path), x in EXPECTED.items()}
    assert totals(kernels) == expected


# Nsight Systems packs the process id above 24 bits of the thread id.
PID = 5 << 24

# Where ranges have their text, and which columns and tables exist, by nsys version.
VERSIONS = {
    "2021": {"text": "text", "process": False, "mangled": False, "driver": True},
    "2023": {"text": "both", "process": True, "mangled": True, "driver": False},
    "2025": {"text": "textId", "process": True, "mangled": True, "driver": False},
}


def write_db(path, text="textId", process=True, mangled=True, driver=False, without=()):
    """Write an SQLite export with the documented tables and columns."""
    numbers: dict[str, int] = {}

    def string_id(word):
        return numbers.setdefault(word, len(numbers) + 1)

    pid = ["globalPid"] * process
    run = ["start", "end", "correlationId", *pid]
    names = ["demangledName", "shortName", *["mangledName"] * mangled]
    calls = ["start", "end", "globalTid", "correlationId", "nameId"]
    texts = {"text": ["text"], "textId": ["textId"], "both": ["text", "textId"]}[text]
    kind = "CUPTI_ACTIVITY_KIND_"
    columns = {
        "StringIds": ["id", "value"],
        f"{kind}KERNEL": [*run, "deviceId", "streamId", *names],
        f"{kind}MEMCPY": [*run, "copyKind", "bytes"],
        f"{kind}MEMSET": [*run, "value"],
        f"{kind}RUNTIME": calls,
        f"{kind}DRIVER": calls,
        "NVTX_EVENTS": ["start", "end", "eventType", *texts, "globalTid"],
    }
    rows: dict[str, list[tuple]] = {table: [] for table in columns}

    def add_mark(name, start, end, event=59):
        said = {"text": None if text == "both" else name, "textId": string_id(name)}
        words = (said[column] for column in texts)
        times = start * 1000, end and end * 1000
        rows["NVTX_EVENTS"].append((*times, event, *words, PID + MAIN))

    def add_call(table, start, thread, correlation):
        what = string_id("cudaLaunchKernel_v7000")
        rows[kind + table].append((start, start + 500, thread, correlation, what))

    for name, start, end in PHASES:
        # The last step was open when the capture ended.
        add_mark(name, start, None if name == "step" else end)
    add_mark("aten::mm", 11, 14)
    # An event without an end is not a range, even with the name of a phase.
    add_mark("backward", 11, None, event=34)
    for name, thread, at, start, duration, correlation in KERNELS:
        table = "DRIVER" if driver and correlation % 2 else "RUNTIME"
        add_call(table, at * 1000, PID + thread, correlation)
        of = [start * 1000, (start + duration) * 1000, correlation, *[PID] * process]
        called = [name, f"short {name}", *[f"_Z{name}"] * mangled]
        rows[f"{kind}KERNEL"].append((*of, 0, 7, *map(string_id, called)))
    if process:
        # Another process used the same correlation id, outside of all phases.
        add_call("RUNTIME", 1_000_000, (6 << 24) + MAIN, 1)
    rows["StringIds"] = [(i, word) for word, i in numbers.items()]
    with closing(sqlite3.connect(path)) as db, db:
        left_out = {*without, *[f"{kind}DRIVER"] * (not driver)}
        for table in columns.keys() - left_out:
            db.execute(f"CREATE TABLE {table} ({', '.join(columns[table])})")
            places = ", ".join("?" * len(columns[table]))
            db.executemany(f"INSERT INTO {table} VALUES ({places})", rows[table])
    return path


@pytest.mark.parametrize("version", VERSIONS)
def test_nsys_kernels_belong_to_the_phase_that_launched_them(tmp_path, version):
    path = write_db(tmp_path / "r.sqlite", **VERSIONS[version])
    kernels = nsys.read_export(path, MARKS)
    assert totals(kernels) == EXPECTED
    assert [k.start for k in kernels] == [55_000, 65_000, 69_000, 81_000, 111_000]


def run_sql(path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        for statement in statements:
            db.execute(statement)


def test_processes_do_not_mix(tmp_path):
    """Marks of data loaders don't count, and only one process may launch kernels."""
    export, other = write_db(tmp_path / "r.sqlite"), 6 << 24
    run_sql(export, f"UPDATE NVTX_EVENTS SET globalTid = {other} WHERE end = 90000")
    expected = {("gemm", ("step",)): (1, 0.030)} | EXPECTED
    del expected["gemm", ("step", "backward")]
    assert totals(nsys.read_export(export, MARKS)) == expected
    run_sql(export, f"UPDATE {KERNEL} SET globalPid = {other} WHERE correlationId = 5")
    text = read_error(nsys.read_export, export)
    assert text.startswith(f"{export} mixes kernels of 2 processes: write a file in")


def test_memcpy_and_memset_are_optional_rows(tmp_path):
    path, kind = write_db(tmp_path / "r.sqlite"), "INSERT INTO CUPTI_ACTIVITY_KIND_"
    run_sql(
        path,
        f"{kind}RUNTIME VALUES (26000, 26500, {PID + MAIN}, 8, 1)",
        f"{kind}RUNTIME VALUES (27000, 27500, {PID + MAIN}, 9, 1)",
        f"{kind}MEMCPY VALUES (70000, 71000, 8, {PID}, 2, 400)",
        f"{kind}MEMSET VALUES (71000, 72000, 9, {PID}, 0)",
    )
    assert sorted(nsys.COPY_KINDS) == [*range(1, 11)], "as CUPTI numbers them"
    names = {k.name: k.path[-1] for k in nsys.read_export(path, MARKS)}
    assert names["Memcpy DtoH"] == names["Memset"] == "attention softmax"
    tables = "CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"
    bare = write_db(tmp_path / "s.sqlite", without=tables)
    assert totals(nsys.read_export(bare, MARKS)) == EXPECTED


@pytest.mark.parametrize("kernels", [True, False])
def test_cuda_graph_without_kernels_is_counted(tmp_path, kernels):
    """By default nsys records a CUDA graph as one entry, without its kernels."""
    without = () if kernels else ("CUPTI_ACTIVITY_KIND_KERNEL",)
    path = write_db(tmp_path / "r.sqlite", without=without)
    table = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
    run_sql(
        path,
        f"CREATE TABLE {table} (start, end, correlationId, globalPid)",
        f"INSERT INTO {table} VALUES (50, 5050, 1, {PID})",
    )
    (graph,) = (k for k in nsys.read_export(path, MARKS) if "CUDA graph" in k.name)
    assert graph.end - graph.start == 5000
    assert "--cuda-graph-trace=node" in graph.name


def test_views_do_not_count_as_tables(tmp_path):
    path = write_db(tmp_path / "r.sqlite", without=("NVTX_EVENTS",))
    endless = "WITH RECURSIVE c(x) AS (VALUES(1) UNION ALL SELECT x + 1 FROM c)"
    run_sql(path, f"CREATE VIEW NVTX_EVENTS AS {endless} SELECT x AS start FROM c")
    assert "has no NVTX ranges" in read_error(nsys.read_export, path)


AGAIN = "profile again with --trace cuda,nvtx"
WITHOUT = {
    "StringIds": "has no table StringIds, so Nsight Systems did not write it",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"has no GPU kernels .*: {AGAIN}",
    "CUPTI_ACTIVITY_KIND_RUNTIME": f"has no CUDA calls .*: {AGAIN}",
    "NVTX_EVENTS": f"has no NVTX ranges .*: {AGAIN}",
}


@pytest.mark.parametrize("table", WITHOUT)
def test_export_without_a_table_names_what_is_missing(tmp_path, table):
    with pytest.raises(TraceError, match=WITHOUT[table]):
        nsys.read_export(write_db(tmp_path / "r.sqlite", without=(table,)), MARKS)


def test_truncated_export_gives_a_one_line_error(tmp_path):
    whole = write_db(tmp_path / "r.sqlite").read_bytes()
    contents = {
        whole[: len(whole) // 2]: "is no whole SQLite export .*: export the report aga",
        b"PK\x03\x04" * 300: "is no whole SQLite export .*: export the report again",
        b"": "has no table StringIds",
    }
    path = tmp_path / "s.sqlite"
    assert "does not exist: write it with `nsys" in read_error(nsys.read_export, path)
    for content, text in contents.items():
        path.write_bytes(content)
        assert re.search(text, read_error(nsys.read_export, path))
    # An export may have a table without rows.
    run_sql(tmp_path / "r.sqlite", "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL")
    text = read_error(nsys.read_export, tmp_path / "r.sqlite")
    assert "has an empty table of GPU kernels" in text


# Faults of single tables in a valid export. SQLite accepts text in columns of numbers.
KERNEL, CALL = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME"
WRONG_ROWS = [
    *(f"UPDATE {KERNEL} SET {x}" for x in ("start = 'soon'", "end = start - 1")),
    *(f"UPDATE {KERNEL} SET {x}" for x in ("end = 9e999", "start = x'00ff'")),
    f"UPDATE {KERNEL} SET globalPid = 'mine'",
    "UPDATE StringIds SET value = x'ff'",
    *(f"UPDATE {CALL} SET {x}" for x in ("start = NULL", "start = 'soon'")),
    f"UPDATE {CALL} SET globalTid = 'main'",
    *(f"UPDATE NVTX_EVENTS SET {x}" for x in ("start = NULL", "start = 'soon'")),
    "UPDATE NVTX_EVENTS SET end = start - 1",
    *(f"ALTER TABLE {table} DROP COLUMN start" for table in (KERNEL, CALL)),
]


@pytest.mark.parametrize("wrong", WRONG_ROWS)
def test_invalid_row_of_an_export_gives_a_one_line_error(tmp_path, wrong):
    path = write_db(tmp_path / "r.sqlite")
    run_sql(path, wrong)
    text = r"r\.sqlite is no whole SQLite export .*: export the report again with nsys$"
    assert re.search(text, read_error(nsys.read_export, path))


def test_export_path_may_contain_url_characters_and_names_any_bytes(tmp_path):
    (folder := tmp_path / "50 % of what?").mkdir()
    path = write_db(folder / "r#1.sqlite")
    run_sql(path, "INSERT INTO StringIds VALUES (99, CAST(X'FF' AS TEXT))")
    assert totals(nsys.read_export(path, MARKS)) == EXPECTED

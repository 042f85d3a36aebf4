"""Exercises pass with their keys, and name the usual mistakes."""

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
import textwrap

import pytest
from triton import knobs

from systems import ROOT

pytestmark = pytest.mark.skipif(
    not knobs.runtime.interpret, reason="the exercises are for Triton's interpreter"
)

FOLDER = ROOT / "docs/exercises"
# Where the key of each exercise stands: a file and its sections.
KEYS = {
    "1_weighted_sum": ("systems/weighted_sum.py", "forward"),
    "2_row_softmax": ("docs/exercises/keys.py", "row_softmax"),
    "3_online_softmax": ("docs/exercises/keys.py", "online_softmax"),
    "4_forward_loop": ("systems/attention/first.py", "forward_loop"),
    "5_dq_loop": ("systems/attention/first.py", "p_and_ds", "dq_loop"),
    "6_handout_kernel": ("docs/exercises/keys.py", "handout_kernel"),
}
LOAD_X = "tl.load(x_ptr + row * stride_x + columns"
# What is filled in wrong, in an exercise that is right otherwise; and how that is told.
MISTAKES = [
    (
        "1_weighted_sum",
        {"w": "w = tl.load(w_ptr + columns * stride_w)"},
        "5 rows of 10 .*\ny, of shape .5,., is wrong in 5 of 5 entries\n"
        r"first wrong entry: y\[0\], expected \S+, found nan\n.* give tl.load a mask",
    ),
    ("1_weighted_sum", {"y": "y = tl.sum(x * w[None, :], 1)"}, "only the last tile"),
    ("1_weighted_sum", {"y": "y += tl.sum(x, 1)"}, "the weights are missing"),
    ("1_weighted_sum", {"y": "y -= tl.sum(x * w[None, :], 1)"}, "the sign"),
    (
        "1_weighted_sum",
        {"y": "y += tl.sum(x * w[None, :], 0)"},
        "line 39 .*shapes don't fit",
    ),
    ("2_row_softmax", {"x": f"x = {LOAD_X})"}, "give tl.load a mask"),
    (
        "2_row_softmax",
        {"x": f"x = {LOAD_X}, mask=columns < d, other=0.0)"},
        "`other` must be -inf",
    ),
    ("2_row_softmax", {"e": "e = tl.exp(x)"}, "near 200:\n.* subtract the largest"),
    ("2_row_softmax", {"e": "e = tl.exp(tl.max(x, 0) - x)"}, "sign of the exponent"),
    ("2_row_softmax", {"p": "p = e"}, "division by the sum"),
    (
        "3_online_softmax",
        {"l": "l = l + tl.sum(tl.exp(x - m_new), 0)"},
        "a new largest one:\np, .* old sum is not rescaled",
    ),
    ("3_online_softmax", {"l": "l = tl.sum(tl.exp(x - m_new), 0)"}, "only the last"),
    (
        "3_online_softmax",
        {"l": "l = tl.exp(m_new - m) * l + tl.sum(tl.exp(x - m_new), 0)"},
        "the sign of an exponent",
    ),
    (
        "3_online_softmax",
        {"l": "l = l + tl.sum(tl.exp(x), 0)"},
        "subtract m_new before exp",
    ),
    ("3_online_softmax", {"m_new": "m_new = tl.max(x, 0)"}, "so tl.maximum"),
    ("4_forward_loop", {"l": "l = l + tl.sum(p, 1)"}, "l is not rescaled"),
    ("4_forward_loop", {"a": "a = a + product(p, v)"}, "a is not rescaled"),
    (
        "4_forward_loop",
        {"l": "l = l + tl.sum(p, 1)", "a": "a = a + product(p, v)"},
        "neither l nor a is rescaled",
    ),
    ("4_forward_loop", {"shrink": "shrink = tl.exp(m_new - m)"}, "the sign of an exp"),
    (
        "4_forward_loop",
        {"s": "s = product(q, tl.trans(k)) * scale"},
        "with a causal mask:\no, .* causal mask is missing",
    ),
    (
        "4_forward_loop",
        {"s": "s = scores(q, k, i, j, 1.0, TILE, CAUSAL)"},
        "scale is missing",
    ),
    ("4_forward_loop", {"m_new": "m_new = tl.max(t, 1)"}, "NameError: .*'t'"),
    ("5_dq_loop", {"return": "return p, p * dp"}, "delta is missing"),
    (
        "5_dq_loop",
        {"return": "return p, p * (dp + delta[:, None])"},
        "the sign of delta",
    ),
    ("5_dq_loop", {"return": "return p, p * (delta[:, None] - dp)"}, "the sign of ds"),
    ("5_dq_loop", {"return": "return p, dp - delta[:, None]"}, "p is missing in ds"),
    ("5_dq_loop", {"p": "p = tl.exp(s)"}, "lse is not subtracted"),
    ("5_dq_loop", {"dq": "dq = product(ds, k)"}, "only the last tile"),
    ("5_dq_loop", {"dq": "dq += product(ds, k) * scale"}, "scale counts twice"),
    ("5_dq_loop", {"dq": "dq += product(ds, k) * 2"}, "none of the usual ones"),
    ("5_dq_loop", {"dp": "dp = product(do, v)"}, "line 37 .*shapes don't fit"),
    (
        "6_handout_kernel",
        {"k": "k = tl.load(K_ptr + keys[:, None] * stride_kk + columns * stride_kd)"},
        "3 batch entries .*\no, .* reads k of the first",
    ),
    (
        "6_handout_kernel",
        {"q": "q = tl.load(Q_ptr + queries[:, None] * D + columns)"},
        "3 batch entries .* own three strides",
    ),
    (
        "6_handout_kernel",
        {"first": "first = tl.program_id(1) * 32", "batch": "batch = tl.program_id(0)"},
        "3 batch entries .* program 0 counts tiles",
    ),
    ("6_handout_kernel", {"end": "end = first"}, "a tile of queries saw no key"),
]


@pytest.fixture(scope="module")
def checks():
    spec = importlib.util.spec_from_file_location("checks", FOLDER / "checks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def section(path: str, name: str) -> str:
    source = (ROOT / path).read_text(encoding="utf-8")
    return re.split(rf" *# --8<-- \[\w+:{name}\]\n", source)[1]


def key_of(checks, name: str) -> dict[str, str]:
    """The statements of an exercise's key by the names that they give a value."""
    path, *sections = KEYS[name]
    key = {}
    for part in sections:
        tree = ast.parse(textwrap.dedent(section(path, part)))
        for target, node in checks.statements(tree):
            key[target] = ast.unparse(node)
    return key


def filled_in(checks, name: str, key: dict[str, str]) -> str:
    """The exercise with the statements of a key instead of its holes."""
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    lines = source.splitlines()
    for target, node in checks.holes(source):
        lines[node.lineno - 1] = " " * node.col_offset + key[target]
    return "\n".join(lines)


def test_each_exercise_has_a_check_and_a_key(checks):
    names = sorted(path.stem for path in FOLDER.glob("[0-9]*.py"))
    assert names == list(checks.CHECKS) == list(KEYS)


@pytest.mark.parametrize("name", KEYS)
def test_the_key_solves_it(checks, tmp_path, name):
    path = tmp_path / f"{name}.py"
    path.write_text(filled_in(checks, name, key_of(checks, name)), encoding="utf-8")
    checks.check(name, path)


@pytest.mark.parametrize(
    ("name", "left"),
    list(
        zip(
            KEYS,
            (
                "x w y",
                "x e p",
                "m_new l",
                "s m_new shrink p l a",
                "p dp return dq",
                "first batch q end k v",
            ),
            strict=True,
        )
    ),
)
def test_unsolved_it_says_what_to_fill_in(checks, name, left):
    with pytest.raises(checks.Unsolved, match="^unsolved: fill in ") as unsolved:
        checks.check(name, FOLDER / f"{name}.py")
    assert re.findall(r"(\w+) \(line", str(unsolved.value)) == left.split()


@pytest.mark.parametrize(
    ("name", "wrong", "words"), MISTAKES, ids=lambda x: x if isinstance(x, str) else ""
)
def test_a_mistake_is_told_by_name(checks, tmp_path, name, wrong, words):
    path = tmp_path / f"{name}.py"
    text = filled_in(checks, name, key_of(checks, name) | wrong)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(checks.Wrong) as found:
        checks.check(name, path)
    assert re.search(words, str(found.value), re.DOTALL), found.value


def test_what_is_no_python_is_told_by_its_line(checks, tmp_path):
    path = tmp_path / "3_online_softmax.py"
    path.write_text("x = 1\ny = x +\n", encoding="utf-8")
    with pytest.raises(checks.Wrong, match="^line 2 is no Python: invalid syntax$"):
        checks.check("3_online_softmax", path)


def test_the_page_shows_what_a_check_says(checks, tmp_path):
    name, wrong = "3_online_softmax", {"l": "l = l + tl.sum(tl.exp(x - m_new), 0)"}
    path = tmp_path / f"{name}.py"
    text = filled_in(checks, name, key_of(checks, name) | wrong)
    path.write_text(text, encoding="utf-8")
    with pytest.raises(checks.Wrong) as found:
        checks.check(name, path)
    page = (ROOT / "docs/exercises.md").read_text(encoding="utf-8")
    shown = page.split("```text\n")[1].split("\n```")[0]
    # exp differs in the last bits from one CPU to the next.
    number = re.compile(r"\d\.\d+")
    assert number.sub("", shown) == number.sub("", str(found.value))
    ours, theirs = (number.findall(x) for x in (shown, str(found.value)))
    assert [float(x) for x in ours] == pytest.approx([*map(float, theirs)], rel=1e-3)


@pytest.mark.slow
def test_the_command_tells_solved_wrong_and_unsolved_apart(checks, tmp_path):
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    for name, wrong in (("1_weighted_sum", {}), ("2_row_softmax", {"p": "p = e"})):
        text = filled_in(checks, name, key_of(checks, name) | wrong)
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    line = [sys.executable, "-m", "pytest", "-c", "pyproject.toml", str(tmp_path)]
    line += ["-p", "no:cacheprovider", "-k", "weighted or row or online"]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True)
    assert "1 failed, 1 passed, 1 skipped, 3 deselected" in done.stdout, done.stdout
    page = (ROOT / "docs/exercises.md").read_text(encoding="utf-8")
    (shown,) = re.findall(r"unsolved: fill in .*", page)
    assert shown in done.stdout
    assert "likely cause: the division by the sum of e is missing" in done.stdout
    assert "Traceback" not in done.stdout and "handling of" not in done.stdout

"""Checks of exercises pass for the solutions, and explain common mistakes."""

import ast
import importlib.util
import re
import shutil
import textwrap

import pytest
from packaging.version import Version
from triton import __version__, knobs

from systems import ROOT
from tests.needed import run_python

pytestmark = pytest.mark.skipif(
    not knobs.runtime.interpret, reason="the exercises are for Triton's interpreter"
)

FOLDER = ROOT / "docs/exercises"
PAGE = (ROOT / "docs/exercises.md").read_text(encoding="utf-8")
# The solution of each exercise: a file and its sections.
KEYS = {
    "1_weighted_sum": ("systems/weighted_sum.py", "forward"),
    "2_row_softmax": ("docs/exercises/keys.py", "row_softmax"),
    "3_online_softmax": ("docs/exercises/keys.py", "online_softmax"),
    "4_forward_loop": ("systems/attention/first.py", "forward_loop"),
    "5_dq_loop": ("systems/attention/first.py", "p_and_ds", "dq_loop"),
    "6_handout_kernel": ("docs/exercises/keys.py", "handout_kernel"),
}
LOAD_X = "tl.load(x_ptr + row * stride_x + columns"
MASKED_X = f"x = {LOAD_X}, mask=columns < d, other=0.0)"
MASKED_E = "e = tl.where(columns < d, tl.exp(x - tl.max(x, 0)), 0.0)"
LOAD_TILE = "tl.load(x_ptr + rows[:, None] * stride_xn + columns * stride_xd"
INSIDE = "(rows[:, None] < n) & (columns < d)"
NOT_LAST = "tl.where(tl.arange(0, TILE)[None, :] < 15, s, float('-inf'))"
LAST_KEY = f"m_new = tl.maximum(m, tl.max({NOT_LAST}, 1))"
FORGOTTEN = "l = l + tl.sum(tl.exp(x - m_new), 0)"
LOAD_K = "k = tl.load(K_ptr + keys[:, None] * stride_kk + columns * stride_kd)"
LATER = "s = scores(q, k, i, j, scale, TILE, CAUSAL); s = tl.where(s < -1e38, -1e9, s)"
LOAD_Q = "q = tl.load(Q_ptr + queries[:, None] * D + columns)"
OUTSIDE = {"first": "first = 10**8", "q": "q = tl.zeros([Q_TILE_SIZE, D], tl.float32)"}
PAST = "{0} = tl.load({1}_ptr + batch * stride_{0}b + keys[:, None] * stride_{0}k + "
PAST += "columns * stride_{0}d, mask=keys[:, None] < N_KEYS, other=0.0)"
ZEROS = {x: PAST.format(x, x.upper()) for x in "kv"}
ZEROS |= {"end": "end = first + Q_TILE_SIZE"}
# Wrong lines or values for each exercise, and the message of its check.
MISTAKES = {
    "1_weighted_sum": [
        (
            "w = tl.load(w_ptr + columns * stride_w)",
            "5 rows of 10 .*\ny, of shape .5,., is wrong in 5 of 5 entries\n"
            r"first wrong entry: y\[0\], expected \S+, found nan\n.* tl.load a mask",
        ),
        ("y = tl.sum(x * w[None, :], 1)", "only the last tile"),
        ("y += tl.sum(x, 1)", "the weights are missing"),
        ("y -= tl.sum(x * w[None, :], 1)", "the sign"),
        ("y += tl.sum(x * w[None, :], 0)", "line 39 .*shapes don't fit"),
        (f"x = {LOAD_TILE}, mask=columns < d, other=0.0)", "y is right, but a load"),
        (f"x = {LOAD_TILE}, mask={INSIDE})", "and `other`"),
        ("w = tl.load(w_ptr + columns, mask=columns < d, other=0.0)", "stride_w in w"),
    ],
    "2_row_softmax": [
        (f"x = {LOAD_X})", "give tl.load a mask"),
        (f"x = {LOAD_X.replace('stride_x', 'd')})", "8 numbers, a .* row · stride"),
        ("x = tl.make_tensor_descriptor(x_ptr, [d], [1], [8]).load([0])", "none of"),
        (MASKED_X, "`other` must be -inf"),
        (MASKED_X.replace("0.0", "float('nan')"), "nan\n.* NaN: .* -inf as `other`"),
        (MASKED_X.replace("0.0", "-1e9"), "-2e38:\n.* `other` must be -inf"),
        ("e = tl.exp(x)", "near 400:\n.* subtract the largest"),
        ({"x": MASKED_X, "e": MASKED_E}, "-2e38:\n.* `other` must be -inf"),
        ("e = tl.exp(tl.max(x, 0) - x)", "sign of the exponent"),
        ("p = e", "division by the sum"),
    ],
    "3_online_softmax": [
        (FORGOTTEN, "a new largest one:\np, .* old sum is not rescaled"),
        ("l = tl.sum(tl.exp(x - m_new), 0)", "only the last"),
        ("l = tl.exp(m_new - m) * l + tl.sum(tl.exp(x - m_new), 0)", "the sign of an"),
        ("l = l + tl.sum(tl.exp(x), 0)", "subtract m_new before exp"),
        ("m_new = tl.max(x, 0)", "so tl.maximum"),
        ("m_new = tl.maximum(m, tl.load(x_ptr + row * stride_x + start))", "m_new"),
        ("m_new = tl.maximum(tl.maximum(m, tl.max(x, 0)), 0.0)", "gave only 0: m_new"),
    ],
    "4_forward_loop": [
        ("l = l + tl.sum(p, 1)", "l is not rescaled"),
        ("a = a + matmul(p, v)", "a is not rescaled"),
        ("shrink = tl.full([TILE], 1.0, tl.float32)", "neither l nor a is rescaled"),
        ("shrink = tl.exp(m_new - m)", "the sign of an exp"),
        (
            "s = matmul(q, tl.trans(k)) * scale",
            "with a causal mask:\no, .* causal mask is missing",
        ),
        ("s = scores(q, k, i, j, 1.0, TILE, CAUSAL)", "scale is missing"),
        (LATER, "those of later keys must be -inf"),
        ("s = scores(q, k, j, i, scale, TILE, CAUSAL)", "a query saw no key"),
        ("m_new = tl.maximum(tl.maximum(m, tl.max(s, 1)), 0.0)", "gave only 0: m_new"),
        ("m_new = tl.max(t, 1)", "NameError: .*'t'"),
        ("m_new = tl.max(s, 1)", "above 100 .*m_new is the largest of m and"),
        ("m_new = tl.maximum(m, tl.max(s, 0))", "above 100 .*for each query"),
        (LAST_KEY, "above 100 .*m_new is the largest of m and"),
        ("a = tl.dot(p, v, acc=a * shrink[:, None])", "line 54 .* rounds to TF32"),
    ],
    "5_dq_loop": [
        ("return p, p * dp", "delta is missing"),
        ("return p, p * (dp + delta[:, None])", "the sign of delta"),
        ("return p, p * (delta[:, None] - dp)", "the sign of ds"),
        ("return p, dp - delta[:, None]", "p is missing in ds"),
        ("p = tl.exp(s)", "lse is not subtracted"),
        ("p = tl.exp(s) / tl.exp(lse)[:, None]", "above 100 .*exp overflowed"),
        ("dq = matmul(ds, k)", "only the last tile"),
        ("dq += matmul(ds, k) * scale", "scale counts twice"),
        ("p = tl.where(s > -30, tl.exp(s - lse[:, None]), 0.0)", "none of the usual"),
        ("dp = matmul(do, v)", "line 37 .*shapes don't fit"),
    ],
    "6_handout_kernel": [
        (LOAD_K, "3 batch entries .*\no, .* reads k of the first"),
        (LOAD_Q, "3 batch entries .* own three strides"),
        ("first = tl.program_id(1) * 32", "3 batch entries .* program 0 counts tiles"),
        ("first = tl.program_id(0) * 32", "=False, in .* 64 .* Q_TILE_SIZE was 32"),
        ("end = tl.minimum(N_KEYS, first + 32)", "=True, in .* Q_TILE_SIZE was 32"),
        ("end = first", "a tile of queries saw no key"),
        ("end = first + Q_TILE_SIZE", "at most N_KEYS"),
        (ZEROS, "entries\n.*at most N_KEYS"),
        (LOAD_K.replace("kk", "qq"), "own three strides"),
        ("batch = tl.program_id(1) * stride_qb", "line 39 .*outside of all tensors"),
        (OUTSIDE, "line 62 .*outside of all tensors"),
        ("k = tl.load(batch * stride_kb + keys)", "line 50 .*ptr type [^\\n]*$"),
        ("end = tl.minimum(N_KEYS, N_QUERIES)", "hidden keys are loaded"),
    ],
}


def load_checks():
    spec = importlib.util.spec_from_file_location("checks", FOLDER / "checks.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


checks = pytest.fixture(scope="module")(load_checks)


def read_key(checks, name: str) -> dict[str, str]:
    path, *sections = KEYS[name]
    key, source = {}, (ROOT / path).read_text(encoding="utf-8")
    for part in sections:
        snippet = re.split(rf" *# --8<-- \[\w+:{part}\]\n", source)[1]
        tree = ast.parse(textwrap.dedent(snippet))
        key |= {target: ast.unparse(node) for target, node in checks.statements(tree)}
    return key


def fill_in(checks, name: str, key: dict[str, str]) -> str:
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    lines = source.splitlines()
    assert (holes := [*checks.holes(source)]), f"{name} is solved here: `git stash` it"
    for target, node in holes:
        lines[node.lineno - 1] = " " * node.col_offset + key[target]
    return "\n".join(lines)


def test_each_exercise_has_a_check_and_a_solution(checks):
    names = sorted(path.stem for path in FOLDER.glob("[0-9]*.py"))
    assert names == list(checks.CHECKS) == list(KEYS)
    done = run_python("-m", "pytest", "docs/exercises", "-k", "row or nothing")
    listed = f"ERROR: no exercise is named nothing; there are: {', '.join(names)}\n\n"
    assert (done.returncode, done.stdout, done.stderr) == (4, "", listed)


@pytest.mark.parametrize("name", KEYS)
def test_solution_passes_its_check(checks, tmp_path, name):
    path = tmp_path / f"{name}.py"
    path.write_text(fill_in(checks, name, read_key(checks, name)), encoding="utf-8")
    checks.check(name, path)


@pytest.mark.skipif(Version(__version__) >= Version("3.9"), reason="no block pointers")
def test_block_pointers_and_byte_order_marks_are_accepted(checks, tmp_path):
    path = tmp_path / "6_handout_kernel.py"
    load = "q = tl.load(tl.make_block_ptr(Q_ptr + batch * stride_qb, (N_QUERIES, D), "
    load += "(stride_qq, stride_qd), (first, 0), (Q_TILE_SIZE, D), (1, 0)))"
    key = read_key(checks, path.stem) | {"q": load}
    path.write_text(fill_in(checks, path.stem, key), encoding="utf-8-sig")
    checks.check(path.stem, path)


LEFT = "x w y,x e p,m_new l,s m_new shrink p l a,p dp return dq,first batch q end k v"


@pytest.mark.parametrize(("name", "left"), [*zip(KEYS, LEFT.split(","), strict=True)])
def test_unsolved_exercise_names_what_to_fill_in(checks, name, left):
    with pytest.raises(checks.Unsolved, match="^unsolved: fill in ") as unsolved:
        checks.check(name, FOLDER / f"{name}.py")
    assert re.findall(r"(\w+) \(line", str(unsolved.value)) == left.split()


def find_mistake(checks, name: str, wrong: str | dict[str, str], path) -> str:
    """Return the check's message for a solution with these lines replaced."""
    if isinstance(wrong, str):
        wrong = {wrong.split()[0]: wrong}
    path.write_text(fill_in(checks, name, read_key(checks, name) | wrong), "utf-8")
    with pytest.raises(checks.Wrong) as found:
        checks.check(name, path)
    return str(found.value)


CASES = [(name, *case) for name, cases in MISTAKES.items() for case in cases]


@pytest.mark.parametrize(("name", "wrong", "words"), CASES, ids=str)
def test_check_explains_each_mistake(checks, tmp_path, name, wrong, words):
    text = find_mistake(checks, name, wrong, tmp_path / f"{name}.py")
    assert re.search(words, text, re.DOTALL), text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\ny = x +\n", "^line 2 is no Python: invalid syntax$"),
        ("\0", "^line 1 is no Python: "),
        ("x = '\udce9'\n", "stops when imported: SyntaxError"),
        ("import nowhere\n", "stops when imported: ModuleNotFoundError"),
        ("x = 1\n", "has no function online_softmax$"),
        ("def online_softmax(x):\n    pass\n", "returned NoneType, where a tensor"),
        ("def online_softmax(x):\n    return x, x\n", "Tensor, Tensor, where a tensor"),
    ],
)
def test_unusable_solutions_give_the_reason(checks, tmp_path, text, words):
    path = tmp_path / "3_online_softmax.py"
    path.write_text(text, "utf-8", errors="surrogateescape")
    with pytest.raises(checks.Wrong, match=words):
        checks.check("3_online_softmax", path)


def test_page_shows_the_output_of_a_check(checks, tmp_path):
    text = find_mistake(checks, "3_online_softmax", FORGOTTEN, tmp_path / "it.py")
    shown = PAGE.split("```text\n")[1].split("\n```")[0]
    # exp differs in the last bits between CPUs.
    number = re.compile(r"\d\.\d+")
    assert number.sub("", shown) == number.sub("", text)
    ours, theirs = (number.findall(x) for x in (shown, text))
    assert [float(x) for x in ours] == pytest.approx([*map(float, theirs)], rel=1e-3)


@pytest.mark.slow
def test_pytest_passes_fails_or_skips_exercises(checks, tmp_path):
    shutil.copytree(FOLDER, tmp_path, dirs_exist_ok=True)
    for name, wrong in (("1_weighted_sum", {}), ("2_row_softmax", {"p": "p = e"})):
        text = fill_in(checks, name, read_key(checks, name) | wrong)
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    options = "-p", "no:cacheprovider", "-k", "weighted or row or online"
    done = run_python("-m", "pytest", "-c", "pyproject.toml", tmp_path, *options)
    assert "1 failed, 1 passed, 1 skipped, 3 deselected" in done.stdout, done.stdout
    (shown,) = re.findall(r"unsolved: fill in .*", PAGE)
    assert shown in done.stdout
    assert "likely cause: the division by the sum of e is missing" in done.stdout
    assert "Traceback" not in done.stdout and "handling of" not in done.stdout

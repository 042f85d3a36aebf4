"""Checks of exercises pass for the solutions, and explain common mistakes."""

import ast
import importlib.util
import re
import shutil
import textwrap
import tomllib

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
FORGOTTEN = "l = l + tl.sum(tl.exp(x - m_new), 0)"
# By exercise: wrong lines, and a pattern that the message of the check has.
MISTAKES = tomllib.loads((ROOT / "tests/exercise_mistakes.toml").read_text("utf-8"))
CASES = [(name, *case) for name, cases in MISTAKES.items() for case in cases.items()]


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


def find_mistake(checks, name: str, wrong: str, path) -> str:
    """Return the check's message for a solution with these lines replaced."""
    replaced = {line.split()[0]: line for line in wrong.splitlines()}
    path.write_text(fill_in(checks, name, read_key(checks, name) | replaced), "utf-8")
    with pytest.raises(checks.Wrong) as found:
        checks.check(name, path)
    return str(found.value)


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

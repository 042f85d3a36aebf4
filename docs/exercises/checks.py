"""Check solutions of the exercises, and say in words what is wrong.

A check runs a solution on small inputs, the simplest first, and compares it with
PyTorch. It also computes what common mistakes give, and names the mistake that gives
the same wrong result.
"""

import ast
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import numpy
import torch
from torch import Tensor

HERE = Path(__file__).parent
# The width of a head, not of a tile, so that matmuls of swapped operands fail.
D = 64
PAST_THE_END = (
    "a load reads past the end, where this test has put NaN: give tl.load a mask, and "
    "`other` for what the mask leaves out; a row begins at row · stride"
)
OUTSIDE = (
    "an address outside of all tensors: check the indices of this program's rows and "
    "columns, and multiply each once by that tensor's own stride"
)
NO_OTHER = "what lies past the end makes NaN: give tl.load a mask, and -inf as `other`"
ROUNDED = 'tl.dot needs float32 and input_precision="ieee": else a GPU rounds to TF32'
NO_MAXIMUM = (
    "exp overflowed: subtract the largest number before exp, "
    "so that no exponent is positive"
)
BELOW_OTHER = (
    "all numbers of a row may be smaller than `other`, or than 0: `other` must be -inf,"
    " and only numbers of the row may be its largest"
)
WRONG_SIGN = (
    "the sign of an exponent: exp(m - m_new) shrinks what was summed so far; with the "
    "opposite sign the first tile has exp(+inf) · 0, which is NaN"
)
KEPT_LAST = "only the last tile counts: add to the sum so far, don't replace it"


class Unsolved(Exception):
    """An exercise still has a `...` to fill in."""


class Wrong(Exception):
    """A solution differs from PyTorch, or fails."""


def check(name: str, path: Path) -> None:
    """Raise `Unsolved` or `Wrong` unless the file solves the exercise of this name."""
    source = path.read_text("utf-8-sig", errors="replace")
    left = [f"{hole} (line {node.lineno})" for hole, node in holes(source)]
    if left:
        raise Unsolved(f"unsolved: fill in {', '.join(left)} of {path.name}")
    spec = spec_from_file_location(f"exercise_{name}", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        words = f"{path.name} stops when imported: {type(error).__name__}: {error}"
        raise Wrong(words) from error
    # NumPy, which interprets the kernels, warns of what is judged here anyway.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            CHECKS[name](module)
        except AttributeError as error:
            if error.obj is not module:
                raise
            raise Wrong(f"{path.name} has no function {error.name}") from None


def holes(source: str) -> Iterator[tuple[str, ast.stmt]]:
    """Yield (assigned name, statement) for each statement with a `...` to fill in."""
    for name, node in statements(parsed(source)):
        assert isinstance(node, ast.Assign | ast.AugAssign | ast.Return)
        value = node.value
        parts = value.elts if isinstance(value, ast.Tuple) else [value]
        if any(isinstance(x, ast.Constant) and x.value is ... for x in parts):
            yield name, node


def parsed(source: str) -> ast.Module:
    """Return the syntax tree. Raise `Wrong` if the source is not Python."""
    try:
        return ast.parse(source)
    except SyntaxError as error:
        raise Wrong(f"line {error.lineno or 1} is no Python: {error.msg}") from None


def statements(tree: ast.AST) -> Iterator[tuple[str, ast.stmt]]:
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[target]) | ast.AugAssign(target=target):
                yield ast.unparse(target), node
            case ast.Return(value=ast.expr()):
                yield "return", node


# Comparing ---------------------------------------------------------------------------

# Whether a load of the last solution has read NaN, which lies past the end.
strays: list[bool] = []


@contextmanager
def watched_memory(stray: str) -> Iterator[None]:
    """Check the kernels that run in this context. Raise IndexError for an address
    outside their tensors, which could crash Python, and ValueError for a matmul that
    isn't float32 or that a GPU rounds to TF32. Note in `strays` whether each load reads
    NaN, or raise `Wrong(stray)` for it if `stray` isn't "". Where a mask leaves out
    elements and there is no `other`, which is undefined on a GPU, load NaN.
    """
    # Import here, because TRITON_INTERPRET must be set before.
    from triton.runtime import interpreter

    builder = interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store
    dot, convert = builder.create_dot, interpreter._implicit_cvt
    memory = list[tuple[int, int]]()
    strays.clear()

    def noted(argument):
        if isinstance(argument, Tensor):
            storage = argument.untyped_storage()
            memory.append((storage.data_ptr(), storage.data_ptr() + storage.nbytes()))
        return convert(argument)

    def inside(pointers, mask):
        # Block pointers give the mask as a bare array.
        chosen = numpy.asarray(mask.data)
        addresses = pointers.data[chosen]
        within = [(first <= addresses) & (addresses < end) for first, end in memory]
        if not numpy.any(within, axis=0).all():
            raise IndexError(OUTSIDE)
        return chosen

    def watched_load(self, pointers, mask, other, *options, **named):
        chosen = inside(pointers, mask)
        loaded = load(self, pointers, mask, other, *options, **named)
        if loaded.data.dtype.kind == "f":
            read = loaded.data[chosen]
            strays.append(bool((read != read).any()))
            if stray and strays[-1]:
                raise Wrong(stray)
            if other is None:
                loaded.data[~chosen] = float("nan")
        return loaded

    def watched_store(self, pointers, value, mask, *options):
        inside(pointers, mask)
        return store(self, pointers, value, mask, *options)

    def watched_dot(self, a, b, sums, precision, *options):
        if a.data.dtype != numpy.float32 or precision.name != "IEEE":
            raise ValueError(ROUNDED)
        return dot(self, a, b, sums, precision, *options)

    watched = {"create_masked_load": watched_load, "create_masked_store": watched_store}
    watched["create_dot"] = watched_dot
    # Then torch.empty gives NaN, so what no program writes is wrong.
    torch.use_deterministic_algorithms(True)
    try:
        with patch.multiple(builder, **watched):
            with patch.object(interpreter, "_implicit_cvt", noted):
                yield
    finally:
        torch.use_deterministic_algorithms(False)


def run(solution: Callable, *inputs, tensors: int = 1, stray: str = ""):
    """Return solution(*inputs), which must be a tensor or `tensors` tensors. Raise
    `Wrong` if it isn't, or with the line at which it fails, or with the text `stray`,
    if there is one, at the first load of NaN.
    """
    try:
        with watched_memory(stray):
            found = solution(*inputs)
    except (Exception, SystemExit) as error:
        # The interpreter's own errors only repeat the one that they were raised from,
        # one for each function that called another.
        own, cause, lines = solution.__code__.co_filename, error, []
        while True:
            frames = traceback.extract_tb(cause.__traceback__)
            lines += [frame.lineno for frame in frames if frame.filename == own]
            if cause.__cause__ is None:
                break
            cause = cause.__cause__
        if isinstance(cause, Wrong):
            raise cause from None
        words = (
            f"the kernel stopped at line {lines[-1] if lines else '?'} of "
            f"{Path(own).name}: {type(cause).__name__}: {cause}"
        )
        if any(word in str(cause) for word in ("shape", "dimensions", "ranks")):
            words += (
                "\nlikely cause: tiles whose shapes don't fit. The comment above each "
                "line says which shape it gives; [:, None] makes a column of a vector"
            )
        raise Wrong(words) from error
    results = found if isinstance(found, tuple) else (found,)
    if [isinstance(result, Tensor) for result in results] != [True] * tensors:
        kinds = ", ".join(type(result).__name__ for result in results) or "nothing"
        belong = "a tensor belongs" if tensors == 1 else f"{tensors} tensors belong"
        raise Wrong(f"{solution.__name__} returned {kinds}, where {belong}")
    return found


def compare(
    where: str,
    name: str,
    found: Tensor,
    expected: Tensor,
    mistakes: dict[str, Tensor],
    not_finite: str = NO_MAXIMUM,
) -> None:
    """Raise `Wrong` unless `found` is close to `expected`. Name the first wrong entry
    and the likely cause: the key of `mistakes` whose value equals `found`.
    """
    found, expected = found.double(), expected.double()
    if found.shape != expected.shape:
        raise Wrong(
            f"{where}:\n{name} has shape {tuple(found.shape)}, "
            f"expected {tuple(expected.shape)}"
        )
    wrong = ~close(found, expected)
    if not wrong.any():
        if any(strays):
            raise Wrong(f"{where}:\n{name} is right, but {PAST_THE_END}")
        return
    causes = [words for words, tensor in mistakes.items() if close(found, tensor).all()]
    if not found.isfinite().all():
        misread = any(strays) and not_finite in (NO_MAXIMUM, NO_OTHER)
        causes.append(PAST_THE_END if misread else not_finite)
    causes.append(
        "none of the usual ones. Write print(...) into the kernel: the interpreter runs"
        " it"
    )
    first = tuple(wrong.nonzero()[0].tolist())
    raise Wrong(
        f"{where}:\n{name}, of shape {tuple(found.shape)}, is wrong in "
        f"{int(wrong.sum())} of {wrong.numel()} entries\n"
        f"first wrong entry: {name}[{', '.join(map(str, first))}], "
        f"expected {expected[first]:.6g}, found {found[first]:.6g}\n"
        f"likely cause: {causes[0]}"
    )


def close(x: Tensor, y: Tensor) -> Tensor:
    # float32, in sums of some dozen terms.
    return torch.isclose(x.double(), y.double(), rtol=1e-4, atol=1e-5)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def amid_nan(x: Tensor, room: int = 16) -> Tensor:
    """Return x in memory that has NaN after each row and after the last row."""
    memory = x.new_full([size + room for size in x.shape], float("nan"))
    inside = memory[tuple(slice(size) for size in x.shape)]
    return inside.copy_(x)


def between_nan(x: Tensor, room: int = 1024) -> Tensor:
    """Return x in contiguous memory that has NaN before and after it."""
    nan = x.new_full((room,), float("nan"))
    return torch.cat((nan, x.flatten(), nan))[room:-room].view(x.shape)


# The exercises -----------------------------------------------------------------------


def weighted_sum(module: ModuleType) -> None:
    cases = {
        "2 rows of 4 numbers, one whole tile": (2, 4),
        "2 rows of 12 numbers, three tiles": (2, 12),
        "5 rows of 10 numbers, so that tiles reach past the end": (5, 10),
        "5 rows of 9 very high or low numbers, where those of a row and of w lie "
        "apart": (5, 9),
    }
    for where, (n, d) in cases.items():
        x, w = amid_nan(normal(n, d)), amid_nan(normal(d))
        not_finite = PAST_THE_END
        if "apart" in where:
            x = 1e30 * x.abs() * (-1) ** torch.arange(n)[:, None]
            x, w = amid_nan(x.mT).mT, amid_nan(w[:, None])[:, 0]
            not_finite = (
                "a load went where this test has put NaN: multiply the columns by "
                "stride_xd in x, by stride_w in w"
            )
        last = (d - 1) // 4 * 4
        mistakes = {
            "the weights are missing: multiply by w": x.sum(1),
            KEPT_LAST: x[:, last:] @ w[last:],
            "the sign: add, don't subtract": -(x @ w),
        }
        y = run(module.weighted_sum, x, w)
        compare(where, "y", y, x.double() @ w.double(), mistakes, not_finite)


def row_softmax(module: ModuleType) -> None:
    cases = {
        "3 rows of 8 numbers, a whole tile": (normal(3, 8), NO_MAXIMUM),
        # Some are 0, as what another `other` leaves.
        "3 rows of 5 numbers, in a tile of 8": (normal(3, 5).round(), NO_OTHER),
        "3 rows of 8 numbers near 200, the last of them near 400": (
            (normal(3, 8) + 200 * (1 + (torch.arange(8) == 7)), NO_MAXIMUM)
        ),
        "3 rows of 5 numbers, all -2e38": (torch.full((3, 5), -2e38), BELOW_OTHER),
    }
    for where, (x, not_finite) in cases.items():
        x = amid_nan(x)
        zeros = x.new_zeros(3, 8 - x.shape[1])
        e = torch.exp(x - x.amax(1, keepdim=True))
        mistakes = {
            "what lies past the end counts: `other` must be -inf, for exp(0) is 1": (
                torch.cat([x, zeros], 1).softmax(1)[:, : x.shape[1]]
            ),
            "the sign of the exponent: x less the largest, not the other way round": (
                (-x).softmax(1)
            ),
            "the division by the sum of e is missing": e,
        }
        p = run(module.row_softmax, x)
        compare(where, "p", p, x.double().softmax(1), mistakes, not_finite)


def online_softmax(module: ModuleType) -> None:
    tile_of = torch.arange(12) // 4
    row, column = torch.arange(4)[:, None], torch.arange(9)
    highest = column == 3 + row // 2 * 5
    cases = {
        "2 rows of 4 numbers, one tile": normal(2, 4),
        "2 rows of 12 numbers, where each tile has a new largest one": (
            normal(2, 12) + 3 * tile_of
        ),
        "2 rows of 10 numbers, where the last tile reaches past the end": (
            normal(2, 10).round()
        ),
        "4 rows of 9 numbers, all above 100 or below -300, the fourth or the last 200 "
        "above the others": normal(4, 9) + 200 * highest + 200 - 800 * (row % 2),
        "2 rows of 10 numbers, all -2e38": torch.full((2, 10), -2e38),
    }
    for where, x in cases.items():
        x = amid_nan(x)
        e = torch.exp(x - x.amax(1, keepdim=True))
        tiles = x.split(4, 1)
        m = torch.cat([tile.amax(1, keepdim=True) for tile in tiles], 1).cummax(1)[0]
        own = torch.stack(
            [torch.exp(t - m[:, i, None]).sum(1) for i, t in enumerate(tiles)], 1
        )
        mistakes = {
            "the old sum is not rescaled: multiply it by exp(m - m_new)": (
                e / own.sum(1, keepdim=True)
            ),
            KEPT_LAST: e / own[:, -1:],
            "l sums exp(x): subtract m_new before exp": (
                e / torch.exp(x).sum(1, keepdim=True)
            ),
        }
        not_finite = WRONG_SIGN
        if "all" in where:
            not_finite = (
                "exp overflowed or gave only 0: m_new must be the largest of this tile "
                "and of all before it, so tl.maximum(m, ...), and no exp may come "
                "before it is subtracted"
            )
        p = run(module.online_softmax, x)
        compare(where, "p", p, x.double().softmax(1), mistakes, not_finite)


def scores_of(q: Tensor, k: Tensor, causal: bool) -> Tensor:
    s = q.double() @ k.double().T * q.shape[-1] ** -0.5
    later = torch.ones_like(s, dtype=torch.bool).triu(1)
    return s.masked_fill(later, float("-inf")) if causal else s


def walk(
    s: Tensor, v: Tensor, causal: bool, l_shrinks: bool = True, a_shrinks: bool = True
) -> tuple[Tensor, Tensor]:
    """Return (o, lse) by online softmax, 16 keys a tile; l or a may fail to shrink."""
    rows = []
    for i, row in enumerate(s):
        # A causal program ends with the tile on the diagonal.
        end = (i // 16 + 1) * 16 if causal else len(s)
        m, l, a = s.new_tensor(float("-inf")), s.new_zeros(()), torch.zeros_like(v[0])
        for j in range(0, end, 16):
            m_new = torch.maximum(m, row[j : j + 16].amax())
            shrink, p = torch.exp(m - m_new), torch.exp(row[j : j + 16] - m_new)
            l = l * (shrink if l_shrinks else 1) + p.sum()
            a = a * (shrink if a_shrinks else 1) + p @ v[j : j + 16]
            m = m_new
        rows.append((a / l, m + l.log()))
    o, lse = zip(*rows, strict=True)
    return torch.stack(o), torch.stack(lse)


# Lengths, whether causal, and what is special about the scores.
FAR = ", all scores of a row above 100 or below -100, "
FAR += "those of the first tile far from the others"
LENGTHS = ((16, False, ""), (48, False, ""), (48, True, ""), (48, False, FAR))
LENGTHS += ((48, True, FAR),)


def far_apart(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Return q and k whose scores are about 342 in two rows of four, -342 in the next
    two. With keys 0 to 7 they are 114 higher in even rows, 114 lower in odd ones; with
    keys 8 to 15, which a causal mask hides from the first rows, twice as much. In row 5
    all scores are about -2e37; in row 20 that of key 15 is 114 higher.
    """
    # Scores are exact: sums of multiples of 1/64, times a scale of 1/8.
    q, k = (8 * q).round() / 8, (8 * k).round() / 8
    row, key = torch.arange(q.shape[-2]), torch.arange(k.shape[-2])
    q[..., 0], k[..., 0] = 912.0 - 1824 * (row % 2), (key < 16) + 1.0 * (key // 8 == 1)
    q[..., 1], k[..., 1] = 2736.0 - 5472 * (row % 4 // 2), 1.0
    q[..., 5, 1] = -2e38
    q[..., 20, 2], k[..., 2] = 912.0, 1.0 * (key == 15)
    return q, k


def forward_loop(module: ModuleType) -> None:
    for n, causal, far in LENGTHS:
        mask = "with" if causal else "without"
        where = f"{n} queries and keys in tiles of 16, {mask} a causal mask{far}"
        q, k, v = (3 * normal(n, D + i)[:, :D].contiguous() for i in range(3))
        # Scores of 0 count, too.
        k[3] = 0
        unseen = "a query saw no key: it sees all keys up to its own (>=)"
        not_finite = unseen if causal else WRONG_SIGN
        if far:
            q, k, v = *far_apart(q / 3, k / 3), v / 9
            not_finite = (
                "exp overflowed or gave only 0: m_new is the largest of m and of this "
                "tile's scores, for each query: tl.maximum(m, tl.max(s, 1))"
            )
        s = scores_of(q, k, causal)
        unscaled = scores_of(q * D**0.5, k, causal)
        v64 = v.double()
        results = {
            "l is not rescaled: multiply what it has by shrink": (
                walk(s, v64, causal, l_shrinks=False)
            ),
            "a is not rescaled: multiply what it has by shrink[:, None]": (
                walk(s, v64, causal, a_shrinks=False)
            ),
            "neither l nor a is rescaled: when m rises, multiply both by shrink": (
                walk(s, v64, causal, l_shrinks=False, a_shrinks=False)
            ),
            "the scale is missing: multiply the scores by it": (
                walk(unscaled, v64, causal)
            ),
            "the causal mask is missing: scores of later keys must be -inf": (
                walk(diagonal_open(s, q, k), v64, causal)
            ),
            "all scores of a row may be very low: those of later keys must be -inf": (
                walk(s.nan_to_num(neginf=-1e9), v64, causal)
            ),
        }
        q, k, v = map(between_nan, (q, k, v))
        found = run(module.attention, q, k, v, causal, tensors=2)
        expected = (s.softmax(1) @ v64, s.logsumexp(1))
        for i, name in enumerate(("o", "lse")):
            mistakes = {words: result[i] for words, result in results.items()}
            compare(where, name, found[i], expected[i], mistakes, not_finite)


def diagonal_open(s: Tensor, q: Tensor, k: Tensor) -> Tensor:
    """Return scores whose causal mask leaves out the tiles on the diagonal."""
    query = torch.arange(len(s)) // 16
    seen = query[:, None] >= query[None, :]
    return torch.where(seen, scores_of(q, k, False), s)


def dq_loop(module: ModuleType) -> None:
    for n, causal, far in LENGTHS:
        mask = "with" if causal else "without"
        where = f"{n} queries and keys in tiles of 16, {mask} a causal mask{far}"
        q, k, v, do = (normal(n, D + i)[:, :D].contiguous() for i in range(4))
        q[3] = 0
        if far:
            q, k, v, do = *far_apart(q, k), v / 3, do / 3
        s = scores_of(q, k, causal)
        # p of the lse that the kernel gets, which float32 rounds.
        lse = s.logsumexp(1).float()
        p = torch.exp(s - lse.double()[:, None])
        dp = do.double() @ v.double().T
        delta = (p * dp).sum(1)
        ds = p * (dp - delta[:, None])
        last = [slice(n - 16, n)] * n
        if causal:
            last = [slice(i // 16 * 16, i // 16 * 16 + 16) for i in range(n)]
        k64, scale = k.double(), D**-0.5
        mistakes = {
            "delta is missing: ds is p (dp - delta)": (p * dp) @ k64 * scale,
            "the sign of delta: ds is p (dp - delta)": (
                (p * (dp + delta[:, None])) @ k64 * scale
            ),
            "the sign of ds, which is p (dp - delta)": -ds @ k64 * scale,
            "p is missing in ds, which is p (dp - delta)": (
                (dp - delta[:, None]) @ k64 * scale
            ),
            "lse is not subtracted: p is exp(s - lse)": (
                (s.exp() * (dp - delta[:, None])) @ k64 * scale
            ),
            "the scale counts twice: it is multiplied in at the end": (
                ds @ k64 * scale**2
            ),
            KEPT_LAST: (
                torch.stack([ds[i, t] @ k64[t] for i, t in enumerate(last)]) * scale
            ),
        }
        inputs = map(between_nan, (q, k, v, do, lse, delta.float()))
        dq = run(module.gradient_of_q, *inputs, causal)
        compare(
            where,
            "dq",
            dq,
            ds @ k64 * scale,
            mistakes,
            "exp overflowed or gave only 0: p is exp(s - lse), however large both are",
        )


def handout_kernel(module: ModuleType) -> None:
    apart = "with numbers of a row far apart"
    cases = {
        "1 batch entry of 32 queries and 48 keys": (1, 32, 48, False),
        f"3 batch entries of 64 queries and 48 keys, {apart}": (3, 64, 48, False),
        f"2 batch entries of 64 queries and keys, {apart}, with a causal mask{FAR}": (
            (2, 64, 64, True)
        ),
        f"2 batch entries of 64 queries and 48 keys, {apart}, with a causal mask": (
            (2, 64, 48, True)
        ),
        "64 queries and 80 keys, 16 of which no query may see": (1, 64, 80, True),
    }
    for where, (batch, n_q, n_k, causal) in cases.items():
        # The width, 64, is no size of a tile.
        q, k, v = (normal(batch, n, 64 + i) for i, n in enumerate((n_q, n_k, n_k)))
        q, k, v = (x[..., :64].contiguous() for x in (q, k, v))
        if FAR in where:
            q, k = far_apart(q, k)
        if apart in where:
            # Each stride of q, k and v differs from those of the others.
            steps = ((q, 16), (k, 24), (v, 32))
            q, k, v = (amid_nan(x.mT[..., None], y)[..., 0].mT for x, y in steps)
        else:
            q, k, v = map(between_nan, (q, k, v))
        expected = every_entry(q, k, v, causal)
        seen = n_q
        if causal and n_k > n_q:
            k[:, n_q:] = v[:, n_q:] = float("nan")
            # Only the first tile of queries shows whether it walks keys of the second.
            v[:, 32:n_q], seen = float("inf"), 32
        results = {
            f"every batch entry reads {name} of the first: add batch times the stride "
            "of the batch": every_entry(*tensors, causal)
            for name, tensors in (
                ("q", (first_of(q), k, v)),
                ("k", (q, first_of(k), v)),
                ("v", (q, k, first_of(v))),
            )
        }
        not_finite = (
            "a load went where this test has put NaN: use each tensor's own three "
            "strides; program 0 counts tiles of queries, program 1 batch entries"
        )
        stray = not_finite
        if n_k < n_q and causal:
            stray = "the loop goes past the last key: end is at most N_KEYS"
            padded = (torch.cat((x, 0 * x[:, :16]), 1) for x in (k, v))
            results[stray] = every_entry(q, *padded, causal)
        elif causal:
            ends = "the loop ends after the tile's last query, first + Q_TILE_SIZE"
            not_finite = f"a tile of queries saw no key: {ends}"
            if n_k > n_q:
                stray = not_finite = f"hidden keys are loaded: {ends}"
        stray = f"{where}:\n{stray}"
        found = run(module.attention, q, k, v, causal, tensors=2, stray=stray)
        for i, name in enumerate(("o", "l")):
            mistakes = {words: result[i][:, :seen] for words, result in results.items()}
            first, right = found[i][:, :seen], expected[i][:, :seen]
            compare(where, name, first, right, mistakes, not_finite)
    torch.manual_seed(0)
    q, k, v = (torch.randn(4, 128, 64) for _ in range(3))
    for causal in (False, True):
        o, l = run(module.attention, q, k, v, causal, tensors=2)
        expected = every_entry(q, k, v, causal)
        where = f"the course's own test, is_causal={causal}, in tiles of 64 queries"
        cause = "a size of a tile that is no argument: Q_TILE_SIZE was 32 before"
        for name, found, right in zip("ol", (o, l), expected, strict=True):
            compare(where, name, found, right, {cause: found}, cause)


def first_of(x: Tensor) -> Tensor:
    return x[:1].expand_as(x)


def every_entry(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Return o and the log-sum-exp of every batch entry, in float64."""
    s = torch.stack([scores_of(*pair, causal) for pair in zip(q, k, strict=True)])
    return s.softmax(-1) @ v.double(), s.logsumexp(-1)


# In the order in which they are solved.
CHECKS: dict[str, Callable[[ModuleType], None]] = {
    "1_weighted_sum": weighted_sum,
    "2_row_softmax": row_softmax,
    "3_online_softmax": online_softmax,
    "4_forward_loop": forward_loop,
    "5_dq_loop": dq_loop,
    "6_handout_kernel": handout_kernel,
}

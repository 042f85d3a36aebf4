"""Short names and categories of kernels, derived from the mangled or demangled names
that a profiler reports.

Names of library kernels include the operation (`ampere_sgemm_128x64_tn`). PyTorch's
generic kernels have the operation in a template argument, such as `exp_kernel_cuda`.
"""

import re
from functools import cache

CATEGORIES = (
    *("matmul", "softmax", "elementwise", "reduction"),
    *("copy", "optimizer", "attention", "other"),
)
MATMUL, SOFTMAX, ELEMENTWISE, REDUCTION, COPY, OPTIMIZER, ATTENTION, OTHER = CATEGORIES

# --8<-- [start:categories]
# (category, pattern of kernel names). The first match wins, so specific patterns come
# first: fused attention may use cutlass, and a copy may be an element-wise kernel.
RULES = (
    (OTHER, r"^nccl"),
    (ATTENTION, r"flash|fmha|sdpa|flex_attention|^(?:forward|delta|dkdv|dq)_kernel$"),
    (OPTIMIZER, r"adam|fusedsgd|lamb_"),
    (SOFTMAX, r"softmax"),
    (MATMUL, r"gemm|gemv|nvjet|cutlass|cublas|splitkreduce|triton_tem_|triton_mm"),
    # TorchInductor's names begin with the kind of kernel, then list fused operations.
    (REDUCTION, r"^triton_(?:red|per)_"),
    (ELEMENTWISE, r"^triton_poi_"),
    (
        COPY,
        r"memcpy|memset|copy_kernel|catarray|fillfunctor|gather|scatter|"
        r"index_elementwise|(?:large|small)index",
    ),
    (REDUCTION, r"reduc|layer_?norm|rms_?norm|cumsum|scan"),
    (ELEMENTWISE, r"elementwise|multi_tensor_apply|triu_tril|where_kernel"),
)
# --8<-- [end:categories]

# Patterns that find the operation in a generic kernel's name, the most specific first.
# `BinaryFunctor` and similar names are no operations: they wrap another functor.
WRAPPER = r"(?:Binary|BUnary|AUnary|Unary|Opaque|Compare)"
OPERATIONS = (
    r"(\w+?)_kernel_cuda",
    r"\b(?!gpu_)(\w+?)_kernel_impl",
    r"CUDAFunctor(?:On\w+)?_(\w+)",
    rf"\b(?!{WRAPPER}Functor)(\w+?)_?[Ff]unctor(?:_t)?\b",
    r"(\w+?)Ops\b",
    r"(\w+?)_?[Ff]unctor",
)
GENERIC_KERNEL = re.compile(
    r"\b(\w*elementwise\w*kernel\w*|reduce_kernel|multi_tensor_apply_kernel)\b"
)
GENERIC_KINDS = {"reduce_kernel": "reduce", "multi_tensor_apply_kernel": "multi-tensor"}
# Matches a kernel's name up to its template or call arguments.
PLAIN_NAME = re.compile(r"[^<(:]*")
SCHEDULED_NAME = re.compile(r"(.*_tilesize\w+?)_(?:stage|warpgroup|warpsize|cluster).*")
# Readable forms of the abbreviated operations in kernel names.
OPERATION_NAMES = {
    "direct_copy": "copy",
    "bfloat16_copy": "copy to bf16",
    "launch_clamp_scalar": "clamp",
    "func_wrapper": "sum",
}
MAX_LENGTH = 72


def kernel_category(name: str, path: tuple[str, ...] = ()) -> str:
    """Return a kernel's category in CATEGORIES: "softmax" or "optimizer" if that word
    is in the last name in `path` (kernels there have generic names), else by `name`.
    """
    for word in (OPTIMIZER, SOFTMAX):
        if path and word in path[-1]:
            return word
    return _category_by_name(name)


@cache
def _category_by_name(name: str) -> str:
    words = demangle(name).lower()
    matches = (category for category, pattern in RULES if re.search(pattern, words))
    return next(matches, OTHER)


@cache
def short_name(name: str) -> str:
    """Return a kernel's name in at most 72 characters, such as `elementwise exp` or
    `ampere_sgemm_128x64_tn`. Names of xmma kernels end after the tile size.
    """
    text = demangle(name)
    if text == name and PLAIN_NAME.fullmatch(name):
        return _drop_schedule(name)[:MAX_LENGTH]
    if generic := GENERIC_KERNEL.search(text):
        if generic[1].startswith("index"):
            return "index"
        if generic[1].startswith("_scatter"):
            return "scatter or gather"
        kind = GENERIC_KINDS.get(generic[1], "elementwise")
        # The operation is in the arguments, after the name of the generic kernel.
        operation = _find_operation(text[generic.end() :])
        return f"{kind} {operation}".strip()[:MAX_LENGTH]
    if inner := re.search(r"\b(cutlass\w*(?:gemm|fprop|wgrad)\w*)", text):
        return inner[1][:MAX_LENGTH]
    clean = re.sub(r"\(anonymous namespace\)::", "", text)
    if clean.startswith(("Memcpy", "Memset")):
        return clean.split(" (")[0]
    # Remove template and call arguments, return type and namespaces.
    base = re.split(r"[<(]", clean.removeprefix("void "))[0].strip()
    return (re.split(r"::| ", base)[-1] or clean)[:MAX_LENGTH]


def _drop_schedule(name: str) -> str:
    """Cut an xmma kernel's name after its tile size; add "split-K sum" if it is one."""
    if match := SCHEDULED_NAME.fullmatch(name):
        return match[1] + " split-K sum" * ("_execute_split_k_kernel" in name)
    return name


def _find_operation(arguments: str) -> str:
    for pattern in OPERATIONS:
        if match := re.search(pattern, arguments):
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", match[1]).lower().strip("_")
            return OPERATION_NAMES.get(words, words.replace("_", " "))
    return ""


@cache
def demangle(name: str) -> str:
    """Join a mangled C++ name's identifiers by spaces; return other names unchanged."""
    if not name.startswith("_Z"):
        return name
    words, position = [], 2
    # Skip literals, substitutions and template parameters; their digits aren't lengths.
    token = re.compile(r"L[a-z]n?\d+E|[ST][0-9A-Z]*_|(?P<length>\d+)|.", re.DOTALL)
    while position < len(name):
        match = token.match(name, position)
        assert match is not None
        position = match.end()
        if match["length"]:
            word = name[position : position + int(match["length"])]
            position += len(word)
            # Skip the names of anonymous namespaces.
            if not word.startswith(("_GLOBAL__N", "_INTERNAL")):
                words.append(word)
    return " ".join(words) or name

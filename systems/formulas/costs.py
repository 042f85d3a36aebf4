"""Costs of a model by formula (parameters, FLOPs, bytes), the peak rates of GPUs, and
the lower bounds on time that follow. Tests compare the FLOPs with PyTorch's counts.
"""

from dataclasses import dataclass
from typing import Any

FP32_BYTES = 4
INT64_BYTES = 8


# --8<-- [start:parameters]
def parameters_by_part(
    *, vocab_size: int, d_model: int, d_ff: int, num_layers: int, **_: int
) -> dict[str, int]:
    """Return the number of parameters by part of the model. With vocabulary V, width d
    and L layers, the sum is 2·V·d + L·(4·d² + 3·d·d_ff + 2·d) + d.
    """
    return {
        "embedding": vocab_size * d_model,
        "attention": num_layers * 4 * d_model**2,
        "feed_forward": num_layers * 3 * d_model * d_ff,
        "norms": num_layers * 2 * d_model + d_model,
        "head": vocab_size * d_model,
    }
    # --8<-- [end:parameters]


# --8<-- [start:flops]
def forward_flops(
    *,
    vocab_size: int,
    d_model: int,
    d_ff: int,
    num_layers: int,
    context: int,
    batch: int,
    **_: int,
) -> dict[str, int]:
    """Return the FLOPs of the matmuls in one forward pass, by part.

    A matmul of (m, k) by (k, n) takes 2·m·n·k FLOPs, so a weight matrix costs 2 FLOPs
    per parameter and token. Attention's Q Kᵀ and P V take 2·s²·d each per sequence and
    layer, including the masked half. All other operations add at most two percent of
    FLOPs at contexts up to 16,384.
    """
    # --8<-- [start:products]
    tokens = batch * context
    return {
        "projections": tokens * num_layers * 2 * 4 * d_model**2,
        "feed_forward": tokens * num_layers * 2 * 3 * d_model * d_ff,
        "attention": batch * num_layers * 2 * 2 * context**2 * d_model,
        "head": tokens * 2 * d_model * vocab_size,
    }
    # --8<-- [end:products]


# For each matmul C = A B, the backward pass has two: dA = dC Bᵀ and dB = Aᵀ dC.
BACKWARD_OVER_FORWARD = 2
# --8<-- [end:flops]


def pass_flops(forward: int, *phases: str) -> int:
    """Sum matmul FLOPs of phases: `forward` for "forward", twice it for "backward"."""
    per_phase = {"forward": 1, "backward": BACKWARD_OVER_FORWARD}
    return forward * sum(per_phase.get(phase, 0) for phase in phases)


# --8<-- [start:attention_saved]
def attention_saved_bytes(
    *, batch: int, n: int, d: int, element_bytes: int, causal: bool
) -> dict[str, int]:
    """Return the bytes by tensor that eager attention saves, besides q, k and v."""
    rows = batch * n
    return {
        "exponentials (b, n, n)": rows * n * element_bytes,
        "probabilities (b, n, n)": rows * n * element_bytes,
        "row sums (b, n)": rows * element_bytes,
        "positions of the maxima (b, n)": rows * INT64_BYTES,
        **({"mask (n, n)": n * n} if causal else {}),
        "output (b, n, d)": rows * d * element_bytes,
    }
    # --8<-- [end:attention_saved]


# --8<-- [start:attention_peak]
def attention_peak_bytes(
    *, batch: int, n: int, d: int, element_bytes: int, causal: bool
) -> dict[str, int]:
    """Return the bytes of all tensors at the peak of eager attention, by tensor.

    The peak is in the backward pass of softmax's division p = e / l, where e are the
    exponentials and l their row sums. Computing dl, the row sums of -dp · e / l²,
    keeps six (n, n) matrices alive: e and the five below.
    """
    rows = batch * n
    matrices = ("dp", "e / l", "e / l²", "-dp", "-dp · e / l²")
    saved = attention_saved_bytes(
        batch=batch, n=n, d=d, element_bytes=element_bytes, causal=causal
    )
    del saved["probabilities (b, n, n)"]
    return {
        **saved,
        **{f"{name} (b, n, n)": rows * n * element_bytes for name in matrices},
        "q, k, v, do and dv (b, n, d)": 5 * rows * d * element_bytes,
    }
    # --8<-- [end:attention_peak]


# --8<-- [start:attention]
# Number of matmuls with an (n, n) matrix. Forward: S = Q Kᵀ and O = P V. Backward: S
# (recomputed), dP, dV, dK and dQ.
ATTENTION_MATMULS = {"forward": 2, "backward": 5, "both": 7}


def count_scores(*, batch: int, heads: int, n: int, causal: bool) -> int:
    """Return the number of attention scores: n² per head, half that if causal."""
    return batch * heads * n**2 // (2 if causal else 1)


def attention_flops(name: str, *, d: int, **shape: Any) -> int:
    """Return the matmul FLOPs of pass `name`: "forward", "backward" or "both"."""
    return ATTENTION_MATMULS[name] * 2 * d * count_scores(**shape)
    # --8<-- [end:attention]


# --8<-- [start:kernels]
@dataclass(frozen=True)
class KernelWork:
    """Least work of a kernel: matmuls and exponentials per score, tensors per head."""

    matmuls: int
    exponentials: int
    # Tensors (n, d) in the inputs' dtype, and fp32 vectors (n), moved for each head.
    tensors: int
    vectors: int
    # Keys per tile if each tile of keys adds a partial dQ in fp32 to HBM; 0 otherwise.
    keys_per_share: int = 0


# Reads of dO don't count: dO is the gradient of o.sum(), an expanded scalar.
KERNELS = {
    "forward": KernelWork(matmuls=2, exponentials=1, tensors=4, vectors=1),
    "dkdv": KernelWork(matmuls=4, exponentials=1, tensors=5, vectors=2),
    # The kernel "dq" also computes delta, the row sums of O · dO.
    "dq": KernelWork(matmuls=3, exponentials=1, tensors=5, vectors=3),
    "delta": KernelWork(matmuls=0, exponentials=0, tensors=1, vectors=1),
    # dQ in fp32 counts as two tensors. The kernel "round" converts it to 16 bits.
    "one_pass": KernelWork(
        matmuls=5, exponentials=1, tensors=7, vectors=2, keys_per_share=128
    ),
    "round": KernelWork(matmuls=0, exponentials=0, tensors=3, vectors=0),
}
# --8<-- [end:kernels]


# --8<-- [start:attention_parts]
def attention_part_costs(
    *,
    context: int,
    batch: int,
    d_model: int,
    num_layers: int,
    num_heads: int,
    element_bytes: int,
    **_: int,
) -> dict[str, tuple[int, int]]:
    """Return (FLOPs, bytes moved) of each part of eager attention in a forward pass,
    over all layers and heads.

    A matmul reads its operands and writes its result once. For n scores, the five
    kernels of softmax move 8 n elements and take 5 n FLOPs, and the two kernels of the
    mask move 4 n elements. Vectors with one number per row are neglected.
    """
    layers = num_layers * batch
    n, head_dim = layers * num_heads * context**2, d_model // num_heads
    inputs = layers * context * d_model
    return {
        "attention scores": (2 * n * head_dim, element_bytes * (2 * inputs + n)),
        "attention mask": (n, element_bytes * 4 * n),
        "attention softmax": (5 * n, element_bytes * 8 * n),
        "attention output": (2 * n * head_dim, element_bytes * (2 * inputs + n)),
    }
    # --8<-- [end:attention_parts]


@dataclass(frozen=True)
class Peak:
    """Dense peak rates in FLOP/s and bandwidth in bytes/s from a GPU's data sheet."""

    fp32: float
    tf32: float
    bf16: float
    bandwidth: float


# --8<-- [start:peaks]
# From NVIDIA's data sheets (B200: an eighth of the DGX B200). Rates are for dense
# matmuls, half of the rates "with sparsity". A device's whole name must match, because
# vGPUs, MIG slices and laptop, Ti or D variants have other rates.
PEAKS = {
    "nvidia-h200-nvl": Peak(60e12, 417.5e12, 835.5e12, 4.8e12),
    "nvidia-h200": Peak(67e12, 494.5e12, 989.5e12, 4.8e12),
    "nvidia-h100-pcie": Peak(51e12, 378e12, 756e12, 2.0e12),
    "nvidia-h100-nvl": Peak(60e12, 417.5e12, 835.5e12, 3.9e12),
    "nvidia-h100-80gb-hbm3": Peak(67e12, 494.5e12, 989.5e12, 3.35e12),
    "nvidia-a100-sxm4-40gb": Peak(19.5e12, 156e12, 312e12, 1.555e12),
    "nvidia-a100-sxm4-80gb": Peak(19.5e12, 156e12, 312e12, 2.039e12),
    "nvidia-a100-pcie-40gb": Peak(19.5e12, 156e12, 312e12, 1.555e12),
    "nvidia-a100-80gb-pcie": Peak(19.5e12, 156e12, 312e12, 1.935e12),
    "nvidia-b200": Peak(75e12, 1.1e15, 2.25e15, 8.0e12),
    "nvidia-l4": Peak(30.3e12, 60e12, 121e12, 300e9),
    "nvidia-l40s": Peak(91.6e12, 183e12, 362e12, 864e9),
    # From NVIDIA's architecture white papers: rates with accumulation in fp32.
    "nvidia-geforce-rtx-3090": Peak(35.6e12, 35.6e12, 71e12, 936e9),
    "nvidia-geforce-rtx-4090": Peak(82.6e12, 82.6e12, 165.2e12, 1.008e12),
    "nvidia-geforce-rtx-5090": Peak(104.8e12, 104.8e12, 209.5e12, 1.792e12),
}
# --8<-- [end:peaks]


@dataclass(frozen=True)
class Work:
    """The work of an operation: FLOPs, and bytes read from or written to HBM."""

    flops: int
    moved_bytes: int

    @property
    def intensity(self) -> float:
        """The arithmetic intensity in FLOPs per byte."""
        return self.flops / self.moved_bytes


# --8<-- [start:floor]
def floor_seconds(work: Work, peak: Peak, precision: str) -> float:
    """Return the larger of compute and memory time at peak rates, in seconds."""
    arithmetic = work.flops / getattr(peak, precision)
    memory = work.moved_bytes / peak.bandwidth
    return max(arithmetic, memory)
    # --8<-- [end:floor]


def ridge_intensity(peak: Peak, precision: str) -> float:
    """Return the ridge point: FLOPs per byte above which work is compute-bound."""
    return getattr(peak, precision) / peak.bandwidth


def matmul_work(m: int, n: int, k: int, element_bytes: int) -> Work:
    """Return the work of an (m, k) by (k, n) matmul that moves each matrix once."""
    return Work(2 * m * n * k, element_bytes * (m * k + k * n + m * n))

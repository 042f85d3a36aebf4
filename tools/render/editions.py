"""Names of model sizes (which differ in the CS336 handout of 2026) and of metrics."""

from systems.records.record import PHASES

# Tooltips for readers of the handout of 2026.
SIZE_NOTES = {
    "xl": "CS336 of 2026 has no such size: its xl is our 2.7B.",
    "2.7B": "CS336 of 2026 calls this size xl.",
}
# Labels with a size's names in both handouts.
LABELS = {"xl": "xl (2026: none)", "2.7B": "2.7B (2026: xl)"}
PARTS = {x: x for x in PHASES} | {"both": "forward and backward", "step": "whole step"}
TENSORS = ("o", "lse", "dq", "dk", "dv", "y", "dx", "dw")
# The metrics in the explorer, and their names on its page.
METRICS = {
    **{f"{part}_ms": name for part, name in PARTS.items()},
    **{f"{part}_gpu_ms": f"{name}, GPU time" for part, name in PARTS.items()},
    **{f"{phase}_gpu_busy_ms": f"{phase}, GPU time" for phase in PHASES},
    **{f"nsys_{phase}_gpu_busy_ms": f"{phase}, GPU time by nsys" for phase in PHASES},
    **{f"torch_{phase}_gpu_busy_ms": f"{phase}, GPU time" for phase in PHASES},
    "time_ms": "time",
    "time_gpu_ms": "GPU time",
    # Reported records have means instead of samples.
    **{f"{part}_mean_ms": name for part, name in PARTS.items()},
    "total_mean_ms": "forward and backward",
    "training_step_mean_ms": "whole step",
    "peak_allocated_bytes": "peak memory",
    "peak_reserved_bytes": "reserved memory",
    "peak_requested_bytes": "requested memory",
    "before_backward_bytes": "memory before backward",
    "forward_flops": "forward FLOPs",
    "forward_kernels": "kernels in forward",
    "backward_kernels": "kernels in backward",
    "ran": "kernels that ran",
    "relative_error": "error",
    **{f"{one}_relative_error": f"error of {one}" for one in TENSORS},
    "repeats": "bitwise reproducible",
    "device_result": "sum",
    "result": "sum",
}

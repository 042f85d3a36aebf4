"""Tables and facts of `flash_accuracy`: errors against float64, ours beside PyTorch's."""

import math

from systems.records.record import Record, Row
from tools.render.markdown import fact, per_device, table

RESULTS = ("o", "lse", "dq", "dk", "dv")
NAMES = {
    "triton": "ours, Triton",
    "torch": "ours, PyTorch tiles",
    "plain": "plain attention",
    "sdpa_flash": "SDPA, FlashAttention-2",
    "sdpa_cudnn": "SDPA, cuDNN",
    "sdpa_efficient": "SDPA, memory-efficient",
    "sdpa_math": "SDPA, math",
}


def fragments(records: list[Record]) -> dict[str, str]:
    """Errors at d = 64, N = 4096; how ours compare with plain attention over the grid;
    everything.
    """
    return {
        "table.md": per_device(
            records, lambda r: error_table(r, d=64, n=4096, causal="yes")
        ),
        "ratios.md": per_device(records, ratio_table),
        "all.md": per_device(records, error_table),
    }


def error_table(record: Record, **wanted: object) -> str:
    rows = []
    for row in record.rows:
        if wanted.items() <= row.config.items():
            c = row.config
            cells = [
                f"{error(row, name):.1e}" if error(row, name) is not None else ""
                for name in RESULTS
            ]
            if row.status != "ok":
                cells[0] = row.status.replace("_", " ")
            rows.append(
                [
                    NAMES[c["implementation"]],
                    c["dtype"],
                    str(c["d"]),
                    str(c["n"]),
                    c["causal"],
                    *cells,
                ]
            )
    return table(
        ["implementation", "dtype", "d", "N", "causal", *RESULTS], rows, left=2
    )


def error(row: Row | None, name: str) -> float | None:
    return row.metrics.get(f"{name}_relative_error") if row is not None else None


def ratios(
    record: Record, implementation: str, dtype: str, results: tuple[str, ...] = RESULTS
) -> list[float]:
    """Error of an implementation over that of plain attention in the same dtype, for
    each result and configuration.

    lse counts in fp32 alone: plain attention in 16 bits rounds it to 16 bits, which
    ours never do.
    """
    compared = [name for name in results if name != "lse" or dtype == "fp32"]
    found = []
    for row in record.rows:
        if (
            row.config["implementation"] == implementation
            and row.config["dtype"] == dtype
        ):
            plain = record.row(row.config | {"implementation": "plain"})
            pairs = ((error(row, name), error(plain, name)) for name in compared)
            found += [
                ours / theirs for ours, theirs in pairs if ours is not None and theirs
            ]
    return found


def ratio_table(record: Record) -> str:
    rows = []
    for name, label in NAMES.items():
        for dtype in ("fp32", "fp16", "bf16"):
            found = ratios(record, name, dtype)
            if found and name != "plain":
                middle = math.exp(sum(map(math.log, found)) / len(found))
                rows.append(
                    [
                        label,
                        dtype,
                        f"{min(found):.2f}",
                        f"{middle:.2f}",
                        f"{max(found):.2f}",
                        str(len(found)),
                    ]
                )
    return table(
        [
            "implementation",
            "dtype",
            "least",
            "geometric mean",
            "most",
            "results compared",
        ],
        rows,
        left=2,
    )


def facts(record: Record | None) -> dict[str, str]:
    """The worst error of ours over plain attention's, by dtype; in fp32 also without
    the log-sum-exp.
    """

    def worst(dtype: str, results: tuple[str, ...] = RESULTS) -> str:
        found = ratios(record, "triton", dtype, results) if record else []
        return fact(max(found, default=None), "{:.2f}".format)

    without_lse = tuple(name for name in RESULTS if name != "lse")
    return {
        **{f"worst_{dtype}": worst(dtype) for dtype in ("fp32", "fp16", "bf16")},
        "worst_fp32_without_lse": worst("fp32", without_lse),
    }

"""What the source notes report of their profiles, table by table, with what a reader
must know about each.
"""

from systems.records.record import Record, Row
from tools.render.markdown import per_device, table

# By `config["table"]` of the rows: the header, and the metrics of each column.
TABLES = {
    "forward_kernel": (
        [
            "size",
            "context",
            "top kernel",
            "share",
            "calls, in several passes",
            "all `sgemm`",
        ],
        ("kernel", "share", "calls", "matmul_share"),
    ),
    "both_kernel": (["size", "context", "kernel", "share"], ("kernel", "share")),
    "other_kernel": (["size", "context", "kernel", "share"], ("kernel", "share")),
    "softmax": (
        [
            "size",
            "context",
            "fused softmax, ms",
            "share",
            "all products of the model, ms",
            "share of products",
        ],
        ("softmax_ms", "softmax_share", "products_ms", "matmul_share"),
    ),
    "ranges": (
        [
            "size",
            "context",
            "launching forward, ms",
            "launching backward and waiting, ms",
            "both, ms",
        ],
        ("forward_ms", "backward_ms", "both_ms"),
    ),
    "wall": (["size", "context", "wall, ms", "“nsys”, ms"], ("wall_ms", "range_ms")),
    "parts": (["size", "context", "part", "ms"], ("part", "ms")),
}


def fragments(reported: list[Record]) -> dict[str, str]:
    return {
        f"reported-{name.replace('_', '-')}.md": per_device(
            reported, lambda r, name=name: reported_table(r, name)
        )
        for name in TABLES
    }


def reported_table(record: Record, name: str) -> str:
    header, keys = TABLES[name]
    rows = [row for row in record.rows if row.config["table"] == name]
    lines = [
        [shown(row.config["size"]), shown(row.config["context"]), *cells(row, keys)]
        for row in rows
    ]
    return table(header, lines, left=3) if lines else ""


def cells(row: Row, keys: tuple[str, ...]) -> list[str]:
    if row.status != "ok":
        return [row.status.replace("_", " "), *[""] * (len(keys) - 1)]
    return [shown(row.metrics.get(key)) for key in keys]


def shown(value: object) -> str:
    return "not said" if value is None else str(value)

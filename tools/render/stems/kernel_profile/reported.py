"""What the source notes report of their profiles, table by table, with what a reader
must know about each.
"""

from systems.records.record import Record
from tools.render.markdown import columns, per_device
from tools.render.rows import Cell, cells

KERNEL = {"kernel": "kernel", "share": "share"}
# By `config["table"]` of the rows: the head of each metric's column.
TABLES = {
    "forward_kernel": {
        "kernel": "top kernel",
        "share": "share",
        "calls": "calls",
        "matmul_share": "all `sgemm`",
    },
    "both_kernel": KERNEL,
    "other_kernel": KERNEL,
    "softmax": {
        "softmax_ms": "fused softmax, ms",
        "softmax_share": "share",
        "products_ms": "all products of the model, ms",
        "matmul_share": "share of products",
    },
    "ranges": {
        "forward_ms": "launching forward, ms",
        "backward_ms": "launching backward and waiting, ms",
        "both_ms": "both, ms",
    },
    "wall": {"wall_ms": "wall, ms", "range_ms": "“nsys”, ms"},
    "parts": {"part": "part", "ms": "ms"},
}


def fragments(reported: list[Record]) -> dict[str, str]:
    return {
        f"reported-{name.replace('_', '-')}.md": per_device(
            reported, lambda r, name=name: reported_table(r, name)
        )
        for name in TABLES
    }


def reported_table(record: Record, name: str) -> str:
    def config(key: str):
        return key, lambda c: shown(c.config[key])

    def metric(key: str):
        return lambda c: shown(c.get(key, None)) if c else c.missing

    described = [(head, metric(key)) for key, head in TABLES[name].items()]
    found: list[Cell] = cells(record, table=name)
    return columns(found, config("size"), config("context"), *described, left=3)


def shown(value: object) -> str:
    return "not said" if value is None else str(value)

"""Tables, figures and facts of `peak_memory`."""

from systems.records import Record
from tools.render.markdown import NOT_MEASURED, gib


def fragments(records: list[Record]) -> dict[str, str]:
    return {}


def facts(record: Record | None) -> dict[str, str]:
    row = record.find(size="2.7B", context=512, mode="step", precision="fp32") if record else None
    ok = row is not None and row.status == "ok"
    return {"step_512_fp32": f"{gib(row.metrics['peak_allocated_bytes'])} GiB" if ok and row else NOT_MEASURED}

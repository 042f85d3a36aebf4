"""What docs/index.md shows: memory over a step, a few bars for each question, and every
page of the navigation.
"""

import re
from collections.abc import Mapping
from typing import Any

import yaml

from systems import ROOT
from systems.formulas.memory_costs import Pass, weight_bytes
from systems.model.sizes import TABLE_1
from tools.render.drawing import SMALL, Drawing
from tools.render.load import Found, PlainYaml, ours
from tools.render.markdown import Markup, gib, in_words, nothing_of
from tools.render.rows import NOT_MEASURED, Missing, say
from tools.render.standalone import by_itself
from tools.render.stems.end_to_end.rows import steps
from tools.render.stems.peak_memory.figures import timeline_figure
from tools.render.stems.peak_memory.rows import at

WIDTH, ROW = 250, 24
HOOK = (
    "The drawing counts the bytes that tensors asked for; the allocator rounds them up "
    'to {allocated}. <a href="peak_memory.html">Peak memory</a> explains each '
    "part."
)
Facts = Mapping[str, Mapping[str, str]]
Bar = tuple[str, float, str]


def fragments(found: Found, facts: Facts) -> dict[str, str]:
    """`index-hook.md`, the same by itself in `index-hook.svg`, `index-pages.md`, and
    bars: `index-speed.md`, `-bytes.md` and `-kernels.md`.
    """
    shown = hook(found)
    return {
        "index-pages.md": pages(),
        "index-hook.md": shown,
        "index-hook.svg": by_itself(shown),
        "index-speed.md": bars(
            "Speed-up of a bf16 training step over fp32, by model size", speed(found)
        ),
        "index-bytes.md": bars(
            "Memory above the inputs of attention over 65,536 tokens",
            of_facts(
                facts.get("flash_benchmarking", {}),
                ("plain", "memory_plain_bf16"),
                ("ours", "memory_ours_bf16"),
            ),
        ),
        "index-kernels.md": bars(
            "Time of forward and backward of attention over cuDNN's, by tokens",
            [
                ("cuDNN", 1.0, "1"),
                *of_facts(
                    facts.get("flash_peers", {}),
                    ("at 16,384", "test_over_cudnn"),
                    ("at 128", "short_over_cudnn"),
                ),
            ],
        ),
    }


def hook(found: Found) -> str:
    """The timeline of the primary GPU; nothing where it was not measured."""
    record = ours(found, "peak_memory")
    allocated = at(record, 512, "step", "fp32").allocated
    weights = weight_bytes(Pass("2.7B", 512, "step", "fp32"))
    finding = (
        f"Of what a training step of 2.7B ({weights / 4e9:.1f} billion parameters, in "
        f"spite of its name) holds at its peak in fp32, {gib(weights)} GiB are "
        "weights; optimizer state is twice that, and saved activations are most of the "
        "rest."
    )
    rounded = in_words(say(allocated, lambda v: f"{gib(v)} GiB"))
    more = Markup(HOOK.format(allocated=rounded))
    drawn = timeline_figure(record, "step", finding, more) if record else ""
    return drawn or nothing_of([record] if record else [])


def pages() -> str:
    """The navigation of mkdocs.yml as a list, but for this page."""
    config = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), PlainYaml)
    return "\n".join(listed(config["nav"], "1.")) + "\n"


def listed(entries: list[Any], mark: str, indent: str = "") -> list[str]:
    """One line for each entry, those below a title indented."""
    lines = []
    for entry in entries:
        ((title, below),) = entry.items()
        if isinstance(below, list):
            lines += [
                f"{indent}{mark} {title}",
                "",
                *listed(below, "-", indent + "    "),
            ]
        elif below != "index.md":
            lines.append(f"{indent}{mark} [{title}]({below})")
    return [*lines, ""]


def speed(found: Found) -> list[Bar]:
    """fp32 over bf16 for a training step at context 512, from the smallest model up."""
    record = ours(found, "end_to_end")
    bf16 = steps(record).where(context=512, precision="bf16")
    gains = {size: bf16.one(size=size)["gain"] for size in TABLE_1}
    return [(size, gain, say(gain, "{:.1f} ×")) for size, gain in gains.items()]


def of_facts(facts: Mapping[str, str], *named: tuple[str, str]) -> list[Bar]:
    """A bar shows what a sentence says."""
    found = []
    for label, name in named:
        told = facts.get(name, NOT_MEASURED)
        number = re.match(r"[\d,.]*\d", told)
        value = float(number[0].replace(",", "")) if number else Missing()
        found.append((label, value, told))
    return found


def bars(alt: str, shown: list[Bar]) -> str:
    """One line each, to the scale of the longest."""
    d = Drawing(WIDTH)
    known = [value for _, value, _ in shown if not isinstance(value, Missing)]
    left, right = 60, 84
    for i, (label, value, text) in enumerate(shown):
        y = ROW * i
        d.text(0, y + 15, label, SMALL)
        length = 0.0
        if not isinstance(value, Missing):
            length = max((WIDTH - left - right) * value / max(known), 1)
            d.box(left, y + 3, length, ROW - 8, "fill-blue")
        d.text(left + length + 6, y + 15, text, SMALL, bold=True)
    told = ", ".join(f"{label} {text}" for label, _, text in shown)
    return f'<div class="bars">\n{d.svg(f"{alt}: {told}.", "small")}\n</div>\n'

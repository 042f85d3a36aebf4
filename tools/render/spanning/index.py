"""The figures of docs/index.md: memory over a step, and a few bars for each question;
and in which edition of the assignment each problem stands.
"""

import re
from collections.abc import Mapping

from systems import ROOT
from systems.model.sizes import TABLE_1
from tools.render.drawing import SMALL, Drawing
from tools.render.load import Found, ours
from tools.render.markdown import Markup, captioned, nothing_of, table
from tools.render.rows import NOT_MEASURED, Missing, say
from tools.render.spanning.writeup import load_problems
from tools.render.stems.end_to_end.gains import speedup
from tools.render.stems.peak_memory.figures import timeline_figure

WIDTH, ROW = 250, 24
TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
ASSETS = ROOT / "docs" / "assets"
VALUE = re.compile(r"^ +(--[\w-]+): (#\w+);$", re.MULTILINE)
# Of each colour of the pages the light one, and the dark one.
COLORS: dict[str, list[str]] = {}
for sheet in ("site.css", "drawings.css"):
    for name, value in VALUE.findall((ASSETS / sheet).read_text(encoding="utf-8")):
        COLORS.setdefault(name, []).append(value)
HOOK = Markup(
    "A training step of the largest model in bytes as asked for, a little less than "
    'what the allocator counts; <a href="peak_memory.html">Who holds the memory</a> '
    "explains each part."
)
Facts = Mapping[str, Mapping[str, str]]
FIGURE = re.compile(r"<svg\b([^>]*)>(.*?)</svg>", re.DOTALL)
USED = re.compile(r"var\((--[\w-]+)\)")
GROUND = "--md-default-bg-color"
Bar = tuple[str, float, str]


def fragments(found: Found, facts: Facts) -> dict[str, str]:
    """`index-hook.md`, the same by itself in `index-hook.svg`, `index-editions.md`, and
    bars: `index-speed.md`, `-bytes.md` and `-kernels.md`."""
    shown = hook(found, facts.get("peak_memory", {}))
    return {
        "index-hook.md": shown,
        "index-hook.svg": by_itself(shown),
        "index-editions.md": editions(),
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


def hook(found: Found, facts: Mapping[str, str]) -> str:
    """The timeline of the primary GPU; nothing where it was not measured."""
    record = ours(found, "peak_memory")
    peak, weights = (
        facts.get(key, NOT_MEASURED) for key in ("step_512_fp32", "weights")
    )
    finding = (
        f"Of {peak} at the peak of a training step in fp32, weights are {weights}; "
        "optimizer state is twice that, and saved activations are most of the rest."
    )
    drawn = timeline_figure(record, "step", finding, HOOK) if record else ""
    return drawn or nothing_of([record] if record else [])


def by_itself(shown: str) -> str:
    """The first figure of a fragment as a file with its own colours, light or dark as
    the reader's system is, for README.md; an empty one where there is no figure.
    """
    svg = FIGURE.search(shown)
    if svg is None:
        return '<svg xmlns="http://www.w3.org/2000/svg" width="1" height="1"></svg>\n'
    used = sorted({*USED.findall(svg[2]), GROUND})
    light, dark = (
        "".join(f"{name}: {value}; " for name, value in zip(used, values, strict=True))
        for values in zip(*(COLORS[name] for name in used), strict=True)
    )
    style = (
        f":root {{ {light}font-family: sans-serif; background: var({GROUND}) }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n"
        f".over {{ paint-order: stroke; stroke: var({GROUND}); stroke-width: 3px }}"
    )
    opened = f'<svg xmlns="http://www.w3.org/2000/svg"{svg[1]}>'
    return f"{opened}<style>{style}</style>{svg[2]}</svg>\n"


def editions() -> str:
    """Section and points of each problem, and the pages that answer it."""
    years = ("2025", "2026")
    rows = [
        [
            f"`{problem.name}`",
            f"{problem.section} · {problem.points}" if problem.section else "",
            *(problem.stanford.get(year, "") for year in years),
            Markup(", ".join(linked(answer.page) for answer in problem.answers)),
        ]
        for problem in load_problems()
    ]
    head = ["problem", "NYU 2026", *(f"CS336 {year}" for year in years), "here"]
    caption = "The graded problems, and which edition asks for each."
    return captioned(caption, table(head, rows)) + "\n"


def linked(page: str) -> str:
    """A link by the page's own title."""
    title = TITLE.search((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8"))
    return f"[{title[1] if title else page}]({page}.md)"


def speed(found: Found) -> list[Bar]:
    """fp32 over bf16 for a training step at context 512, from the smallest model up."""
    record = ours(found, "end_to_end")
    gains = {size: speedup(record, (size, 512)) for size in TABLE_1}
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

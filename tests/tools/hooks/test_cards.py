"""The pictures of pages for links to them."""

from __future__ import annotations

import io
from pathlib import Path

from PIL import Image

from tools.hooks.cards import alternatives, card, first_figure, resolved, style

BOX = '<rect class="first" x="0" y="0" width="100" height="50"/>'
FIGURE = f'<svg viewBox="0 0 100 50">{BOX}</svg>'
ACCENT = (11, 92, 173)


def colors_of(png: bytes) -> set[tuple[int, ...]]:
    image = Image.open(io.BytesIO(png)).convert("RGB")
    assert image.size == (1200, 630)
    return {color for _, color in image.getcolors(2**24) or []}


def test_a_card_has_the_figure_in_the_colours_of_the_page() -> None:
    drawn = card("Guide", "A title", "Said.", ("drawing", FIGURE))
    assert drawn == card("Guide", "A title", "Said.", ("drawing", FIGURE))
    assert len(drawn) < 30_000
    assert is_mixed(drawn)
    without = card("Guide", "A title", "Said.", None)
    assert without != card("Guide", "A title", "Said otherwise.", None)
    assert not is_mixed(without)


def is_mixed(png: bytes) -> bool:
    """Whether it has a quarter of the accent on white, as drawings.css mixes it."""
    mixed = [0.26 * one + 0.74 * 255 for one in ACCENT]
    return any(
        all(abs(a - b) <= 2 for a, b in zip(color, mixed, strict=True))
        for color in colors_of(png)
    )


def test_the_first_figure_of_a_page_is_found(tmp_path: Path) -> None:
    wide = '<svg class="plot wide" viewBox="0 0 4 2">1</svg>'
    page = f'<p>A</p><figure id="a" class="plotted">\n{wide}\n<svg>2</svg></figure>'
    assert first_figure(page, tmp_path) == ("plotted", wide)
    steps = '<svg><g class="frame">1</g><g class="frame">2</g></svg>'
    found = first_figure(f'<figure class="drawing steps">{steps}</figure>', tmp_path)
    assert found and found[1].index("none") < found[1].index("1")
    assert '<g class="frame">2' in found[1]
    (tmp_path / "generated").mkdir()
    (tmp_path / "generated" / "a.svg").write_text(FIGURE)
    for address in ("generated/a.svg#only-light", "generated/a.svg"):
        image = f'<img alt="" src="{address}">'
        assert first_figure(image, tmp_path) == ("", FIGURE)
    assert first_figure("<p>No figure</p>", tmp_path) is None


def test_style_sheets_are_read_for_the_light_scheme() -> None:
    assert resolved("var(--accent)") == "#0b5cad"
    mix = "color-mix(in srgb, var(--accent) 50%, var(--md-default-bg-color))"
    assert resolved(mix) == "rgb(133, 174, 214)"
    assert (
        resolved("color-mix(in srgb, #000000 26%, transparent)")
        == "rgba(0, 0, 0, 0.26)"
    )
    assert set(alternatives(".a :is(b, c) d, e")) == {".a b d", ".a c d", "e"}
    rules = style()
    assert "g.drawing .first" in rules and ".drawing rect, .drawing line" in rules
    assert not any(mark in rules for mark in ("var(", "color-mix", ":is(", "@media"))

"""The pictures of pages for links to them."""

from __future__ import annotations

import io

from PIL import Image, ImageChops

from tools.hooks.cards import (
    COLUMN,
    HEIGHT,
    WIDTH,
    Figure,
    alternatives,
    card,
    first_figure,
    resolved,
    style,
)

BOX = '<rect class="fill-blue" x="0" y="0" width="100" height="50"/>'
SVG = f'<svg viewBox="0 0 100 50">{BOX}</svg>'
FIGURE = Figure("drawing narrow", SVG, "Blue is found.")
ACCENT = (11, 92, 173)


def drawn(*args: str, figure: Figure | None = FIGURE) -> Image.Image:
    png = card("Guide", *args, figure)
    assert len(png) < 30_000 and png == card("Guide", *args, figure)
    image = Image.open(io.BytesIO(png)).convert("RGB")
    assert image.size == (WIDTH, HEIGHT)
    return image


def is_mixed(image: Image.Image) -> bool:
    """Whether it has a quarter of the accent on white, as drawings.css mixes it."""
    mixed = [0.26 * one + 0.74 * 255 for one in ACCENT]
    colors = (color for _, color in image.getcolors(2**24) or [])
    return any(
        all(abs(a - b) <= 2 for a, b in zip(color, mixed, strict=True))
        for color in colors
    )


def differ(a: Image.Image, b: Image.Image) -> tuple[int, int, int, int] | None:
    """Where, beyond what few colours make of the same one."""
    apart = ImageChops.difference(a, b).convert("L")
    return apart.point(lambda light: 255 * (light > 60)).getbbox()


def test_a_card_has_the_figure_in_the_colours_of_the_page_and_what_is_found() -> None:
    shown = drawn("A title", "Said.")
    assert is_mixed(shown)
    # Beside the figure stands its finding, and no description of the page.
    assert differ(shown, drawn("A title", "Said otherwise.")) is None
    other = differ(shown, drawn("A title", "", figure=FIGURE._replace(finding="No.")))
    assert other and other[2] < COLUMN
    without = drawn("A title", "Said.", figure=None)
    assert differ(without, drawn("A title", "Said otherwise.", figure=None))
    assert not is_mixed(without)


def test_words_of_any_length_stay_on_the_card() -> None:
    long = Figure("drawing narrow", SVG, " ".join(["a finding of many words"] * 20))
    shown = drawn(" ".join(["a long title"] * 6), "", figure=long)
    below = shown.crop((0, HEIGHT - 25, COLUMN, HEIGHT)).getcolors()
    assert below and len(below) == 1


def test_of_several_panels_the_first_is_shown_and_so_larger() -> None:
    tall = SVG.replace("100 50", "100 500")
    widths = []
    for svg in (tall, tall.replace("<svg ", '<svg data-first="50" ')):
        shown = drawn("A", "", figure=FIGURE._replace(svg=svg))
        beside = shown.crop((COLUMN, 20, WIDTH, HEIGHT)).convert("L")
        box = beside.point(lambda light: 255 * (light < 250)).getbbox()
        assert box
        widths.append(box[2] - box[0])
    assert widths[1] > 2 * widths[0]


def test_the_first_figure_of_a_page_is_found_as_telephones_have_it() -> None:
    wide, narrow = (f'<svg class="plot {n}" viewBox="0 0 4 2">{n}</svg>' for n in "wn")
    caption = "<figcaption><strong>Found &amp; <code>said</code>.</strong> Key.</fig"
    page = (
        f'<p>A</p><figure id="a" class="plotted">\n{wide}\n{narrow}{caption}caption>'
        f"</figure><figure>{wide}</figure>"
    )
    assert first_figure(page) == Figure("plot n", narrow, "Found & said.")
    steps = '<svg class="drawing n"><g class="frame">1</g><g class="frame">2</g></svg>'
    found = first_figure(f'<figure class="drawn steps">{steps}</figure>')
    assert found and found.svg.index("none") < found.svg.index("1")
    assert '<g class="frame">2' in found.svg
    assert first_figure("<p>No figure</p>") is None


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
    assert ".drawing .fill-blue" in rules and ".drawing rect, .drawing line" in rules
    assert not any(mark in rules for mark in ("var(", "color-mix", ":is(", "@media"))

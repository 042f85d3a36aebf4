import pytest

from tests.tools.render.svgs import by_lot
from tools.render import plots


@pytest.fixture
def one_width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that look at no figure: each is drawn once."""
    monkeypatch.setattr(plots, "draw_svg", by_lot(request.node.name))


@pytest.fixture
def few_figures(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For those that render all of a site, many times."""
    monkeypatch.setattr(plots, "draw_svg", by_lot(request.node.name, 4))

import pytest

from tests.tools.render.svgs import draw_some
from tools.render import plots


@pytest.fixture
def one_width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw each figure for one width only, for tests that don't check figures."""
    monkeypatch.setattr(plots, "draw_svg", draw_some(request.node.name))


@pytest.fixture
def few_figures(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draw few figures, for tests that render everything many times."""
    monkeypatch.setattr(plots, "draw_svg", draw_some(request.node.name, 4))

import pytest

from tests.tools.render.svgs import at_one_width
from tools.render import plots


@pytest.fixture
def one_width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that render much and look at no figure."""
    monkeypatch.setattr(plots, "svg", at_one_width(request.node.name))

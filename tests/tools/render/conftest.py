import pytest

from systems.records.record import Record
from tests.factories import RESULTS
from tests.tools.render.svgs import sample_figures
from tools.render import load, plots


@pytest.fixture(scope="session")
def records() -> dict[str, list[Record]]:
    return load.load_records(RESULTS)


@pytest.fixture
def one_width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Draw each figure for one width only, for tests that don't check figures."""
    monkeypatch.setattr(plots, "draw_svg", sample_figures(request.node.name))


@pytest.fixture
def few_figures(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draw a quarter of the figures, for tests that render everything."""
    monkeypatch.setattr(plots, "draw_svg", sample_figures(request.node.name, 4))

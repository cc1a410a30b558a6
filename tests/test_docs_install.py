"""No page sends its reader to an index for kvdiag itself: it is installed from a checkout or a wheel."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PAGES = sorted([*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("exporters/deploy/**/*")])
_FROM_INDEX = re.compile(r"pip3? install\s+(?:-\S+\s+)*['\"]?kvdiag(?![-\w])")


@pytest.mark.parametrize("page", [one for one in PAGES if one.is_file()], ids=lambda one: one.name)
def test_no_page_installs_kvdiag_from_an_index(page: Path) -> None:
    assert _FROM_INDEX.findall(page.read_text()) == []


def test_the_page_that_tells_how_is_there() -> None:
    page = (REPOSITORY / "docs/install.md").read_text()
    assert "pip install '.[" in page
    assert "pip wheel" in page
    assert _FROM_INDEX.search("run pip install kvdiag") and _FROM_INDEX.search("pip install -U 'kvdiag[probes]'")

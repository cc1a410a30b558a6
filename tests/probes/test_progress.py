import pytest

from kvdiag_probes.progress import bar


@pytest.mark.parametrize(
    ("done", "of", "rate", "line"),
    [
        (0, 10, None, "[....................]   0%  a pass"),
        (5, 10, 1.25e9, "[##########..........]  50%  10.000 Gb/s, a pass"),
        (12, 10, 0.0, "[####################] 100%  0.000 Gb/s, a pass"),
        (1, 0, None, "[....................]   0%  a pass"),
    ],
)
def test_the_bar_shows_the_share_and_the_rate(done: float, of: float, rate: float | None, line: str) -> None:
    assert bar(done, of, "a pass", rate) == line

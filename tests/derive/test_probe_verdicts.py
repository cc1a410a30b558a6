import random

import pytest

from kvdiag.derive.intervals import metric
from kvdiag.derive.probe_verdicts import judge, judge_baseline, worst
from kvdiag.report.probe_parts import judgements


@pytest.mark.parametrize(
    ("samples", "limit", "status"),
    [
        ([10, 11, 12, 13, 14], 10, "met"),
        ([10, 11, 12, 13, 14], 14.1, "missed"),
        ([10, 11, 12, 13, 14], 12, "undetermined"),
        ([10, 11, 12, 13], 5, "undetermined"),
    ],
)
def test_a_minimum_is_judged_by_the_whole_interval(samples: list[float], limit: float, status: str) -> None:
    assert judge("--min", metric("bw", "bytes_per_second", "higher", samples), limit).status == status


def test_figures_are_said_in_the_units_of_people() -> None:
    rate = metric("bw", "bytes_per_second", "higher", [5.346e8] * 5)
    (line,) = judgements([judge("--min-bandwidth", rate, 1.25e9)])
    assert line.plain == (
        "MISSED: --min-bandwidth: bw 4.277 Gb/s (509.8 MiB/s), limit 10 Gb/s (1192 MiB/s) "
        "(interval 4.277 Gb/s (509.8 MiB/s) to 4.277 Gb/s (509.8 MiB/s) of 5 samples)"
    )
    time = metric("t", "seconds", "lower", [0.0002072] * 5)
    (line,) = judgements([judge("--max-cold-ms", time, 0.05)])
    assert line.plain.startswith("met: --max-cold-ms: t 207.2 µs, limit 50.000 ms (")


def test_a_maximum_is_the_mirror_of_a_minimum() -> None:
    times = metric("t", "seconds", "lower", [10, 11, 12, 13, 14])
    assert [judge("--max", times, limit).status for limit in (14, 9, 12)] == ["met", "missed", "undetermined"]


def test_a_baseline_of_four_runs_does_not_judge() -> None:
    (verdict,) = judge_baseline([metric("bw", "ratio", "higher", [1.0] * 5)], [{"bw": 1.0}] * 4, 0.1)
    assert verdict.status == "undetermined" and "4 comparable runs" in verdict.reason


def test_a_fall_beyond_the_tolerance_is_missed_and_noise_is_not() -> None:
    chance = random.Random(3)
    runs = [{"bw": chance.gauss(100, 1), "t": chance.gauss(10, 0.1)} for _ in range(9)]

    def verdicts(bandwidth: float, latency: float) -> list[str]:
        now = [
            metric("bw", "bytes_per_second", "higher", [chance.gauss(bandwidth, 1) for _ in range(9)]),
            metric("t", "seconds", "lower", [chance.gauss(latency, 0.1) for _ in range(9)]),
        ]
        return [one.status for one in judge_baseline(now, runs, 0.1)]

    assert verdicts(100, 10) == ["met", "met"]
    assert verdicts(80, 13) == ["missed", "missed"]


def test_no_tolerance_lets_a_rate_fall_to_nothing() -> None:
    runs = [{"bw": 100.0}] * 5
    for rate, status in ((30.0, "met"), (20.0, "missed")):
        (verdict,) = judge_baseline([metric("bw", "bytes_per_second", "higher", [rate] * 5)], runs, 3.0)
        assert (verdict.status, verdict.limit) == (status, 25.0)


def test_missed_outweighs_undetermined() -> None:
    one = metric("bw", "ratio", "higher", [1.0] * 5)
    verdicts = [judge("r", one, 0.5), judge("r", metric("x", "ratio", "higher", [1.0]), 0.5), judge("r", one, 2)]
    assert [worst(verdicts[:n]) for n in range(4)] == ["met", "met", "undetermined", "missed"]


def test_one_cause_of_many_open_verdicts_is_one_line() -> None:
    metrics = [metric(f"m{number}", "seconds", "lower", [1.0] * 5) for number in range(48)]
    (line,) = judgements(
        judge_baseline(metrics, [], 0.1, " (of 7: 7 made otherwise, the nearest with host vm, here a)")
    )
    assert line.plain == (
        "cannot judge: --baseline: 48 figures, m0 to m47 (0 comparable runs in the baseline (of 7: 7 made otherwise, "
        "the nearest with host vm, here a), 5 needed: run again with --out)"
    )
    assert len(judgements(judge_baseline(metrics, [{one.name: 1.0 for one in metrics}] * 5, 0.1))) == 48

import threading
from collections.abc import Iterable, Iterator

import pytest

from kvdiag.sources.base import SystemClock
from kvdiag_exporters.catalog import Metric, Sample
from kvdiag_exporters.exposition import all_samples, exposed
from kvdiag_exporters.scraper import HURRY_S, Collection, Scraper
from tests.exporters.host import StillClock

ONE = Metric(name="kvdiag_one", kind="gauge", help="One.", labels=("of",))


class Good:
    missing: tuple[str, ...] = ("a thing",)
    calls = 0

    def collect(self) -> Iterable[Sample]:
        self.calls += 1
        return [ONE.sample(float(self.calls), "good")]


class Bad:
    missing: tuple[str, ...] = ()

    def collect(self) -> Iterator[Sample]:
        yield ONE.sample(1.0, "bad")
        raise RuntimeError("broken")


class Hanging:
    missing: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.go_on = threading.Event()

    def collect(self) -> Iterable[Sample]:
        self.go_on.wait(60)
        return [ONE.sample(1.0, "late")]


def test_one_that_fails_or_hangs_hides_no_other() -> None:
    hanging = Hanging()
    scraper = Scraper({"bad": Bad(), "good": Good(), "hanging": hanging}, SystemClock(), timeout_s=0.2)
    first = scraper.collect()
    assert [sample.labels for sample in first.samples] == [("good",)]
    assert first.outcomes["bad"].error == "RuntimeError: broken"
    assert first.outcomes["hanging"].error == "still running after 0.2 s"
    assert first.outcomes["good"].missing == ("a thing",)
    text = exposed(all_samples(first, first.monotonic_s))
    assert 'kvdiag_collector_success{collector="bad"} 0.0' in text
    assert 'kvdiag_collector_success{collector="good"} 1.0' in text
    assert 'kvdiag_collector_missing{collector="good"} 1.0' in text
    assert 'kvdiag_collector_data_age_seconds{collector="hanging"}' not in text
    hanging.go_on.set()
    while scraper.collect(fresh=True).outcomes["hanging"].error:
        pass
    assert ("late",) in [sample.labels for sample in scraper.collect(fresh=True).samples]


def test_the_end_does_not_wait_for_a_collection_that_hangs() -> None:
    hangings = [Hanging() for _ in range(4)]
    collectors = {"good": Good()} | {f"hanging{number}": one for number, one in enumerate(hangings)}
    scraper = Scraper(collectors, SystemClock(), timeout_s=60)
    found: list[Collection] = []
    thread = threading.Thread(target=lambda: found.append(scraper.collect(fresh=True)), daemon=True)
    thread.start()
    while scraper._hurries == 0 or thread.is_alive():
        scraper.hurry()
        thread.join(0.05)
    assert [sample.labels for sample in found[0].samples] == [("good",)]
    hangings[0].go_on.set()
    later = threading.Thread(target=lambda: found.append(scraper.collect(fresh=True)), daemon=True)
    while scraper._workers["hanging0"]._busy:
        pass
    hangings[0].go_on.clear()
    later.start()
    later.join(2 * HURRY_S)
    assert later.is_alive()  # one that begins afterwards waits again
    hangings[0].go_on.set()
    later.join(60)
    assert ("late",) in [sample.labels for sample in found[1].samples]


def test_a_collection_is_shared_until_it_is_too_old() -> None:
    clock, good = StillClock(), Good()
    scraper = Scraper({"good": good}, clock, max_age_s=1.0)
    threads = [threading.Thread(target=scraper.collect) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert good.calls == 1
    clock.now_s += 0.9
    assert scraper.collect().monotonic_s == 1000.0
    clock.now_s += 0.2
    assert scraper.collect().monotonic_s == clock.now_s
    assert good.calls == 2


def test_the_age_grows_while_a_collector_fails() -> None:
    clock, bad = StillClock(), Bad()
    scraper = Scraper({"it": Good()}, clock)
    scraper.collect()
    scraper._workers["it"].collector = bad
    clock.now_s += 7
    outcome = scraper.collect(fresh=True).outcomes["it"]
    assert outcome.error
    text = exposed(all_samples(scraper.collect(), clock.now_s))
    assert 'kvdiag_collector_data_age_seconds{collector="it"} 7.0' in text


class Setting(Good):
    """Sets something that it has to take back, after a collection that is under way."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.states = ["not set"]

    def collect(self) -> Iterable[Sample]:
        self.states.append("set")
        self.go_on.wait(60)
        return []

    def close(self) -> None:
        self.states.append("taken back")
        raise RuntimeError("what is left is told in the log, and ends nothing else")


def test_the_end_waits_for_what_has_to_be_taken_back(caplog: pytest.LogCaptureFixture) -> None:
    setting = Setting()
    scraper = Scraper({"setting": setting, "good": Good()}, SystemClock(), timeout_s=0.2)
    scraper.collect()
    assert setting.states == ["not set", "set"]
    threading.Timer(0.2, setting.go_on.set).start()
    scraper.close()
    assert setting.states == ["not set", "set", "taken back"]
    assert "collector setting could not take back what it set" in caplog.text

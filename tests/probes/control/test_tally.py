from kvdiag_probes.control.tally import Tally


class Log:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.lines: list[str] = []
        self.tally = Tally(self.lines.append, every_s=10, clock=lambda: self.now_s)

    def take(self) -> list[str]:
        taken = list(self.lines)
        self.lines.clear()
        return taken


def test_the_first_comes_at_once_and_a_flood_as_one_count() -> None:
    log = Log()
    for number in range(1000):
        log.tally.note(("10.0.0.3", number), "refused: no token")
    assert log.take() == ["10.0.0.3:0: refused: no token"]
    log.tally.flush()
    assert log.take() == []
    log.now_s = 10.0
    log.tally.flush()
    assert log.take() == ["999 more within 10 s, the last 10.0.0.3:999: refused: no token"]


def test_a_flood_that_goes_on_is_counted_again_and_ends_without_a_line() -> None:
    log = Log()
    for _ in range(2):
        log.tally.note(("::1", 7), "x")
    log.now_s = 10
    log.tally.flush()
    assert log.take() == ["[::1]:7: x", "1 more within 10 s, the last [::1]:7: x"]
    log.tally.note(("::1", 8), "x")
    log.now_s = 20
    log.tally.flush()
    assert log.take() == ["1 more within 10 s, the last [::1]:8: x"]
    log.now_s = 30
    log.tally.flush()
    assert log.take() == []
    log.tally.note(None, "x")
    assert log.take() == ["a client: x"]


def test_hosts_are_counted_and_kinds_kept_apart_and_the_end_loses_nothing() -> None:
    log = Log()
    for host in ("a", "b", "b"):
        log.tally.note((host, 1), "x")
        log.tally.note((host, 1), "y")
    log.tally.flush(everything=True)
    assert log.take() == ["a:1: x", "a:1: y", *(f"2 more within 1 s, the last b:1: {kind}" for kind in "xy")]
    log.tally.flush(everything=True)
    assert log.take() == []

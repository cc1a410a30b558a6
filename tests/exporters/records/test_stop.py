"""The waits at the end have one limit together, however many there are."""

import time

from kvdiag_exporters.records.service import Records
from kvdiag_exporters.records.settings import RecordsConfig
from kvdiag_exporters.stream import RecordStream
from tests.exporters.host import StillClock


class Slow:
    """A sender that takes all the time that it is given."""

    sent = dropped = 0

    def __init__(self, granted: list[float]) -> None:
        self._granted = granted

    def take(self, records: object) -> None: ...

    def stop(self, within_s: float) -> None:
        self._granted.append(within_s)
        time.sleep(within_s)


def test_senders_share_what_is_left_of_the_time() -> None:
    granted: list[float] = []
    stream = RecordStream()
    records = Records(RecordsConfig(attribution_interval_s=0), (), "here", stream, StillClock())
    records.start(stream)
    records.export = Slow(granted)
    records.forward = Slow(granted)  # type: ignore[assignment]
    records.stop(0.2)
    assert len(granted) == 2
    assert 0 <= granted[1] <= granted[0] <= 0.2
    assert sum(granted) <= 0.21

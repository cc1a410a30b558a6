from kvdiag_exporters.collectors.nixl import DEREGISTERED, REGISTERED
from kvdiag_exporters.collectors.rdma_resources import QUEUE_PAIRS, QUEUE_PAIRS_SEEN
from kvdiag_exporters.events import differences, values

RANK = ("prefill-0", "demo", "prefill", "0")


def kinds(before: list[tuple[float, float, float]], after: list[tuple[float, float, float]]) -> list[str]:
    """Return the events between readings of (bytes registered, bytes deregistered, queue pairs seen)."""

    def read(rows: list[tuple[float, float, float]]) -> dict[tuple[str, tuple[str, ...]], float]:
        samples = []
        for registered, deregistered, seen in rows:
            samples += [
                REGISTERED.sample(registered, *RANK),
                DEREGISTERED.sample(deregistered, *RANK),
                QUEUE_PAIRS_SEEN.sample(seen, "prefill-0", "rxe0", "demo"),
            ]
        return dict(values(samples))

    found = differences(read(before), read(after), 7.0)
    return [f"{event.kind} {event.detail if event.bytes is None else int(event.bytes)}" for event in found]


def test_growth_is_an_event_and_a_restart_is_none() -> None:
    assert kinds([(10, 0, 1)], [(30, 5, 3)]) == ["mr_register 20", "mr_deregister 5", "qp_create 2 on rxe0"]
    assert kinds([(30, 5, 3)], [(0, 0, 0)]) == []
    assert kinds([], [(30, 5, 3)]) == []
    assert kinds([(30, 5, 3)], [(30, 5, 3)]) == []


def test_queue_pairs_in_error_are_counted_whoever_owns_them() -> None:
    before = values([QUEUE_PAIRS.sample(1.0, "a", "rxe0", "demo", "RC", "ERR")])
    after = values(
        [
            QUEUE_PAIRS.sample(1.0, "a", "rxe0", "(other)", "RC", "ERR"),
            QUEUE_PAIRS.sample(2.0, "a", "rxe1", "demo", "RC", "ERR"),
        ]
    )
    assert [(event.kind, event.detail) for event in differences(before, after, 1.0)] == [("qp_error", "2 on rxe1")]
    assert list(differences({}, after, 1.0)) == []

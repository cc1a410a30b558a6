import pytest

from kvdiag.errors import UnavailableError
from kvdiag_probes.demo.channel import Channel, Closed, Coming, Degrade, Registered


def test_messages_arrive_whole_and_in_order() -> None:
    near, far = Channel.pair()
    sent = [Coming(1), Registered(b"x" * 50_000), Degrade("layout")]
    for message in sent:
        near.send(message)
    assert list(far.poll()) == sent
    assert list(far.poll()) == []
    near.close()
    far.close()


def test_what_was_sent_before_closing_is_still_read() -> None:
    near, far = Channel.pair()
    near.send(Coming(1))
    near.close()
    messages = far.poll()
    assert next(messages) == Coming(1)
    with pytest.raises(Closed):
        next(messages)
    with pytest.raises(Closed):
        far.send(Coming(2))
    far.close()


def test_waiting_is_bounded() -> None:
    near, far = Channel.pair()
    with pytest.raises(UnavailableError, match=r"did not answer within 0\.05 s"):
        far.receive(0.05)
    near.close()
    far.close()


def test_a_peer_that_never_reads_is_noticed() -> None:
    near, far = Channel.pair()
    with pytest.raises(Closed):
        _fill(near)
    near.close()
    far.close()


def _fill(channel: Channel) -> None:
    for _ in range(10_000):
        channel.send(Registered(b"x" * 50_000), timeout_s=0.05)

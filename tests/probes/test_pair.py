import socket

import pytest

from kvdiag.errors import UnavailableError
from kvdiag.model.missing import Missing
from kvdiag.model.pair import PairMeasurements
from kvdiag.model.rdma import RdmaDevices
from kvdiag_probes import pair
from kvdiag_probes.control.address import Address
from kvdiag_probes.control.credential import Credential
from kvdiag_probes.gid import Choice
from kvdiag_probes.pair import PairOptions, meet
from tests.probes.agents import TOKEN, serving


def choice(gid: str, link_layer: str = "Ethernet") -> Choice:
    return Choice(device="rxe0", port=1, gid_index=1, gid=gid, type="RoCE v2", link_layer=link_layer)


def test_a_peer_on_this_host_has_this_host_s_clock_and_no_rdma(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair, "read_devices", lambda: RdmaDevices(devices=()))
    with serving() as server:
        snapshot = meet(PairOptions(peer=server.address, credential=TOKEN))
    measured = snapshot.part(PairMeasurements)
    assert not isinstance(measured, Missing)
    low, high = measured.clock_ahead_low_s, measured.clock_ahead_high_s
    assert isinstance(low, float) and isinstance(high, float) and low <= 0 <= high
    assert measured.round_trip_s == pytest.approx(high - low)
    assert measured.address == str(server.address)
    assert isinstance(measured.transfers, Missing)
    assert "no RDMA device on this host" in measured.transfers.missing


def test_no_block_is_moved_where_none_is_asked_for() -> None:
    with serving() as server:
        snapshot = meet(PairOptions(peer=server.address, credential=TOKEN, transfer=False))
    measured = snapshot.part(PairMeasurements)
    assert not isinstance(measured, Missing)
    assert isinstance(measured.transfers, Missing) and "--no-transfer" in measured.transfers.missing


def test_an_absent_peer_is_unavailable() -> None:
    with pytest.raises(UnavailableError, match="Connection refused"):
        meet(PairOptions(peer=Address("127.0.0.1", 1), credential=Credential()))


def test_a_side_channel_answers_or_says_why_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert pair._connect("127.0.0.1", port) is None
    assert pair._connect("127.0.0.1", port) == "Connection refused"
    assert pair._connect("no-such-host.invalid", 5600) is not None


@pytest.mark.parametrize(
    ("here", "there", "layer", "found"),
    [
        ("::ffff:127.0.0.1", "::ffff:127.0.0.1", "Ethernet", "answers"),
        ("::ffff:203.0.113.7", "::ffff:127.0.0.1", "Ethernet", "unreachable"),
        ("fe80::1", "::ffff:127.0.0.1", "Ethernet", None),
        ("fe80::1", "fe80::2", "InfiniBand", None),
        ("::ffff:127.0.0.1", None, "Ethernet", None),
    ],
)
def test_a_datagram_tells_a_path_that_carries_others_than_roce(
    here: str, there: str | None, layer: str, found: str | None
) -> None:
    assert pair._udp(choice(here, layer), there) == found

"""Public tools were off by four, and by the width of the link, for years: the unit is fixed here once."""

from dataclasses import replace

import pytest

from kvdiag.derive.port_traffic import received, sent
from kvdiag.model.rdma import Port, PortCounters, RdmaDevices
from kvdiag.sources.base import Context
from kvdiag.sources.rdma_sysfs import SOURCE as RDMA_SYSFS
from tests.trees import HOSTS


def port(rate: str) -> Port:
    devices = RDMA_SYSFS.read(Context(root=HOSTS / "dgx-8x-infiniband", live=False))
    assert isinstance(devices, RdmaDevices)
    return replace(devices.ports[0], rate_text=rate)


def counters(plain: dict[str, int], hw: dict[str, int]) -> PortCounters:
    return PortCounters(device="mlx5_0", port=1, counters=plain, hw_counters=hw, unreadable={})


@pytest.mark.parametrize(
    "rate",
    [
        "2.5 Gb/sec (1X SDR)",
        "100 Gb/sec (2X HDR)",
        "400 Gb/sec (4X NDR)",
        "800 Gb/sec (8X NDR)",
        "300 Gb/sec (12X EDR)",
    ],
)
def test_data_counters_are_words_of_four_bytes_on_every_width(rate: str) -> None:
    counted = counters({"port_xmit_data": 1000, "port_rcv_data": 250}, {})
    one, other = sent(counted, port(rate)), received(counted, port(rate))
    assert one is not None
    assert other is not None
    assert (one.bytes, other.bytes) == (4000, 1000)
    assert one.source == "/sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data × 4"


@pytest.mark.parametrize("name", ["tx_bytes", "tx_rdma_ucast_bytes"])
def test_hardware_counters_are_plain_bytes(name: str) -> None:
    traffic = sent(counters({}, {name: 1000}), port(""))
    assert traffic is not None
    assert traffic.bytes == 1000


def test_what_nothing_counts_is_not_zero() -> None:
    assert sent(counters({}, {"out_of_sequence": 0}), port("")) is None
    assert received(counters({"port_xmit_data": 5}, {}), port("")) is None

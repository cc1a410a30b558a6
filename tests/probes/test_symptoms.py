from kvdiag.model.missing import Missing
from kvdiag.model.rdma import PortCounters
from kvdiag_probes.symptoms import grown_errors, moved_errors


def counters(plain: dict[str, int], hardware: dict[str, int]) -> PortCounters:
    return PortCounters(device="rxe0", port=1, counters=plain, hw_counters=hardware, unreadable={})


def test_errors_that_grew_are_named_and_traffic_is_not() -> None:
    before = counters({"port_xmit_data": 1, "symbol_error": 4}, {"sent_pkts": 5, "retry_exceeded_err": 0})
    after = counters(
        {"port_xmit_data": 9, "symbol_error": 4}, {"sent_pkts": 50, "retry_exceeded_err": 1, "completer_retry_err": 6}
    )
    for counted in ("rdma_recvs", "ack_deferred", "rx_write_requests", "send_wrs", "rdma_read_resp_bytes", "rx_pkts"):
        before.hw_counters[counted], after.hw_counters[counted] = 0, 83
    assert list(moved_errors(before, after)) == ["retry_exceeded_err +1"]
    assert list(moved_errors(before, before)) == []


def test_unreadable_counters_are_not_taken_for_unmoved_ones() -> None:
    assert list(moved_errors(Missing("no sysfs"), counters({}, {}))) == ["counters not readable"]
    assert grown_errors(counters({}, {}), Missing("gone")) == Missing("gone")

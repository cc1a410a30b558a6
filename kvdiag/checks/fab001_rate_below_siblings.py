"""FAB001: ports of cards of one make run at one rate."""

from collections import defaultdict

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.rdma import active_ports, attribute, device_of, half_known, is_bond, joined, model, unread
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.rdma import Port, RdmaDevices

CODE = "FAB001"


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    active = active_ports(devices)
    hidden = unread(active, "rate_gbps", "link_layer") or half_known(device_of(devices, port) for port in active)
    makes: dict[tuple[object, ...], list[tuple[float, Port]]] = defaultdict(list)
    for port in active:
        if not isinstance(port.rate_gbps, Missing):
            make = model(device_of(devices, port))
            makes[make, port.link_layer, is_bond(hosts.local, port)].append((port.rate_gbps, port))
    compared = [rated for rated in makes.values() if len(rated) > 1]
    findings = tuple(
        _finding(port, rate, rated, hosts.local.host)
        for rated in compared
        for rate, port in rated
        if rate < _usual(rated)
    )
    if findings:
        return Failed(findings)
    if hidden is not None:
        return NotObservable(hidden.missing)
    if not compared:
        return NotApplicable(f"{len(active)} ACTIVE port(s): no two on cards of one make to compare")
    return Passed("; ".join(f"{len(rated)} ports of one make at {rated[0][0]:g} Gb/s" for rated in compared))


def _usual(rated: list[tuple[float, Port]]) -> float:
    """Return the highest rate (10^9 bit/s) that at least half of the ports reach.

    A single faster port among many is no reason to call the many slow.
    """
    rates = sorted(rate for rate, _ in rated)
    return rates[len(rates) // 2]


def _finding(port: Port, rate: float, rated: list[tuple[float, Port]], host: str) -> Finding:
    usual = _usual(rated)
    like = [other for other_rate, other in rated if other_rate >= usual]
    return Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=port.name,
        summary=f"port {port.name} runs at {rate:g} Gb/s where {len(like)} like it run at {usual:g} Gb/s",
        evidence=(
            Evidence(
                name="rate", value=str(port.rate_text), source=attribute(port, "rate"), threshold=f"{usual:g} Gb/sec"
            ),
            Evidence(name="siblings", value=joined(other.name for other in like), source=attribute(like[0], "rate")),
        ),
        action=(
            f"check cable, transceiver and switch port speed of {port.name} "
            f"(mlxlink -d {port.device} --port {port.number}); until then every transfer over it is slower"
        ),
        host=host,
        devices=(port.device,),
    )


CHECK = Check(code=CODE, title="ports of one make run at one rate", run=run)

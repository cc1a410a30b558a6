"""ENG043: every device that UCX was told to use is one that it has."""

from kvdiag.checks.base import Check, Failed, Hosts, Outcome
from kvdiag.checks.logged import logged, none_logged, times
from kvdiag.derive.device_lists import net_devices
from kvdiag.derive.rdma import active_ports, joined
from kvdiag.derive.setting import group_here, set_variable
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import present
from kvdiag.model.rdma import RdmaDevices

CODE = "ENG043"


def run(hosts: Hosts) -> Outcome:
    found = logged(hosts.local, "ucx_no_device")
    without = logged(hosts.local, "ucx_no_am")
    empty = logged(hosts.local, "gid_query_failed")
    if not found and not without and not empty:
        return none_logged(hosts, "no device or transport that UCX misses")
    devices = present(hosts.local.part(RdmaDevices))
    ports = active_ports(devices) if devices else ()
    names = joined(dict.fromkeys(item.field("devices").replace("'", "") for item in found))
    if found:
        summary = f"UCX was told to use {names}, which it does not have ({times(found)} time(s))"
    elif empty:
        cards = joined(dict.fromkeys(item.field("device") for item in empty))
        summary = f"UCX fails on {cards}: no GID at index {empty[0].field('index')}, so no card of the fabric"
    else:
        summary = f"UCX found no transport for active messages {times(without)} time(s): its agent cannot be created"
    skipped = {item.field("device") for item in empty}
    listed = net_devices(port for port in ports if port.device not in skipped)
    return Failed(
        (
            Finding(
                code=CODE,
                severity=Severity.WARNING,
                subject="UCX_NET_DEVICES" if found or empty else "UCX_TLS",
                summary=summary,
                evidence=(
                    *(item.evidence("first") for item in (found or empty or without)[:1]),
                    *(
                        (Evidence(name="ACTIVE ports", value=listed, source="/sys/class/infiniband/*/ports/*/state"),)
                        if ports
                        else ()
                    ),
                ),
                action=(
                    set_variable(group_here(hosts.local), "UCX_NET_DEVICES", listed)
                    if (found or empty) and listed
                    else "unset UCX_NET_DEVICES and UCX_TLS, or add the interface that carries TCP (UCX_TLS=...,tcp)"
                ),
                host=hosts.local.host,
            ),
        )
    )


CHECK = Check(
    code=CODE,
    title="UCX has the devices that it was told to use",
    run=run,
    explained_by=("CON001", "CON006", "TRN001", "TRN004", "TRN009", "TRN013"),
)

"""ENG006: Mooncake's transfer engine listens at an address that other hosts can reach."""

from kvdiag.checks.base import Check, Failed, Hosts, Outcome, Passed
from kvdiag.checks.logged import logged, none_logged
from kvdiag.derive.addresses import address_of, is_local_only
from kvdiag.derive.rdma import joined
from kvdiag.model.finding import Finding, Severity

CODE = "ENG006"


def run(hosts: Hosts) -> Outcome:
    found = logged(hosts.local, "rpc_listening")
    if not found:
        return none_logged(hosts, "no transfer engine says where it listens")
    local = tuple(item for item in found if is_local_only(item.field("host")))
    if not local:
        return Passed(joined(f"{item.field('host')}:{item.field('port')}" for item in found))
    remote = [peer.host for peer in hosts.peers if peer.host != hosts.local.host]
    endpoint = f"{local[0].field('host')}:{local[0].field('port')}"
    return Failed(
        (
            Finding(
                code=CODE,
                # Both ends may be on one host, for which loopback is right.
                severity=Severity.WARNING if remote else Severity.INFO,
                subject=endpoint,
                summary=(
                    f"the transfer engine gives {endpoint} as its address: "
                    f"{joined(remote) if remote else 'engines on other hosts'} would connect to themselves"
                ),
                evidence=(local[0].evidence("listening", "an address that the peers can reach"),),
                action=(
                    f"start it with the local host name {address_of(hosts.local)} (Mooncake's local_hostname, SGLang's "
                    f"--host, vLLM's VLLM_HOST_IP); then from a peer: nc -zv {address_of(hosts.local)} "
                    f"{local[0].field('port')}"
                ),
                host=hosts.local.host,
            ),
        )
    )


CHECK = Check(code=CODE, title="the transfer engine's address can be reached from other hosts", run=run)

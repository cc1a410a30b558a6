"""GDR011: the processor forwards reads of GPU memory between root ports."""

import re

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.gpu_pairs import pairs
from kvdiag.derive.rdma import joined
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing
from kvdiag.model.platform import Platform

CODE = "GDR011"
_CLIENT = re.compile(r"Core\(TM\)|\bCore Ultra\b|Pentium|Celeron|\bN\d{2,3}\b")
"""Brands of Intel's client processors; of these the vendor says that only writes are forwarded between root ports."""


def run(hosts: Hosts) -> Outcome:
    found = pairs(hosts.local)
    if isinstance(found, Missing):
        return NotObservable(found.missing)
    if not found:
        return NotApplicable("no pair of a GPU and an ACTIVE port of an RDMA card")
    platform = hosts.local.part(Platform)
    if isinstance(platform, Missing):
        return NotObservable(platform.missing)
    if isinstance(platform.cpu_vendor, Missing):
        return NotObservable(platform.cpu_vendor.missing)
    if platform.cpu_vendor != "GenuineIntel":
        return Passed(f"the processor is not Intel's: {platform.cpu_vendor}")
    if isinstance(platform.cpu_model, Missing):
        return NotObservable(platform.cpu_model.missing)
    if "Xeon" in platform.cpu_model or not _CLIENT.search(platform.cpu_model):
        return Passed(f"{platform.cpu_model} is no client processor of Intel")
    across = [pair for pair in found if not pair.is_switched]
    if not across:
        return Passed("every GPU shares a PCI switch with the RDMA cards, which forwards reads")
    cards = dict.fromkeys(pair.device.name for pair in across)
    finding = Finding(
        code=CODE,
        severity=Severity.WARNING,
        subject=joined(cards),
        summary=(
            f"{platform.cpu_model} forwards no reads between root ports: {joined(cards)} cannot send from GPU memory"
        ),
        evidence=(
            Evidence(
                name="processor", value=platform.cpu_model, source="/proc/cpuinfo", threshold="a server processor"
            ),
            Evidence(
                name="pairs under different root ports",
                value=joined(f"{pair.device.name}–{pair.gpu.address}" for pair in across),
                source="/sys/bus/pci/devices",
            ),
        ),
        action=(
            "put GPU and card below one PCI switch, or let transfers out of this host pass through host memory "
            "(vLLM: kv_buffer_device=cpu in --kv-transfer-config); receiving into GPU memory works"
        ),
        host=hosts.local.host,
        devices=tuple(cards),
    )
    return Failed((finding,))


CHECK = Check(code=CODE, title="the processor forwards reads of GPU memory", run=run)

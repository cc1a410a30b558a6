"""CON001: libibverbs lists every device that the kernel has."""

from kvdiag.checks.base import Check, Failed, Hosts, NotApplicable, NotObservable, Outcome, Passed
from kvdiag.derive.rdma import joined
from kvdiag.derive.setting import group_here, unit_of
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing, present
from kvdiag.model.rdma import RdmaDevice, RdmaDevices
from kvdiag.model.snapshot import Snapshot
from kvdiag.model.verbs import DeviceNodes, VerbsDevices, VerbsProviders

CODE = "CON001"
PROVIDERS = {
    "bnxt_en": "bnxt_re",
    "efa": "efa",
    "hns3": "hns",
    "i40e": "irdma",
    "ice": "irdma",
    "idpf": "irdma",
    "ionic": "ionic",
    "mana": "mana",
    "mlx4_core": "mlx4",
    "mlx5_core": "mlx5",
    "qede": "qedr",
    "rdma_rxe": "rxe",
    "siw": "siw",
    "vmw_pvrdma": "vmw_pvrdma",
}
"""The user-space provider for the devices of each kernel driver (rdma-core, directory providers/)."""


def run(hosts: Hosts) -> Outcome:
    devices = hosts.local.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    # libibverbs also leaves out devices without a node in /dev/infiniband; that is what CON006 finds.
    reachable = [device for device in devices.devices if _has_node(device, hosts)]
    if not reachable:
        return NotApplicable("no RDMA device with a node in /dev/infiniband")
    providers = hosts.local.part(VerbsProviders)
    verbs = hosts.local.part(VerbsDevices)
    if not isinstance(verbs, Missing):
        listed = {device.name for device in verbs.devices}
        lacking = [device for device in reachable if device.name not in listed]
        seen = Evidence(
            name="devices that libibverbs lists",
            value=str(len(listed)),
            source=verbs.origin,
            threshold=f"{len(reachable)} as in /sys/class/infiniband",
        )
    else:
        known = [(device, _installed(device, providers)) for device in reachable]
        hidden = [installed for _, installed in known if isinstance(installed, Missing)]
        if hidden:
            return NotObservable(f"{verbs.missing}; {hidden[0].missing}")
        lacking = [device for device, installed in known if not installed]
        seen = Evidence(name="devices that libibverbs lists", value="unknown", source=verbs.missing)
    if not lacking and isinstance(verbs, Missing):
        return NotObservable(f"a provider is installed for each device; whether it loads is hidden: {verbs.missing}")
    if not lacking:
        return Passed(f"{len(reachable)} of {len(reachable)} device(s) have a user-space provider")
    return Failed((_finding(lacking, len(reachable), seen, providers, hosts.local),))


def _has_node(device: RdmaDevice, hosts: Hosts) -> bool:
    nodes = hosts.local.part(DeviceNodes)
    if isinstance(device.uverbs, Missing):
        return False
    return isinstance(nodes, Missing) or nodes.named(device.uverbs) is not None


def _installed(device: RdmaDevice, providers: VerbsProviders | Missing) -> bool | Missing:
    if isinstance(providers, Missing):
        return providers
    if isinstance(device.driver, Missing) or device.driver not in PROVIDERS:
        return Missing(f"the provider for {device.name} (driver {device.driver}) is not known")
    return providers.has(PROVIDERS[device.driver])


def _finding(
    lacking: list[RdmaDevice], total: int, seen: Evidence, providers: VerbsProviders | Missing, snapshot: Snapshot
) -> Finding:
    drivers = sorted({device.driver for device in lacking if isinstance(device.driver, str)})
    needed = sorted({PROVIDERS[driver] for driver in drivers if driver in PROVIDERS})
    absent = [name for name in needed if isinstance(providers, VerbsProviders) and providers.has(name) is False]
    evidence = [seen]
    if isinstance(providers, VerbsProviders):
        root = providers.root.rstrip("/")
        installed = present(providers.drivers) or ()
        evidence.append(
            Evidence(
                name="installed *.driver files",
                value=joined(installed, 20) or "none",
                source=f"{root}/etc/libibverbs.d",
                threshold=joined(needed) or None,
            )
        )
    names = joined(device.name for device in lacking)
    if absent or not needed:
        what = f"provider {joined(absent)} is not installed" if absent else "libibverbs has no provider for them"
        action = "apt-get install ibverbs-providers libibverbs1 librdmacm1 (dnf install libibverbs librdmacm)" + (
            "" if unit_of(group_here(snapshot)) else " in the image"
        )
    else:
        what = "their provider is installed but does not load"
        action = (
            "run ibv_devinfo and read what it says first: provider and libibverbs must come from one rdma-core release"
        )
    return Finding(
        code=CODE,
        severity=Severity.CRITICAL,
        subject=names,
        summary=f"{len(lacking)} of {total} RDMA device(s) cannot be used by programs: {what}",
        evidence=tuple(evidence),
        action=action,
        host=snapshot.host,
        devices=tuple(device.name for device in lacking),
    )


CHECK = Check(code=CODE, title="libibverbs lists every RDMA device", run=run, explains=("TRN001",))

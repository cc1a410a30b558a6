"""TRN002: the kernel has at least one RDMA device."""

from kvdiag.checks.base import Check, Failed, Hosts, NotObservable, Outcome, Passed
from kvdiag.derive.environments import environments
from kvdiag.derive.rdma import joined
from kvdiag.derive.setting import set_variable
from kvdiag.model.finding import Evidence, Finding, Severity
from kvdiag.model.missing import Missing, present
from kvdiag.model.pci import VENDOR_AMAZON, VENDOR_AMD, VENDOR_MELLANOX, VENDOR_NVIDIA, PciFunction, PciFunctions
from kvdiag.model.rdma import RdmaDevices
from kvdiag.model.snapshot import Snapshot

CODE = "TRN002"
_WANTING = ("MC_FORCE_HCA", "MORI_RDMA_DEVICES", "NCCL_IB_HCA")
_INFINIBAND_CONTROLLER = 0x0207
_COPIES = {VENDOR_NVIDIA: "cuda_copy,cuda_ipc", VENDOR_AMD: "rocm_copy,rocm_ipc"}
_EFA_DEVICES = range(0xEFA0, 0xEFB0)


def run(hosts: Hosts) -> Outcome:
    snapshot = hosts.local
    devices = snapshot.part(RdmaDevices)
    if isinstance(devices, Missing):
        return NotObservable(devices.missing)
    if devices.devices:
        return Passed(f"{len(devices.devices)} RDMA device(s): {joined(device.name for device in devices.devices)}")
    cards = _cards(snapshot)
    wanted = _wanted(snapshot)
    severity = Severity.CRITICAL if wanted else Severity.WARNING if cards else Severity.INFO
    summary = "no RDMA device: this host cannot carry RDMA, KV transfers can only go over TCP"
    if cards:
        summary = f"{len(cards)} card(s) that can do RDMA are fitted, but the kernel shows no RDMA device"
    elif wanted:
        summary += f", yet {wanted[0].name} asks for RDMA devices"
    evidence = (Evidence(name="RDMA devices", value="0", source="/sys/class/infiniband", threshold="at least 1"),)
    finding = Finding(
        code=CODE,
        severity=severity,
        subject="host",
        summary=summary,
        evidence=evidence + tuple(_shown(card) for card in cards) + wanted,
        action=_action(cards, snapshot),
        host=snapshot.host,
    )
    return Failed((finding,))


def _cards(snapshot: Snapshot) -> tuple[PciFunction, ...]:
    functions = snapshot.part(PciFunctions)
    if isinstance(functions, Missing):
        return ()
    return tuple(function for function in functions.functions if _can_do_rdma(function) and not function.given_away)


def _can_do_rdma(function: PciFunction) -> bool:
    if function.vendor == VENDOR_AMAZON:
        return function.device in _EFA_DEVICES
    return function.class_code >> 8 == _INFINIBAND_CONTROLLER or (
        function.vendor == VENDOR_MELLANOX and function.base_class == 0x02
    )


def _wanted(snapshot: Snapshot) -> tuple[Evidence, ...]:
    """Return the variables that name RDMA devices; UCX_NET_DEVICES does where an entry has a port (`mlx5_0:1`)."""
    found: dict[str, Evidence] = {}
    for environment in present(environments(snapshot)) or ():
        for name, value in environment.variables.items():
            if (name in _WANTING and value not in ("", "0")) or (name == "UCX_NET_DEVICES" and ":" in value):
                found.setdefault(name, Evidence(name=name, value=value, source=environment.origin))
    return tuple(found[name] for name in sorted(found))


def _shown(card: PciFunction) -> Evidence:
    driver = "no driver" if isinstance(card.driver, Missing) else f"driver {card.driver}"
    return Evidence(
        name="card",
        value=f"{card.address} {card.vendor:04x}:{card.device:04x}, {driver}",
        source=f"/sys/bus/pci/devices/{card.address}",
    )


def _over_tcp(snapshot: Snapshot) -> str:
    """Return how the engines here are told to take TCP: each transport in its own way; UCX with the GPUs' copies."""
    named = present(environments(snapshot)) or ()
    functions = present(snapshot.part(PciFunctions))
    vendors = {item.vendor for item in functions.functions if item.base_class in (0x03, 0x12)} if functions else set()
    copies = [kind for vendor, kind in _COPIES.items() if vendor in vendors]
    ways = []
    for item in named:
        if not item.lists or "UCX_" in item.lists:
            ways.append(set_variable(item.group, "UCX_TLS", ",".join(("tcp", "sm", "self", *copies))))
        if "MC_" in item.lists:
            ways.append(set_variable(item.group, "MC_FORCE_TCP", 1))
    return f": {' and '.join(dict.fromkeys(ways))}" if ways else ""


def _action(cards: tuple[PciFunction, ...], snapshot: Snapshot) -> str:
    if not cards:
        return (
            "use a host with an RDMA card, or give this virtual machine or container one; "
            f"to go on over TCP on purpose{_over_tcp(snapshot)}"
        )
    modules = {"mlx5_core": "mlx5_ib", "mlx4_core": "mlx4_ib"}
    drivers = {card.driver for card in cards if isinstance(card.driver, str)}
    names = sorted(modules[driver] for driver in drivers if driver in modules)
    if names:
        return f"modprobe -a ib_uverbs {' '.join(names)}"
    return (
        "load the card's RDMA driver (modprobe mlx5_ib, efa, irdma or bnxt_re) and read dmesg for why it did not start"
    )


CHECK = Check(code=CODE, title="the kernel has an RDMA device", run=run)

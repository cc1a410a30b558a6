"""The devices that libibverbs lists, with the active MTU of each port."""

import re
import sys
from dataclasses import dataclass, field

from kvdiag.model.missing import Missing
from kvdiag.model.verbs import VerbsDevice, VerbsDevices, VerbsPort
from kvdiag.sources._command import output
from kvdiag.sources.base import Context

_LINE = re.compile(r"^\s*([a-z_]+):\s+(\S+)|^\s*(Failed to open device)", re.MULTILINE)
_SHOWN = re.compile(r"^\s*hca_id:|No IB devices found|libibverbs", re.MULTILINE)
_LIMIT = re.compile(r"max_|vendor_part_id$")
_TEXTS = ("atomic_cap", "fw_ver")

# Runs in a process of its own: a provider library that crashes or hangs must not take kvdiag with it. It prints the
# lines of ibv_devinfo that are parsed here. struct ibv_port_attr begins with the enums state, max_mtu, active_mtu
# (infiniband/verbs.h, unchanged since libibverbs 1.0); ibv_query_port answers EINVAL beyond the last port. In struct
# ibv_device_attr 96 bytes come before vendor_id, and the ints that follow it are numbered from there.
_LIST = """
import ctypes
verbs = ctypes.CDLL("libibverbs.so.1", use_errno=True)
verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
verbs.ibv_get_device_name.restype = ctypes.c_char_p
verbs.ibv_get_device_name.argtypes = verbs.ibv_open_device.argtypes = [ctypes.c_void_p]
verbs.ibv_open_device.restype = ctypes.c_void_p
verbs.ibv_query_port.argtypes = [ctypes.c_void_p, ctypes.c_uint8, ctypes.c_void_p]
verbs.ibv_query_device.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
ATOMICS = {0: "ATOMIC_NONE", 1: "ATOMIC_HCA", 2: "ATOMIC_GLOB"}
LIMITS = {1: "vendor_part_id", 3: "max_qp", 8: "max_cq", 9: "max_cqe", 10: "max_mr", 11: "max_pd", 29: "max_srq"}
count = ctypes.c_int(0)
devices = verbs.ibv_get_device_list(ctypes.byref(count))
for index in range(count.value if devices else 0):
    print("hca_id:", verbs.ibv_get_device_name(devices[index]).decode())
    opened = verbs.ibv_open_device(devices[index])
    if not opened:
        print("Failed to open device")
        continue
    about = (ctypes.c_uint32 * 256)()
    if not verbs.ibv_query_device(opened, about):
        for index, name in LIMITS.items():
            print(name + ":", about[24 + index])
        print("atomic_cap:", ATOMICS.get(about[24 + 17], "unknown"))
    for port in range(1, 255):
        attributes = (ctypes.c_uint32 * 64)()
        if verbs.ibv_query_port(opened, port, attributes):
            break
        print("port:", port)
        print("active_mtu:", 128 << attributes[2])
"""


class VerbsDevicesSource:
    """Asks libibverbs when live; a copied tree keeps the output of `ibv_devinfo` in `commands/ibv_devinfo.txt`."""

    part = VerbsDevices

    def read(self, context: Context) -> VerbsDevices | Missing:
        said = output(context, "ibv_devinfo", (sys.executable, "-I", "-c", _LIST), _SHOWN)
        if isinstance(said, Missing):
            why = said.missing
            return Missing("libibverbs.so.1 cannot be loaded" if "libibverbs.so.1: cannot open" in why else why)
        return VerbsDevices(
            devices=parse(said.text),
            origin="libibverbs" if context.live else said.origin,
            warnings=warnings(f"{said.errors}\n{said.text}"),
        )


def warnings(text: str) -> tuple[str, ...]:
    """Return the warnings of libibverbs, each once and cut to 300 characters, at most 32 of them."""
    found = (line.strip()[:300] for line in text.splitlines() if line.lstrip().startswith("libibverbs: Warning: "))
    return tuple(dict.fromkeys(found))[:32]


def parse(text: str) -> tuple[VerbsDevice, ...]:
    """Return devices and ports from the text of `ibv_devinfo` (also with -v); "No IB devices found" has none."""
    found: list[_Listed] = []
    for key, value, failed in _LINE.findall(text):
        if key == "hca_id":
            found.append(_Listed(value))
        elif found and not failed:
            found[-1].add(key, value)
    return tuple(
        VerbsDevice(name=item.name, ports=tuple(item.ports), limits=item.limits, texts=item.texts) for item in found
    )


@dataclass(slots=True)
class _Listed:
    """What the lines since a device's name have said; limits of a port follow the device's and are not kept."""

    name: str
    ports: list[VerbsPort] = field(default_factory=list)
    limits: dict[str, int] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    def add(self, key: str, value: str) -> None:
        if key == "port" and value.isdecimal():
            unread = Missing(f"port {value} of {self.name} shows no active_mtu")
            self.ports.append(VerbsPort(number=int(value), active_mtu=unread))
        elif key == "active_mtu" and value.isdecimal() and self.ports:
            self.ports[-1] = VerbsPort(number=self.ports[-1].number, active_mtu=int(value))
        elif not self.ports and value.isdecimal() and len(value) < 20 and _LIMIT.match(key):
            self.limits[key] = int(value)
        elif not self.ports and key in _TEXTS:
            self.texts[key] = value


SOURCE = VerbsDevicesSource()

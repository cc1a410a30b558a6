"""The devices that libibverbs lists, with the active MTU of each port."""

import re
import sys

from kvdiag.model.missing import Missing
from kvdiag.model.verbs import VerbsDevice, VerbsDevices, VerbsPort
from kvdiag.sources._command import output
from kvdiag.sources.base import Context

_LINE = re.compile(r"^\s*(hca_id|port|active_mtu):\s+(\S+)|^\s*(Failed to open device)", re.MULTILINE)

# Runs in a process of its own: a provider library that crashes or hangs must not take kvdiag with it. It prints the
# lines of ibv_devinfo that are parsed here. struct ibv_port_attr begins with the enums state, max_mtu, active_mtu
# (infiniband/verbs.h, unchanged since libibverbs 1.0); ibv_query_port answers EINVAL beyond the last port.
_LIST = """
import ctypes
verbs = ctypes.CDLL("libibverbs.so.1", use_errno=True)
verbs.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
verbs.ibv_get_device_name.restype = ctypes.c_char_p
verbs.ibv_get_device_name.argtypes = verbs.ibv_open_device.argtypes = [ctypes.c_void_p]
verbs.ibv_open_device.restype = ctypes.c_void_p
verbs.ibv_query_port.argtypes = [ctypes.c_void_p, ctypes.c_uint8, ctypes.c_void_p]
count = ctypes.c_int(0)
devices = verbs.ibv_get_device_list(ctypes.byref(count))
for index in range(count.value if devices else 0):
    print("hca_id:", verbs.ibv_get_device_name(devices[index]).decode())
    opened = verbs.ibv_open_device(devices[index])
    if not opened:
        print("Failed to open device")
        continue
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
        said = output(context, "ibv_devinfo", (sys.executable, "-I", "-c", _LIST))
        if isinstance(said, Missing):
            why = said.missing
            return Missing("libibverbs.so.1 cannot be loaded" if "libibverbs.so.1: cannot open" in why else why)
        return VerbsDevices(devices=parse(said.text), origin="libibverbs" if context.live else said.origin)


def parse(text: str) -> tuple[VerbsDevice, ...]:
    """Return devices and ports from the text of `ibv_devinfo`; "No IB devices found" has none."""
    found: list[tuple[str, list[VerbsPort]]] = []
    for key, value, failed in _LINE.findall(text):
        if key == "hca_id":
            found.append((value, []))
        elif not found or failed:
            continue
        elif key == "port" and value.isdecimal():
            unread = Missing(f"port {value} of {found[-1][0]} shows no active_mtu")
            found[-1][1].append(VerbsPort(number=int(value), active_mtu=unread))
        elif key == "active_mtu" and value.isdecimal() and found[-1][1]:
            found[-1][1][-1] = VerbsPort(number=found[-1][1][-1].number, active_mtu=int(value))
    return tuple(VerbsDevice(name=name, ports=tuple(ports)) for name, ports in found)


SOURCE = VerbsDevicesSource()

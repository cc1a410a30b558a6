"""Processor and virtualisation from /proc/cpuinfo, maker and product from /sys/class/dmi/id."""

import re

from kvdiag.model.missing import Missing
from kvdiag.model.platform import Platform
from kvdiag.sources.base import Context
from kvdiag.sources.tree import Tree

_CPUINFO = "/proc/cpuinfo"
_DMI = "/sys/class/dmi/id"


class PlatformSource:
    """Each attribute is Missing on its own; the whole is Missing where neither place can be read."""

    part = Platform

    def read(self, context: Context) -> Platform | Missing:
        tree = Tree.of(context)
        cpuinfo = tree.read(_CPUINFO)
        product = tree.read(f"{_DMI}/product_name")
        if isinstance(cpuinfo, Missing) and isinstance(product, Missing):
            return cpuinfo
        return Platform(
            cpu_model=_line(cpuinfo, "model name"),
            cpu_vendor=_vendor(cpuinfo),
            is_guest=_is_guest(cpuinfo),
            vendor=tree.read(f"{_DMI}/sys_vendor"),
            product=product,
        )


def _line(cpuinfo: str | Missing, name: str) -> str | Missing:
    if isinstance(cpuinfo, Missing):
        return cpuinfo
    match = re.search(rf"^{name}[ \t]*:[ \t]*(\S.*)$", cpuinfo, re.MULTILINE)
    return match[1].strip() if match else Missing(f"{_CPUINFO} has no line {name!r}")


def _vendor(cpuinfo: str | Missing) -> str | Missing:
    """Return the maker as x86 names it, or the number that Arm gives it ("implementer 0x41")."""
    vendor = _line(cpuinfo, "vendor_id")
    implementer = _line(cpuinfo, "CPU implementer")
    return f"implementer {implementer}" if isinstance(vendor, Missing) and isinstance(implementer, str) else vendor


def _is_guest(cpuinfo: str | Missing) -> bool | Missing:
    """Return whether the flag `hypervisor` is set: bit 31 of ECX of CPUID leaf 1, which hypervisors set for guests."""
    flags = _line(cpuinfo, "flags")
    if isinstance(flags, Missing) and isinstance(_line(cpuinfo, "CPU implementer"), str):
        return Missing(f"{_CPUINFO} of an Arm processor does not say whether this is a guest")
    return flags if isinstance(flags, Missing) else "hypervisor" in flags.split()


SOURCE = PlatformSource()

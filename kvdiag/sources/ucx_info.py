"""The transports that UCX offers, from `ucx_info -d`."""

import re
from dataclasses import replace

from kvdiag.model.missing import Missing
from kvdiag.model.ucx import UcxDomain, UcxTransport, UcxTransports
from kvdiag.sources._command import output
from kvdiag.sources.base import Context

_LINE = re.compile(r"^#\s+(Transport|Device): (\S+)|^#\s+< (failed to open interface) >", re.MULTILINE)
_DOMAIN = re.compile(r"^#\s+(Memory domain|Component|register|memory types): (.+)$", re.MULTILINE)


class UcxInfoSource:
    """`ucx_info` speaks for the UCX it belongs to: an engine that brings its own UCX may offer other transports."""

    part = UcxTransports

    def read(self, context: Context) -> UcxTransports | Missing:
        said = output(context, "ucx_info-d", ("ucx_info", "-d"))
        if isinstance(said, Missing):
            return said
        transports = parse(said.text)
        if not transports:
            return Missing(f"{said.origin} lists no transport")
        return UcxTransports(transports=transports, origin=said.origin, domains=parse_domains(said.text))


def parse(text: str) -> tuple[UcxTransport, ...]:
    """Return the transports of `ucx_info -d` (seen with UCX 1.12 to 1.22) in the order listed."""
    found: list[UcxTransport] = []
    name = ""
    for key, value, failed in _LINE.findall(text):
        if key == "Transport":
            name = value
        elif key == "Device":
            found.append(UcxTransport(name=name, device=value, usable=True))
        elif failed and found:
            found[-1] = UcxTransport(name=found[-1].name, device=found[-1].device, usable=False)
    return tuple(found)


def parse_domains(text: str) -> tuple[UcxDomain, ...]:
    """Return the memory domains of `ucx_info -d` in the order listed."""
    found: list[UcxDomain] = []
    for key, value in _DOMAIN.findall(text):
        if key == "Memory domain":
            found.append(UcxDomain(name=value.strip(), component="", memory_types=(), dmabuf=False))
        elif not found:
            continue
        elif key == "Component":
            found[-1] = replace(found[-1], component=value.strip())
        elif key == "register":
            found[-1] = replace(found[-1], dmabuf="dmabuf" in value)
        else:
            found[-1] = replace(found[-1], memory_types=tuple(re.findall(r"([\w-]+) \(", value)))
    return tuple(found)


SOURCE = UcxInfoSource()

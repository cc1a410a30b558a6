"""The transports that UCX offers, from `ucx_info -d`."""

import re

from kvdiag.model.missing import Missing
from kvdiag.model.ucx import UcxTransport, UcxTransports
from kvdiag.sources._command import output
from kvdiag.sources.base import Context

_LINE = re.compile(r"^#\s+(Transport|Device): (\S+)|^#\s+< (failed to open interface) >", re.MULTILINE)


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
        return UcxTransports(transports=transports, origin=said.origin)


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


SOURCE = UcxInfoSource()

"""The providers and domains that libfabric offers, from `fi_info`."""

import re

from kvdiag.model.libfabric import LibfabricDomain, LibfabricDomains
from kvdiag.model.missing import Missing
from kvdiag.sources._command import output
from kvdiag.sources.base import Context

_LINE = re.compile(r"^[ \t]*(provider|fabric|domain|version):[ \t]*(\S*)", re.MULTILINE)

_SHOWN = re.compile(r"^\s*provider:|fi_getinfo", re.MULTILINE)


class FiInfoSource:
    """`fi_info` speaks for the libfabric it belongs to: an engine that brings its own may offer other providers."""

    part = LibfabricDomains

    def read(self, context: Context) -> LibfabricDomains | Missing:
        said = output(context, "fi_info", ("fi_info",), _SHOWN)
        if isinstance(said, Missing):
            # fi_info ends with the negated FI_ENODATA (61) where no provider offers anything (libfabric util/info.c).
            if "fi_getinfo: -61" in said.missing:
                return LibfabricDomains(domains=(), origin="fi_info")
            return said
        return LibfabricDomains(domains=parse(said.text), origin=said.origin)


def parse(text: str) -> tuple[LibfabricDomain, ...]:
    """Return the entries of `fi_info` (seen with libfabric 1.11 to 2.1), each once, in the order listed."""
    found: list[dict[str, str]] = []
    for key, value in _LINE.findall(text):
        if key == "provider":
            found.append({"provider": value, "fabric": "", "domain": "", "version": ""})
        elif found:
            found[-1][key] = value
    return tuple(dict.fromkeys(LibfabricDomain(**entry) for entry in found))


SOURCE = FiInfoSource()

"""How the bridges, network cards and accelerators are attached to PCI, from /sys/bus/pci/devices."""

import re

from kvdiag.model.missing import Missing
from kvdiag.model.pci_link import PciLink, PciLinks
from kvdiag.sources._command import output
from kvdiag.sources._pci_config import Settings, from_bytes, from_lspci, unknown
from kvdiag.sources.base import Context
from kvdiag.sources.pci import FOLDER
from kvdiag.sources.tree import Tree, reason

# Base classes: network, display, bridge, processing accelerator (PCI Code and ID Assignment Specification).
_CLASSES = (0x02, 0x03, 0x06, 0x12)
_ADDRESS = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_SPEED = re.compile(r"(\d{1,4}(?:\.\d+)?) GT/s")
_MEMORY = 0x200
"""IORESOURCE_MEM in the third column of `resource` (include/linux/ioport.h)."""


class PciLinksSource:
    """Settings of configuration space come from each function's `config`, else from `commands/lspci-vvv.txt`."""

    part = PciLinks

    def read(self, context: Context) -> PciLinks | Missing:
        tree = Tree.of(context)
        names = tree.names(FOLDER)
        if isinstance(names, Missing):
            return names
        listed = Missing("") if context.live else output(context, "lspci-vvv", ())
        settings = {} if isinstance(listed, Missing) else from_lspci(listed.text, listed.origin)
        found = (_function(tree, name, settings.get(name)) for name in names)
        return PciLinks(
            functions=tuple(function for function in found if function is not None),
            settings_origin=f"{FOLDER}/*/config" if isinstance(listed, Missing) else listed.origin,
        )


def _function(tree: Tree, address: str, listed: Settings | None) -> PciLink | None:
    base = f"{FOLDER}/{address}"
    class_code = tree.number(f"{base}/class", base=16)
    if isinstance(class_code, Missing) or class_code >> 16 not in _CLASSES:
        return None
    resolved = tree.resolve(base)
    parts = () if isinstance(resolved, Missing) else tuple(resolved.split("/"))
    settings = listed or _settings(tree, f"{base}/config")
    return PciLink(
        address=address,
        class_code=class_code,
        root=next((part for part in parts if part.startswith("pci")), ""),
        path=tuple(part for part in parts if _ADDRESS.fullmatch(part)),
        speed_gtps=_speed(tree, f"{base}/current_link_speed"),
        width=_width(tree, f"{base}/current_link_width"),
        max_speed_gtps=_speed(tree, f"{base}/max_link_speed"),
        max_width=_width(tree, f"{base}/max_link_width"),
        acs=settings.acs,
        relaxed_ordering=settings.relaxed_ordering,
        atomic_completer_bits=settings.atomic_completer_bits,
        iommu_group=tree.link(f"{base}/iommu_group"),
        iommu_type=tree.read(f"{base}/iommu_group/type"),
        window_bytes=_window(tree, f"{base}/resource"),
    )


def _settings(tree: Tree, path: str) -> Settings:
    try:
        return from_bytes(tree.read_bytes(path), path)
    except (OSError, ValueError) as error:
        return unknown(reason(path, error))


def _speed(tree: Tree, path: str) -> float | Missing:
    """Return 10^9 transfers/s; virtual functions show "Unknown"."""
    text = tree.read(path)
    if isinstance(text, Missing):
        return text
    match = _SPEED.match(text)
    return float(match[1]) if match else Missing(f"{path} holds {text[:40]!r}, not a speed in GT/s")


def _width(tree: Tree, path: str) -> int | Missing:
    """Return lanes; 0 and 255 stand for an unknown width (virtual functions, links that are down)."""
    lanes = tree.number(path)
    return lanes if isinstance(lanes, Missing) or 0 < lanes <= 32 else Missing(f"{path} holds {lanes}: no link width")


def _window(tree: Tree, path: str) -> int | Missing:
    """Return the largest memory window (bytes) in `resource`: a line each with start, end and flags in hexadecimal."""
    text = tree.read(path)
    if isinstance(text, Missing):
        return text
    sizes = []
    for line in text.splitlines()[:6]:
        try:
            start, end, flags = (int(word, 16) for word in line.split())
        except ValueError:
            return Missing(f"{path} holds {line[:60]!r}, not start, end and flags")
        if flags & _MEMORY and 0 <= start < end < 1 << 64:
            sizes.append(end - start + 1)
    return max(sizes) if sizes else Missing(f"{path} has no memory window")


SOURCE = PciLinksSource()

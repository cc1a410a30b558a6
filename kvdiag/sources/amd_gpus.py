"""AMD GPUs: sizes from amdgpu's sysfs, names and driver through amdsmi where it is installed."""

import sys

import msgspec

from kvdiag.model.gpu import AmdGpus, Gpu
from kvdiag.model.missing import Missing
from kvdiag.sources._amdsmi_query import Named
from kvdiag.sources._command import output
from kvdiag.sources.base import Context
from kvdiag.sources.pci import FOLDER
from kvdiag.sources.tree import Tree


class AmdGpusSource:
    """The functions that amdgpu drives; a copied tree keeps the answer of amdsmi in `commands/amdsmi.txt`."""

    part = AmdGpus

    def read(self, context: Context) -> AmdGpus | Missing:
        tree = Tree.of(context)
        names = tree.names(FOLDER)
        if isinstance(names, Missing):
            return names
        driven = [name for name in names if tree.link(f"{FOLDER}/{name}/driver") == "amdgpu"]
        if not driven:
            return Missing("amdgpu drives no PCI function")
        named = _named(context)
        version = tree.read("/sys/module/amdgpu/version")
        told = next((item.driver for item in named.values() if item.driver), None)
        return AmdGpus(
            gpus=tuple(_gpu(tree, address, named.get(address)) for address in driven),
            driver=version if told is None else told,
            origin=f"{FOLDER}/*/mem_info_*" + (" and amdsmi" if named else ""),
        )


def _gpu(tree: Tree, address: str, named: Named | None) -> Gpu:
    base = f"{FOLDER}/{address}"
    no_domain = Missing("AMD GPUs have no NVLink domain")
    return Gpu(
        address=address,
        name=named.name if named and named.name else tree.read(f"{base}/product_name"),
        memory_bytes=tree.number(f"{base}/mem_info_vram_total"),
        window_bytes=tree.number(f"{base}/mem_info_vis_vram_total"),
        window_used_bytes=tree.number(f"{base}/mem_info_vis_vram_used"),
        links=named.links if named and named.links >= 0 else Missing("amdsmi shows no xGMI links"),
        fabric_state=no_domain,
        cluster_uuid=no_domain,
    )


def _named(context: Context) -> dict[str, Named]:
    said = output(context, "amdsmi", (sys.executable, "-m", "kvdiag.sources._amdsmi_query"))
    if isinstance(said, Missing):
        return {}
    try:
        return {
            item.address: item for item in msgspec.json.decode(said.text.encode(errors="replace"), type=list[Named])
        }
    except msgspec.DecodeError:
        return {}


SOURCE = AmdGpusSource()

"""Which GPUs a process may use, as its environment says."""

from collections.abc import Mapping

from kvdiag.model.pci_topology import PciPlace, PciTopology

_VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def visible_gpus(variables: Mapping[str, str], topology: PciTopology) -> tuple[tuple[int, PciPlace], ...]:
    """Return the GPUs that one of *_VISIBLE_DEVICES lists by number, with their numbers; empty where none does.

    Numbers are taken in the order of PCI addresses: CUDA's default puts the fastest first, which is the same where all
    GPUs are of one model.
    """
    for name in _VARIABLES:
        words = [word.strip() for word in variables.get(name, "").split(",") if word.strip()]
        if words:
            gpus = topology.gpus
            numbers = [int(word) for word in words if word.isdecimal() and len(word) <= 3]
            return tuple((number, gpus[number]) for number in numbers if number < len(gpus))
    return ()

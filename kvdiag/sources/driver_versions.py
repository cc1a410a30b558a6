"""Versions of RDMA, network and GPU drivers from /sys/module."""

from kvdiag.model.driver_versions import DriverVersion, DriverVersions
from kvdiag.model.missing import Missing
from kvdiag.sources.base import Context
from kvdiag.sources.tree import Tree

_MODULES = (
    "amdgpu",
    "bnxt_en",
    "bnxt_re",
    "efa",
    "ena",
    "ib_core",
    "ice",
    "ionic",
    "ionic_rdma",
    "irdma",
    "mlx5_core",
    "mlx5_ib",
    "nvidia",
    "nvidia_peermem",
)
_MOST = 80


class DriverVersionsSource:
    """A module without a version is left out: the distribution's own drivers have that of the kernel."""

    part = DriverVersions

    def read(self, context: Context) -> DriverVersions | Missing:
        tree = Tree.of(context)
        folder = tree.names("/sys/module")
        if isinstance(folder, Missing):
            return folder
        found = ((name, tree.read(f"/sys/module/{name}/version")) for name in _MODULES if name in folder)
        return DriverVersions(
            drivers=tuple(
                DriverVersion(module=name, version=text[:_MOST]) for name, text in found if isinstance(text, str)
            )
        )


SOURCE = DriverVersionsSource()

"""IMEX channels from /dev/nvidia-caps-imex-channels and /proc/devices."""

from kvdiag.model.imex import ImexChannels
from kvdiag.model.missing import Missing, present
from kvdiag.sources.base import Context
from kvdiag.sources.tree import Tree

FOLDER = "/dev/nvidia-caps-imex-channels"
_CHARACTER_DEVICE = "nvidia-caps-imex-channels"


class ImexChannelsSource:
    """Missing where /proc/devices cannot be read: then an absent folder would say nothing."""

    part = ImexChannels

    def read(self, context: Context) -> ImexChannels | Missing:
        tree = Tree.of(context)
        devices = tree.read("/proc/devices")
        if isinstance(devices, Missing):
            return devices
        names = present(tree.names(FOLDER)) or ()
        return ImexChannels(
            channels=tuple(name for name in names if name.startswith("channel")),
            supported=any(line.split()[1:] == [_CHARACTER_DEVICE] for line in devices.splitlines()),
        )


SOURCE = ImexChannelsSource()

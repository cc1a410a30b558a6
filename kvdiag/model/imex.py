"""IMEX channels: what lets processes map GPU memory of other nodes in one NVLink domain."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ImexChannels:
    """`channels` are the nodes of /dev/nvidia-caps-imex-channels ("channel0"), empty where there is no such folder.

    `supported` is whether the NVIDIA driver registers the character device for them (/proc/devices).
    """

    channels: tuple[str, ...]
    supported: bool

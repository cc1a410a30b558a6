"""What changes of RDMA ports from second to second: state, rate and counters, read often and therefore cheaply.

Unlike the sources of the snapshot it reads no table (GIDs, P_Keys), and lists folders only now and then.
"""

import os
from dataclasses import dataclass, field

from kvdiag.model.missing import Missing
from kvdiag.model.rdma_live import DeviceReading, PortReading
from kvdiag.sources.base import Clock
from kvdiag.sources.rdma_sysfs import CLASS, device_names, port_numbers
from kvdiag.sources.tree import Tree, reason

LIST_EVERY_S = 30.0
"""Folders are listed again this often, and at once where a device came or went or a file has gone."""

_ATTRIBUTE_BYTES = 4096
"""The kernel ends every attribute of sysfs there."""

_FLAGS = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
_FOLDERS = ("counters", "hw_counters")


@dataclass(frozen=True, slots=True)
class _Files:
    """A folder by its real path, and the names in it: following links costs as much as reading."""

    local: str
    names: tuple[str, ...]


@dataclass(slots=True)
class _Layout:
    devices: tuple[str, ...] = ()
    ports: list[tuple[str, int, str, dict[str, _Files | Missing]]] = field(default_factory=list)
    device_files: dict[str, _Files] = field(default_factory=dict)
    listed_s: float = float("-inf")
    gone: frozenset[str] = frozenset()
    """Files that were there before, of devices that still are."""

    def files(self) -> frozenset[str]:
        """Return the local paths of all files."""
        folders = [*(files for *_, ones in self.ports for files in ones.values()), *self.device_files.values()]
        return frozenset(f"{one.local}/{name}" for one in folders if not isinstance(one, Missing) for name in one.names)


class PortReader:
    """Reads every port and device; what cannot be read is Missing, on its own."""

    def __init__(self, tree: Tree, clock: Clock) -> None:
        self._tree = tree
        self._clock = clock
        self._layout = _Layout()

    def read(self) -> tuple[tuple[PortReading, ...], tuple[DeviceReading, ...]] | Missing:
        """Return all ports and devices in order; Missing where /sys itself cannot be seen."""
        names = device_names(self._tree)
        if isinstance(names, Missing):
            return names
        now_s = self._clock.monotonic_s()
        known = self._layout
        if names != known.devices or now_s - known.listed_s >= LIST_EVERY_S or any(map(os.path.exists, known.gone)):
            self._layout = self._list(names, now_s)
            if names == known.devices:
                self._layout.gone = (known.files() | known.gone) - self._layout.files()
        ports = tuple(_port(*one) for one in self._layout.ports)
        if any("/" in name and "does not exist" in why for one in ports for name, why in one.unreadable.items()):
            self._layout.listed_s = float("-inf")
        if {name for name, *_ in self._layout.ports} != set(names):  # a device that is just coming
            self._layout.listed_s = float("-inf")
        devices = tuple(
            DeviceReading(device=name, counters=_values(f"{CLASS}/{name}/hw_counters", files, {}))
            for name, files in self._layout.device_files.items()
        )
        return ports, devices

    def _list(self, names: tuple[str, ...], now_s: float) -> _Layout:
        layout = _Layout(devices=names, listed_s=now_s)
        for device in names:
            files = self._files(f"{CLASS}/{device}/hw_counters")
            if not isinstance(files, Missing):
                layout.device_files[device] = files
            for number in port_numbers(self._tree, device):
                base = f"{CLASS}/{device}/ports/{number}"
                folders = {folder: self._files(f"{base}/{folder}") for folder in _FOLDERS}
                try:
                    local = os.path.realpath(self._tree.local(base))
                except OSError:
                    continue
                layout.ports.append((device, number, local, folders))
        return layout

    def _files(self, path: str) -> _Files | Missing:
        names = self._tree.names(path)
        if isinstance(names, Missing):
            return names
        return _Files(os.path.realpath(self._tree.local(path)), names)


def _port(device: str, number: int, local: str, folders: dict[str, _Files | Missing]) -> PortReading:
    base = f"{CLASS}/{device}/ports/{number}"
    unreadable: dict[str, str] = {}
    values: dict[str, dict[str, int]] = {}
    for folder, files in folders.items():
        if isinstance(files, Missing):
            unreadable[folder] = files.missing
            values[folder] = {}
        else:
            found: dict[str, str] = {}
            values[folder] = _values(f"{base}/{folder}", files, found)
            unreadable.update((f"{folder}/{name}", why) for name, why in found.items())
    return PortReading(
        device=device,
        port=number,
        state=_after_colon(_text(f"{base}/state", f"{local}/state")),
        phys_state=_after_colon(_text(f"{base}/phys_state", f"{local}/phys_state")),
        rate_gbps=_rate(_text(f"{base}/rate", f"{local}/rate")),
        counters=values["counters"],
        hw_counters=values["hw_counters"],
        unreadable=unreadable,
    )


def _values(folder: str, files: _Files, unreadable: dict[str, str]) -> dict[str, int]:
    """Return the numbers of a folder's files, found from the folder: the way to it is long, and walked once."""
    values: dict[str, int] = {}
    try:
        within = os.open(files.local, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        unreadable.update((name, reason(f"{folder}/{name}", error).missing) for name in files.names)
        return values
    try:
        for name in files.names:
            try:
                raw = _raw(name, within)
            except OSError as error:
                unreadable[name] = reason(f"{folder}/{name}", error).missing
                continue
            try:
                values[name] = int(raw)
            except ValueError:  # "N/A (no PMA)" of a driver without the management agent
                shown = raw[:40].decode(errors="replace").strip()
                unreadable[name] = f"{folder}/{name} holds {shown!r}, not a number"
    finally:
        os.close(within)
    return values


def _raw(path: str, within: int | None = None) -> bytes:
    descriptor = os.open(path, _FLAGS, dir_fd=within)
    try:
        return os.read(descriptor, _ATTRIBUTE_BYTES)
    finally:
        os.close(descriptor)


def _text(path: str, local: str) -> str | Missing:
    try:
        return _raw(local).decode().strip()
    except (OSError, ValueError) as error:
        return reason(path, error)


def _after_colon(text: str | Missing) -> str | Missing:
    """Return the name in "4: ACTIVE"."""
    if isinstance(text, Missing):
        return text
    number, colon, name = text.partition(":")
    return name.strip() if colon and number.isdecimal() and name.strip() else Missing(f"{text[:40]!r} is no state")


def _rate(text: str | Missing) -> float | Missing:
    """Return the number in "400 Gb/sec (4X NDR)"."""
    if isinstance(text, Missing):
        return text
    number, _, rest = text.partition(" ")
    try:
        return float(number) if rest.startswith("Gb/sec") else Missing(f"{text[:40]!r} is no rate in Gb/sec")
    except ValueError:
        return Missing(f"{text[:40]!r} is no rate in Gb/sec")

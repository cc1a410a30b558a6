"""A tracing file system for tests: it keeps to the kernel's rules about what may be set and removed when."""

import errno
import os
import re
from dataclasses import dataclass, field

Rows = list[tuple[dict[str, int], int, dict[str, int]]]
"""Keys, hits and sums."""

HEAD = "# event histogram\n#\n# trigger info: {trigger} [active]\n#\n\n"
TOTALS = "\nTotals:\n    Hits: {hits}\n    Entries: {entries}\n    Dropped: {dropped}\n"
NAMES = ("ib_uverbs_reg_mr", "ib_dereg_mr_user", "ib_umem_get", "ib_modify_qp_with_udata")


@dataclass
class FakeTracefs:
    """`functions` are those that the kernel has; `worked` and `failed` what the histograms of a function show."""

    functions: tuple[str, ...] = NAMES
    kprobes: list[str] = field(default_factory=list)
    synthetic: list[str] = field(default_factory=list)
    instances: dict[str, list[str]] = field(default_factory=dict)
    held: dict[int, str] = field(default_factory=dict)
    worked: dict[str, Rows] = field(default_factory=dict)
    failed: dict[str, Rows] = field(default_factory=dict)
    returned: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    cleared: list[str] = field(default_factory=list)

    def text(self, path: str) -> str:
        self._check(path)
        if path == "kprobe_events":
            return "".join(f"{line}\n" for line in self.kprobes)
        if path == "synthetic_events":
            return "".join(f"{line}\n" for line in self.synthetic)
        if path == "kprobe_profile":
            probes = (re.fullmatch(r"[pr]\d*:\w+/(\w+) (\w+).*", line) for line in self.kprobes)
            return "".join(f"  {one[1]}  {self.returned.get(one[2], 0)}  0\n" for one in probes if one)
        if path.endswith("/trigger"):
            lines = [one.partition(" ")[2] for one in self.instances[path.split("/")[1]] if one.startswith(f"{path} ")]
            return "".join(f"{line} [active]\n" for line in lines)
        event = path.split("/")[-2]
        folder = path.rpartition("/")[0]
        triggers = self.instances[path.split("/")[1]]
        mine = [one.partition(" ")[2] for one in triggers if one.startswith(f"{folder}/trigger ")]
        function = self.function(event)
        parts = []
        for trigger in mine:
            rows = (self.worked if "ns.log2" in trigger else self.failed).get(function, [])
            body = "".join(_row(*row, logarithm="ns.log2" in trigger) for row in rows)
            total = TOTALS.format(hits=sum(row[1] for row in rows), entries=len(rows), dropped=0)
            parts.append(HEAD.format(trigger=trigger) + body + total)
        return "\n\n".join(parts)

    def function(self, event: str) -> str:
        """Return which function an event is of."""
        return next(line.split()[1] for line in self.kprobes if f"/{event}_out " in line)

    def append(self, path: str, line: str) -> None:
        self._check(path)
        if path == "kprobe_events":
            self._kprobe(line)
        elif path == "synthetic_events":
            name = line.lstrip("!").split()[0]
            if line.startswith("!"):
                if self._used(name):
                    raise OSError(errno.EBUSY, "Device or resource busy")
                self.synthetic = [one for one in self.synthetic if one.split()[0] != name]
            else:
                self.synthetic.append(line)
        elif path.endswith("/trigger"):
            triggers = self.instances[path.split("/")[1]]
            if line.startswith("!"):
                if f"{path} {line[1:]}" not in triggers:
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
                triggers.remove(f"{path} {line[1:]}")
            elif ":clear" in line:
                assert f"{path} {line.replace(':clear', '')}" in triggers
                self.cleared.append(line)
            else:
                triggers.append(f"{path} {line}")

    def _kprobe(self, line: str) -> None:
        if line.startswith("-:"):
            if self._used(line[2:].split("/")[1]):
                raise OSError(errno.EBUSY, "Device or resource busy")
            self.kprobes = [one for one in self.kprobes if one.split()[0].partition(":")[2] != line[2:]]
            return
        if line.split()[1] not in self.functions:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        self.kprobes.append(line)

    def make_folder(self, path: str) -> None:
        self._check(path)
        self.instances[path.split("/")[1]] = []

    def remove_folder(self, path: str) -> None:
        name = path.split("/")[1]
        if name not in self.instances:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        # Histograms with variables hold their instance.
        if name in self.held.values() or any("_ts=" in trigger for trigger in self.instances[name]):
            raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
        del self.instances[name]

    def names(self, path: str) -> list[str]:
        self._check(path)
        if path == "instances":
            return sorted(self.instances)
        places = [one.partition("/trigger")[0] for one in self.instances[path.split("/")[1]]]
        return sorted({place.rpartition("/")[2] for place in places if place.rpartition("/")[0] == path})

    def lock(self, path: str) -> int:
        self._check(path)
        if path.split("/")[1] in self.held.values():
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        number = max(self.held, default=100) + 1
        self.held[number] = path.split("/")[1]
        return number

    def release(self, held: int) -> None:
        del self.held[held]

    def _used(self, event: str) -> bool:
        return any(event in trigger for triggers in self.instances.values() for trigger in triggers)

    def _check(self, path: str) -> None:
        for part, code in self.refused.items():
            if part in path:
                raise OSError(code, os.strerror(code), path)
        if path.startswith("instances/") and "/" in path[10:] and path.split("/")[1] not in self.instances:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _row(keys: dict[str, int], hits: int, sums: dict[str, int], *, logarithm: bool) -> str:
    shown = ", ".join(
        f"{name}: ~ 2^{value:<2}" if name == "ns" and logarithm else f"{name}: {value % (1 << 64):10d}"
        for name, value in keys.items()
    )
    added = "".join(f"  {name}: {value:10d}" for name, value in sums.items())
    return f"{{ {shown} }} hitcount: {hits:10d}{added}\n"

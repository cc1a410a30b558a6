"""A process from /proc/PID: CPU time, memory, pinned memory and its limit, file descriptors, threads."""

import os
from typing import Literal

from kvdiag.model.missing import Missing
from kvdiag.model.process import Process
from kvdiag.sources.base import Context
from kvdiag.sources.tree import Tree, reason

# Times in /proc/PID/stat are in clock ticks (proc(5)).
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class ProcessSource:
    """The serving process that the context names."""

    part = Process

    def read(self, context: Context) -> Process | Missing:
        if context.pid is None:
            return Missing("no process was named")
        return read_process(Tree.of(context), context.pid)


def read_process(tree: Tree, pid: int) -> Process | Missing:
    """Return one process, or why it cannot be seen; only its owner and root see the open files."""
    base = f"/proc/{pid}"
    try:
        fields = _stat(tree.read_text(f"{base}/stat"))
        status = _status(tree.read_text(f"{base}/status"))
    except (FileNotFoundError, ProcessLookupError):
        return Missing(f"there is no process {pid}")
    except (OSError, ValueError) as error:
        return reason(f"{base}/stat", error)
    name, numbers = fields
    fds = tree.names(f"{base}/fd")
    boot_s = _boot_s(tree)
    # Field numbers of proc(5) minus 4: the list begins after the state.
    return Process(
        pid=pid,
        parent_pid=numbers[0],
        name=name,
        start_ticks=numbers[18],
        start_s=boot_s if isinstance(boot_s, Missing) else boot_s + numbers[18] / _TICKS_PER_S,
        cpu_s=(numbers[10] + numbers[11]) / _TICKS_PER_S,
        reaped_cpu_s=(numbers[12] + numbers[13]) / _TICKS_PER_S,
        threads=numbers[16],
        rss_bytes=status.get("VmRSS", Missing(f"{base}/status has no VmRSS")),
        pinned_bytes=status.get("VmPin", Missing(f"{base}/status has no VmPin")),
        locked_bytes=status.get("VmLck", Missing(f"{base}/status has no VmLck")),
        open_fds=fds if isinstance(fds, Missing) else len(fds),
        memlock_limit_bytes=_memlock_limit(tree, f"{base}/limits"),
    )


def descendants(tree: Tree, pid: int) -> tuple[int, ...] | Missing:
    """Return the ids of the live children of a process, their children and so on, in no particular order.

    Missing where a process that is there does not show its children: the ones that can be seen are not all.
    """
    found: list[int] = []
    waiting = [pid]
    while waiting:
        parent = waiting.pop()
        tasks = tree.names(f"/proc/{parent}/task")
        for task in () if isinstance(tasks, Missing) else tasks:
            path = f"/proc/{parent}/task/{task}/children"
            children = tree.read(path)
            if isinstance(children, Missing):
                if tree.exists(f"/proc/{parent}/task/{task}"):  # else a thread that has just ended
                    return children
                continue
            if not all(child.isdecimal() for child in children.split()):
                return Missing(f"{path} holds {children[:40]!r}, not process ids")
            ids = [int(child) for child in children.split()]
            found += ids
            waiting += ids
    return tuple(found)


def _stat(text: str) -> tuple[str, list[int]]:
    """Split /proc/PID/stat: the name is in brackets and may itself hold brackets and spaces."""
    head, _, tail = text.rpartition(")")
    numbers = [int(part) for part in tail.split()[1:]]
    if len(numbers) < 19:
        raise ValueError(f"holds {text[:40]!r}, not the fields of proc(5)")
    return head.partition("(")[2], numbers


def _status(text: str) -> dict[str, int]:
    """Return the kB lines of /proc/PID/status in bytes."""
    found = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        parts = value.split()
        if len(parts) == 2 and parts[1] == "kB" and parts[0].isdecimal():
            found[name] = int(parts[0]) * 1024
    if ":" not in text or "\ufffd" in text:  # one without any memory is a process that has ended and was not waited for
        raise ValueError(f"holds {text[:40]!r}, not the lines of proc(5)")
    return found


def _boot_s(tree: Tree) -> float | Missing:
    text = tree.read("/proc/stat")
    if isinstance(text, Missing):
        return text
    for line in text.splitlines():
        if line.startswith("btime ") and line.removeprefix("btime ").strip().isdecimal():
            return float(line.removeprefix("btime "))
    return Missing("/proc/stat has no btime")


def _memlock_limit(tree: Tree, path: str) -> int | Literal["unlimited"] | Missing:
    text = tree.read(path)
    if isinstance(text, Missing):
        return text
    for line in text.splitlines():
        if line.startswith("Max locked memory"):
            soft = (*line.removeprefix("Max locked memory").split(), "")[0]
            if soft == "unlimited":
                return "unlimited"
            return int(soft) if soft.isdecimal() else Missing(f"{path} holds {line[:60]!r}, not a limit")
    return Missing(f"{path} has no line 'Max locked memory'")


SOURCE = ProcessSource()

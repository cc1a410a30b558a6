"""The hosts that `kvdiag preflight` and `kvdiag snapshot` look at: this one, a copied tree, or a saved snapshot."""

from pathlib import Path
from typing import TYPE_CHECKING

from kvdiag.errors import UsageError

if TYPE_CHECKING:
    from kvdiag.model.snapshot import Snapshot
    from kvdiag.sources.base import Context


def read_host(
    root: Path | None = None, snapshot: Path | None = None, pid: int | None = None, logs: tuple[Path, ...] = ()
) -> "Snapshot":
    """Return the snapshot of the host that the flags name; UsageError or InputError names the flag that is wrong."""
    from kvdiag.model.missing import Missing
    from kvdiag.model.serving import ServingProcesses
    from kvdiag.sources import snapshot_file
    from kvdiag.sources.base import Context, collect

    if snapshot is not None:
        for flag, given in (("--root", root), ("--pid", pid), ("--log", logs)):
            if given:
                raise UsageError(f"{flag}: a saved snapshot is replayed as it is; leave out {flag} or --snapshot")
        return snapshot_file.read(snapshot, "--snapshot")
    for file in logs:
        if not file.is_file():
            what = "not a regular file" if file.exists() else "no such file"
            raise UsageError(f"--log {file}: {what}; give an engine's log, such as the redirected output of its start")
    context = Context(pid=pid, logs=logs) if root is None else tree_context(root, "--root", pid=pid, logs=logs)
    found = collect(context)
    serving = found.part(ServingProcesses)
    if pid is not None and isinstance(serving, Missing):
        raise UsageError(f"--pid {pid}: {serving.missing}")
    return found


def read_peers(roots: list[Path], snapshots: list[Path]) -> "list[Snapshot]":
    """Return the snapshots of peers that are copied trees or saved snapshots."""
    from kvdiag.sources import snapshot_file
    from kvdiag.sources.base import collect

    found = [collect(tree_context(root, "--peer-root")) for root in roots]
    return found + [snapshot_file.read(path, "--peer-snapshot") for path in snapshots]


def tree_context(root: Path, flag: str, *, pid: int | None = None, logs: tuple[Path, ...] = ()) -> "Context":
    """Return the context of a copied tree; UsageError where the folder is none."""
    from kvdiag.sources.base import Context

    if not (root / "sys").is_dir():
        raise UsageError(f"{flag} {root}: not a host's tree, it has no folder sys; give the folder that holds it")
    return Context(root=root, live=False, pid=pid, logs=logs)

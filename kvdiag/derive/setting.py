"""How a variable gets into the environment of a process: what started it decides, and its control group shows that."""

from kvdiag.model.missing import present
from kvdiag.model.serving import ServingProcess, ServingProcesses
from kvdiag.model.snapshot import Snapshot


def unit_of(group: str) -> str | None:
    """Return the systemd service that a control group belongs to; None in a container and in a login's session."""
    if any(word in group for word in ("kubepods", "docker", "libpod", "slurm")):
        return None
    unit = next((part for part in reversed(group.split("/")) if part.endswith(".service")), None)
    return None if unit is None or unit.startswith("user@") else unit


def group_of(process: ServingProcess) -> str:
    """Return the control group of a process, "" where it cannot be seen."""
    return present(process.cgroup) or ""


def set_variables(group: str, values: dict[str, str]) -> str:
    """Return what to do so that a process of this control group starts with these variables."""
    if "kubepods" in group:
        listed = ", ".join(f'{{name: {name}, value: "{value}"}}' for name, value in values.items())
        return f"in the container's spec of the pod: env: [{listed}]"
    if "docker" in group or "libpod" in group:
        return "start the container with " + " ".join(f"-e {name}={value}" for name, value in values.items())
    if unit := unit_of(group):
        return _edit(unit, "Environment=" + " ".join(f"{name}={value}" for name, value in values.items()))
    return "export " + " ".join(f"{name}={value}" for name, value in values.items())


def set_variable(group: str, name: str, value: object) -> str:
    """Return what to do so that a process of this control group starts with this variable."""
    return set_variables(group, {name: str(value)})


def unset_variable(group: str, name: str) -> str:
    """Return what to do so that a process of this control group starts without this variable."""
    if "kubepods" in group:
        return f"take {name} out of the env of the pod's container"
    if "docker" in group or "libpod" in group:
        return f"start the container without -e {name}"
    if unit := unit_of(group):
        return _edit(unit, f"UnsetEnvironment={name}")
    return f"unset {name}"


def _edit(unit: str, line: str) -> str:
    return f"systemctl edit {unit} (below [Service]: {line}) && systemctl restart {unit}"


def group_here(snapshot: Snapshot) -> str:
    """Return the control group of the one process that serves here, "" where there is none or several differ."""
    serving = present(snapshot.part(ServingProcesses))
    groups = {group_of(process) for process in serving.processes} if serving else set()
    return groups.pop() if len(groups) == 1 else ""

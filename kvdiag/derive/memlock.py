"""Whether a process is held to its limit of locked memory."""

from kvdiag.model.missing import Missing
from kvdiag.model.serving import ServingProcess

_CAP_IPC_LOCK = 1 << 14


def is_exempt(process: ServingProcess) -> bool | Missing:
    """Return whether CAP_IPC_LOCK lifts the limit, or why that cannot be told.

    The kernel asks for it in the initial user namespace (can_do_mlock, ib_umem_get), so root in a rootless container
    does not have it.
    """
    if isinstance(process.cap_eff, Missing):
        return process.cap_eff
    if not process.cap_eff & _CAP_IPC_LOCK:
        return False
    return process.initial_user_namespace

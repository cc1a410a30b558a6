"""Errors that only probes raise; the tree is kvdiag.errors."""

from kvdiag.errors import KvdiagError


class PayloadMismatchError(KvdiagError):
    """The transferred bytes are not the ones sent: exit code 2, a critical finding."""

    exit_code = 2

"""How long processes of a host waited for a processor, of a recording."""

from kvdiag.model.bundle import Bundle

METRIC = "host.cpu_stalled_us"


def waited_share(bundle: Bundle) -> float | None:
    """Return the share of the recording in which some process waited for a processor, of the node where it is largest.

    The kernel's "some" line of /proc/pressure/cpu (Documentation/accounting/psi.rst); None where it was not recorded.
    """
    shares = [
        float(one.value[-1] - one.value[0]) / 1e6 / float(one.time_s[-1] - one.time_s[0])
        for one in bundle.series
        if one.metric == METRIC and len(one.time_s) > 1 and one.time_s[-1] > one.time_s[0]
    ]
    return max(shares, default=None)

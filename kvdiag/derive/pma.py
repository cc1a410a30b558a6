"""Widths of InfiniBand's port counters: narrow ones stop at their greatest value, they do not wrap."""

GREATEST = {
    "excessive_buffer_overrun_errors": (1 << 4) - 1,
    "local_link_integrity_errors": (1 << 4) - 1,
    "link_downed": (1 << 8) - 1,
    "link_error_recovery": (1 << 8) - 1,
    "port_rcv_constraint_errors": (1 << 8) - 1,
    "port_xmit_constraint_errors": (1 << 8) - 1,
    "port_rcv_errors": (1 << 16) - 1,
    "port_rcv_remote_physical_errors": (1 << 16) - 1,
    "port_rcv_switch_relay_errors": (1 << 16) - 1,
    "port_xmit_discards": (1 << 16) - 1,
    "symbol_error": (1 << 16) - 1,
    "VL15_dropped": (1 << 16) - 1,
    "port_xmit_wait": (1 << 32) - 1,
}
"""Greatest value by name in sysfs (InfiniBand specification, performance management, PortCounters)."""

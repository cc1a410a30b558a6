"""How one line of an engine log is read: named groups, completion statuses, error numbers, statistics."""

import re
from collections.abc import Callable

Fields = dict[str, str]
Numbers = dict[str, float]
Reader = Callable[[str], tuple[Fields, Numbers] | None]

WC_STATUS = {
    "local length error": 1,
    "local qp operation error": 2,
    "local protection error": 4,
    "work request flushed error": 5,
    "wr flushed": 5,
    "memory management operation error": 6,
    "memory bind operation error": 6,
    "bad response error": 7,
    "local access error": 8,
    "local access violation": 8,
    "remote invalid request error": 9,
    "remote invalid request": 9,
    "remote access error": 10,
    "remote operation error": 11,
    "transport retry counter exceeded": 12,
    "rnr retry counter exceeded": 13,
    "remote aborted error": 16,
}
"""Texts of ibv_wc_status_str (libibverbs) and ib_wc_status_msg (kernel) by their number."""
_MLX5_SYNDROME = {
    0x01: 1,
    0x02: 2,
    0x04: 4,
    0x05: 5,
    0x06: 6,
    0x10: 7,
    0x11: 8,
    0x12: 9,
    0x13: 10,
    0x14: 11,
    0x15: 12,
    0x16: 13,
    0x22: 16,
}
"""MLX5_CQE_SYNDROME_* (include/linux/mlx5/cq.h) by IBV_WC_*."""
_ERRNO = {
    "cannot allocate memory": "12",
    "bad address": "14",
    "invalid argument": "22",
    "operation not supported": "95",
    "protocol not supported": "93",
    "connection timed out": "110",
    "input/output error": "5",
    "no such device": "19",
    "permission denied": "13",
    "operation not permitted": "1",
}


def by(pattern: str, **constant: str) -> Reader:
    """Read the named groups of a pattern, those that took part, and `constant`."""
    compiled = re.compile(pattern)

    def read(line: str) -> tuple[Fields, Numbers] | None:
        match = compiled.search(line)
        if match is None:
            return None
        return {**constant, **{name: text for name, text in match.groupdict().items() if text}}, {}

    return read


def completion(pattern: str, status: Callable[[Fields], int | None], reporter: str) -> Reader:
    """Read a completion error: `status` makes IBV_WC_*'s number of the group `code`, None where it is none."""
    plain = by(pattern, reporter=reporter)

    def read(line: str) -> tuple[Fields, Numbers] | None:
        found = plain(line)
        number = status(found[0]) if found else None
        if found is None or number is None:
            return None
        fields = {name: text for name, text in found[0].items() if name != "code"}
        return {**fields, "status": str(number)}, {}

    return read


def named(fields: Fields) -> int | None:
    """Return the status that libibverbs or the kernel names so."""
    return WC_STATUS.get(fields["code"].strip().lower())


def numbered(fields: Fields) -> int | None:
    """Return the status given by its number; 0 is success, and no error."""
    return int(fields["code"]) or None


def syndrome(fields: Fields) -> int | None:
    """Return the status of an mlx5 completion's syndrome, a hexadecimal number."""
    return _MLX5_SYNDROME.get(int(fields["code"], 16))


def with_errno(pattern: str, **constant: str) -> Reader:
    """As `by`, with the group `why` ("Bad address", "Bad address [14]") turned into the field `errno`."""
    plain = by(pattern, **constant)

    def read(line: str) -> tuple[Fields, Numbers] | None:
        found = plain(line)
        if found is None:
            return None
        fields = dict(found[0])
        why = fields.pop("why", "")
        number = re.search(r"\[(\d+)\]", why)
        errno = number[1] if number else next((code for text, code in _ERRNO.items() if text in why.lower()), "")
        return {**fields, **({"errno": errno} if errno else {})}, {}

    return read


_STATISTIC = {
    "transfers": r"Num successful transfers=(\d+)",
    "mib_each": r"Avg MB per transfer=([\d.]+)",
    "descriptors_each": r"Avg number of descriptors=([\d.]+)",
    "xfer_ms_each": r"Avg xfer time \(ms\)=([\d.]+)",
    "post_ms_each": r"Avg post time \(ms\)=([\d.]+)",
    "failed": r"Num failed transfers=(\d+)",
    "expired": r"Num KV expired reqs=(\d+)",
    "after_expiry": r"Num notifs after expiry=(\d+)",
}


def statistics(line: str) -> tuple[Fields, Numbers] | None:
    """Return sums, from the averages of one period; MB are 2^20 bytes there (vLLM's nixl/stats.py)."""
    found = {name: re.search(pattern, line) for name, pattern in _STATISTIC.items()}
    value = {
        name: float(match[1])
        for name, match in found.items()
        if match and re.fullmatch(r"\d{1,15}\.?\d{0,15}", match[1])
    }
    if "transfers" not in value:
        return None
    many = value["transfers"]
    return {}, {
        "transfers": many,
        "bytes": many * value.get("mib_each", 0.0) * (1 << 20),
        "descriptors": many * value.get("descriptors_each", 0.0),
        "xfer_s": many * value.get("xfer_ms_each", 0.0) / 1e3,
        "post_s": many * value.get("post_ms_each", 0.0) / 1e3,
        "failed": value.get("failed", 0.0),
        "expired": value.get("expired", 0.0),
        "after_expiry": value.get("after_expiry", 0.0),
    }


UCX_HEAD = r"UCX\s+(?:ERROR|WARN|FATAL)\s+"
"""Without DIAG and DEBUG: there UCX tells of what it tried before it chose another way."""
NIC = r"[A-Za-z][\w.-]*"

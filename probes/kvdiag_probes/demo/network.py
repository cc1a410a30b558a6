"""A link of their own for the two workers: a veth pair between their network namespaces, and what goes wrong on it."""

import json
import logging
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from signal import SIGKILL

from kvdiag.errors import UndeterminedError
from kvdiag.model.missing import Missing
from kvdiag_probes.demo import tether

_log = logging.getLogger(__name__)

PREFILL_DEVICE, DECODE_DEVICE = "kvp0", "kvd0"
PREFILL_ADDRESS, DECODE_ADDRESS = "198.18.0.1", "198.18.0.2"
"""From the range set aside for benchmarks of network devices (RFC 2544); only the two namespaces see them."""

_PREFIX_LENGTH = 30
_UP_WITHIN_S = 10.0
_COMMAND_WITHIN_S = 10.0
_BURST_BYTES = 256 << 10
"""Larger than the largest segment that TCP hands to a device (64 KiB), which tbf would otherwise drop."""
_RANDOM_WORD = 2**32 - 0x1000 + 56
"""Where a packet filter finds a random number (SKF_AD_OFF + SKF_AD_RANDOM of linux/filter.h)."""
_QUEUE_BYTES = 64 << 20
"""Deeper than anything in flight: a slow link makes data wait, it does not lose them."""


@dataclass(frozen=True, slots=True)
class Link:
    """Where each worker finds its end of the link; `isolated` is False on the shared loopback."""

    isolated: bool
    prefill_device: str
    prefill_address: str
    decode_device: str
    decode_address: str


LOOPBACK = Link(False, "lo", "127.0.0.1", "lo", "127.0.0.1")
VETH = Link(True, PREFILL_DEVICE, PREFILL_ADDRESS, DECODE_DEVICE, DECODE_ADDRESS)


def availability() -> Missing | None:
    """Try everything that a link of our own needs in a throw-away namespace; return why it cannot be had here."""
    for program in ("nsenter", "ip", "tc"):
        if shutil.which(program) is None:
            return Missing(f"the program {program} is not installed (apt-get install iproute2 util-linux)")
    program_line = tether.wrap(["sleep", "60"], on_parent_death=SIGKILL, netns=True)
    with subprocess.Popen(program_line, stderr=subprocess.PIPE, text=True) as holder:
        try:
            deadline_s = time.monotonic() + _COMMAND_WITHIN_S
            while not _elsewhere(holder.pid) and holder.poll() is None and time.monotonic() < deadline_s:
                time.sleep(0.01)
            if holder.poll() is not None:
                reason = holder.stderr.read().strip() if holder.stderr else "the helper ended"
                return Missing(f"{reason} (network namespaces and rate limits need root)")
            _inside(holder.pid, "ip", "link", "add", PREFILL_DEVICE, "type", "veth", "peer", "name", DECODE_DEVICE)
            degrade(holder.pid, 1e9)
        except UndeterminedError as error:
            return Missing(str(error))
        finally:
            holder.kill()
    return None


def connect(prefill_pid: int, decode_pid: int) -> Link:
    """Join the namespaces of two processes by a veth pair; UndeterminedError when it does not come up."""
    peer = ("peer", "name", DECODE_DEVICE, "netns", str(decode_pid))
    _inside(prefill_pid, "ip", "link", "add", PREFILL_DEVICE, "type", "veth", *peer)
    ends = (
        (prefill_pid, PREFILL_DEVICE, PREFILL_ADDRESS),
        (decode_pid, DECODE_DEVICE, DECODE_ADDRESS),
    )
    for pid, device, address in ends:
        _inside(pid, "ip", "address", "add", f"{address}/{_PREFIX_LENGTH}", "dev", device)
        _inside(pid, "ip", "link", "set", device, "up")
        _inside(pid, "ip", "link", "set", "lo", "up")
        _keep_order(pid, device)
    deadline_s = time.monotonic() + _UP_WITHIN_S
    while not all(_is_up(pid, device) for pid, device, _ in ends):
        if time.monotonic() > deadline_s:
            raise UndeterminedError(f"the veth pair {PREFILL_DEVICE}/{DECODE_DEVICE} did not come up")
        time.sleep(0.05)
    return VETH


def degrade(prefill_pid: int, bits_per_second: float) -> None:
    """Limit what leaves the prefill process's end of the link to that rate (token bucket, no loss)."""
    shape = ("rate", f"{bits_per_second:.0f}bit", "burst", str(_BURST_BYTES), "limit", str(_QUEUE_BYTES))
    _inside(prefill_pid, "tc", "qdisc", "add", "dev", PREFILL_DEVICE, "root", "tbf", *shape)


def lose(decode_pid: int, share: float) -> None:
    """Drop that share of the packets that reach the decode process's end of the link, at random.

    A classifier of four instructions: load a random word, and drop (2) or pass (-1) by a threshold.
    """
    threshold = round(share * 2**32)
    program = f"4,32 0 0 {_RANDOM_WORD},53 1 0 {threshold},6 0 0 2,6 0 0 {2**32 - 1}"
    _inside(decode_pid, "tc", "qdisc", "add", "dev", DECODE_DEVICE, "clsact")
    _inside(decode_pid, "tc", "filter", "add", "dev", DECODE_DEVICE, "ingress", "bpf", "da", "bytecode", program)


def lengthen(prefill_pid: int, delay_s: float) -> "subprocess.Popen[bytes]":
    """Hold every packet that leaves the prefill process's end for that long; the way lasts as long as the process."""
    program = [sys.executable, "-m", "kvdiag_probes.demo.delay", PREFILL_DEVICE, f"{delay_s:g}"]
    inside = ["nsenter", f"--net=/proc/{prefill_pid}/ns/net", *program]
    return subprocess.Popen(tether.wrap(inside, on_parent_death=SIGKILL), stdin=subprocess.DEVNULL)


def _keep_order(pid: int, device: str) -> None:
    """Have one processor receive everything, or packets are reordered whenever the sender changes processor,

    and TCP takes what comes out of order for lost and sends it again.
    """
    try:
        Path(f"/proc/{pid}/root/sys/class/net/{device}/queues/rx-0/rps_cpus").write_text("1")
    except OSError as error:
        _log.info("%s: packets may be reordered: %s", device, error)


def _is_up(pid: int, device: str) -> bool:
    (link,) = json.loads(_inside(pid, "ip", "-json", "link", "show", "dev", device))
    return bool(link["operstate"] == "UP")


def _elsewhere(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/ns/net").readlink() != Path("/proc/self/ns/net").readlink()
    except OSError:
        return False


def _inside(pid: int, *command: str) -> str:
    """Run a command in the network namespace of a process and return its output."""
    line = ["nsenter", f"--net=/proc/{pid}/ns/net", *command]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=_COMMAND_WITHIN_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise UndeterminedError(f"{' '.join(command)}: no answer within {_COMMAND_WITHIN_S:g} s") from error
    if done.returncode != 0:
        raise UndeterminedError(f"{' '.join(command)}: {done.stderr.strip() or f'status {done.returncode}'}")
    return done.stdout

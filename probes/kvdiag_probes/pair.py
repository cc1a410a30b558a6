"""A peer seen from here: its snapshot, its clock, its side channels, and one verified block each way over RDMA."""

import ipaddress
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from kvdiag.derive.engines import transferring
from kvdiag.errors import KvdiagError, UndeterminedError
from kvdiag.model.missing import Missing, present
from kvdiag.model.pair import PairMeasurements, PairTransfer, SideChannel
from kvdiag.model.probe import ProbeSettings
from kvdiag.model.snapshot import Snapshot
from kvdiag_probes.completion import CompletionError
from kvdiag_probes.control.address import Address
from kvdiag_probes.control.client import AgentClient
from kvdiag_probes.control.credential import Credential
from kvdiag_probes.control.messages import OpenAnswer
from kvdiag_probes.errors import PayloadMismatchError
from kvdiag_probes.gid import Choice, choose
from kvdiag_probes.rdma_path import read_devices
from kvdiag_probes.session import ProbeOptions, run_probe

BLOCK_BYTES = 64 * 1024
"""As large as a KV block of common models, and several packets at any MTU."""
_CLOCK_QUESTIONS = 5
_CONNECT_TIMEOUT_S = 2.0
_UDP_TIMEOUT_S = 1.0
# Of the range that traceroute uses: nothing listens there, so the peer's kernel answers "port unreachable".
_UDP_PORT = 33434
_SIDE_CHANNEL_PORT = 5600
"""Default of VLLM_NIXL_SIDE_CHANNEL_PORT (vllm/envs.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairOptions:
    """Who the peer is; device, port and GID index restrict this end's choice; `transfer` False moves no block."""

    peer: Address
    credential: Credential
    timeout_s: float = 10.0
    transfer: bool = True
    device: str | None = None
    port: int | None = None
    gid_index: int | None = None


def meet(options: PairOptions) -> Snapshot:
    """Return the peer's snapshot with its PairMeasurements.

    UnavailableError where the agent cannot be reached or refuses; a block that cannot be moved is a measurement.
    """
    with AgentClient(options.peer, options.credential, options.timeout_s) as client:
        low_s, high_s, round_trip_s = _clock(client)
        snapshot = client.snapshot()
        here = client.local_address
    measured = PairMeasurements(
        address=str(options.peer),
        round_trip_s=round_trip_s,
        clock_ahead_low_s=low_s,
        clock_ahead_high_s=high_s,
        side_channels=tuple(_side_channels(snapshot)),
        transfers=_transfers(options, here),
    )
    return replace(snapshot, parts={**snapshot.parts, PairMeasurements: measured})


def _clock(client: AgentClient) -> tuple[float, float, float]:
    """Return the tightest bounds on how far the peer's clock is ahead, and the round trip that gave them (seconds).

    The peer answered after the question was asked and before the answer came (as in NTP, RFC 5905, section 8).
    """
    bounds = []
    for _ in range(_CLOCK_QUESTIONS):
        asked_s, started_s = time.time(), time.perf_counter()
        theirs_s = client.hello().time_s
        round_trip_s = time.perf_counter() - started_s
        bounds.append((round_trip_s, theirs_s - asked_s))
    round_trip_s, ahead_s = min(bounds)
    return ahead_s - round_trip_s, ahead_s, round_trip_s


def _side_channels(snapshot: Snapshot) -> Iterator[SideChannel]:
    for setup in present(transferring(snapshot, "nixl")) or ():
        host = present(setup.variable("VLLM_NIXL_SIDE_CHANNEL_HOST"))
        port = present(setup.variable("VLLM_NIXL_SIDE_CHANNEL_PORT")) or str(_SIDE_CHANNEL_PORT)
        if host and port.isdecimal() and int(port) < 65536:
            error = _connect(host, int(port))
            yield SideChannel(process=setup.process.name, host=host, port=int(port), error=error)


def _connect(host: str, port: int) -> str | None:
    try:
        with socket.create_connection((host, port), _CONNECT_TIMEOUT_S):
            return None
    except TimeoutError:
        return f"no answer within {_CONNECT_TIMEOUT_S:g} s"
    except OSError as error:
        return error.strerror or str(error)


def _transfers(options: PairOptions, here: str) -> tuple[PairTransfer, ...] | Missing:
    if not options.transfer:
        return Missing("no block was moved: --no-transfer, or this host is not the one that is judged")
    restrictions = {"device": options.device, "port": options.port, "gid_index": options.gid_index}
    try:
        from kvdiag_probes.verbs import preload

        choice = choose(read_devices(), addresses=[here] if here else [], **restrictions)  # type: ignore[arg-type]
        preload()
        return tuple(_move(options, operation, choice) for operation in ("write", "read"))
    except UndeterminedError as error:
        return Missing(str(error))


def _move(options: PairOptions, operation: Literal["write", "read"], choice: Choice) -> PairTransfer:
    done = PairTransfer(
        operation=operation,
        size_bytes=BLOCK_BYTES,
        verified=False,
        local=choice.name,
        peer=None,
        path_mtu=None,
        error=None,
        wc_status=None,
        udp=None,
    )
    settings = ProbeSettings(
        kind="latency",
        operation=operation,
        transport="rdma",
        sizes=(BLOCK_BYTES,),
        queue_depth=1,
        iterations=1,
        duration_s=None,
        warmup=0,
    )
    far: list[OpenAnswer] = []
    try:
        result = run_probe(
            ProbeOptions(
                peer=options.peer,
                credential=options.credential,
                settings=settings,
                timeout_s=options.timeout_s,
                device=choice.device,
                port=choice.port,
                gid_index=choice.gid_index,
                opened=far.append,
            )
        )
    except PayloadMismatchError as error:
        return replace(done, error=str(error))
    except UndeterminedError:  # there is nothing to measure with at the peer
        raise
    except KvdiagError as error:
        status = error.status if isinstance(error, CompletionError) else None
        session = far[0] if far else None
        gid = session.queue_pair.gid if session and session.queue_pair else None
        device = session.device if session else None
        return replace(done, peer=device, error=str(error), wc_status=status, udp=_udp(choice, gid))
    ends = result.ends
    return replace(done, verified=True, local=ends.local_device or "", peer=ends.peer_device, path_mtu=ends.path_mtu)


def _udp(choice: Choice, peer_gid: str | None) -> Literal["answers", "silent", "unreachable"] | None:
    """Send a datagram from the address of one RoCE v2 GID to that of the other: does the path carry others than RoCE?

    None where the GIDs are no addresses (InfiniBand), or link-local.
    """
    if peer_gid is None:
        return None
    here, there = ipaddress.IPv6Address(choice.gid), ipaddress.IPv6Address(peer_gid)
    if choice.link_layer != "Ethernet" or here.is_link_local or there.is_link_local:
        return None
    source, target = (str(gid.ipv4_mapped or gid) for gid in (here, there))
    family = socket.AF_INET6 if ":" in target else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.settimeout(_UDP_TIMEOUT_S)
            probe.bind((source, 0))
            probe.connect((target, _UDP_PORT))
            probe.send(b"kvdiag")
            probe.recv(1)
    except ConnectionRefusedError:
        return "answers"
    except TimeoutError:
        return "silent"
    except OSError:
        return "unreachable"
    return "answers"

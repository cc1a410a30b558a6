import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from kvdiag.model.missing import Missing
from kvdiag.model.netdev import NetNamespace
from kvdiag.sources.base import Context
from kvdiag.sources.netdev import SOURCE, read_namespace
from kvdiag.sources.tree import Tree

LIVE = Tree(Path("/"))
NET_DEV = """Inter-|   Receive                                               |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo colls carrier compressed
    lo:       0       0    0    0    0     0          0         0        0       0    0    0    0     0      0     0
eth0.7: 6733394    7445    1    2    0     0          0         0  2612824    3274    3    4    0     0      0     0
"""


def seen(pid: int | None = None) -> NetNamespace:
    found = read_namespace(LIVE, pid)
    assert not isinstance(found, Missing)
    return found


def test_bytes_sent_over_loopback_are_counted() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        peer, _ = server.accept()
        with peer:
            before = seen()
            client.sendall(bytes(100_000))
            left = 100_000
            while left:
                left -= len(peer.recv(left))
            after = seen(os.getpid())
    (lo_before,) = (one for one in before.devices if one.name == "lo")
    (lo_after,) = (one for one in after.devices if one.name == "lo")
    assert lo_after.tx_bytes - lo_before.tx_bytes >= 100_000
    assert after.namespace == before.namespace
    assert after.protocols["Tcp.OutSegs"] > before.protocols["Tcp.OutSegs"]
    assert after.protocols["IpExt.InOctets"] - before.protocols["IpExt.InOctets"] >= 100_000
    assert "Tcp.RetransSegs" in after.protocols


def test_a_copied_tree_is_read(tmp_path: Path) -> None:
    for name, text in {
        "proc/net/dev": NET_DEV,
        "proc/net/snmp": "Tcp: RtoMin RetransSegs MaxConn\nTcp: 200 17 -1\n",
        "proc/net/netstat": "TcpExt: A B\nTcpExt: 1 2\nIpExt: InOctets\nIpExt: 99\n",
        "sys/class/net/lo/operstate": "unknown\n",
        "sys/class/net/eth0.7/operstate": "up\n",
        "sys/class/net/eth0.7/speed": "25000\n",
        "sys/class/net/bonding_masters": "",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    found = SOURCE.read(Context(root=tmp_path, live=False))
    assert not isinstance(found, Missing)
    eth, lo = found.devices
    assert (eth.name, eth.rx_bytes, eth.tx_bytes, eth.speed_gbps, eth.operstate) == (
        "eth0.7",
        6733394,
        2612824,
        25.0,
        "up",
    )
    assert (eth.rx_errors, eth.rx_dropped, eth.tx_errors, eth.tx_dropped) == (1, 2, 3, 4)
    assert isinstance(lo.speed_gbps, Missing)
    assert found.protocols == {
        "Tcp.RtoMin": 200, "Tcp.RetransSegs": 17, "Tcp.MaxConn": -1, "TcpExt.A": 1, "TcpExt.B": 2, "IpExt.InOctets": 99,
    }  # fmt: skip
    assert isinstance(found.namespace, Missing)


def test_no_procfs_is_missing(tmp_path: Path) -> None:
    found = SOURCE.read(Context(root=tmp_path, live=False))
    assert isinstance(found, Missing)
    assert "/proc/net/dev does not exist" in found.missing


@pytest.mark.component
@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="network namespaces need root")
@pytest.mark.parametrize("own_sysfs", [True, False])
def test_another_namespace_is_seen_by_its_process(own_sysfs: bool) -> None:
    mount = "mount -t sysfs sysfs /sys;" if own_sysfs else ""
    script = f"{mount} ip link set lo up; ip link add kvt0 type veth peer name kvt1; echo ready; read line"
    with subprocess.Popen(
        ["unshare", "--net", "--mount", "bash", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"ready\n"
        inside, outside = seen(process.pid), seen()
        process.communicate(b"\n")
    assert inside.namespace != outside.namespace
    (dummy,) = (one for one in inside.devices if one.name == "kvt0")
    assert "kvt0" not in [one.name for one in outside.devices]
    # Without a /sys of its own the process sees the interfaces of the namespace it came from.
    assert (dummy.operstate == "down") is own_sysfs
    if not own_sysfs:
        assert isinstance(dummy.operstate, Missing)
        assert "another network namespace" in dummy.operstate.missing

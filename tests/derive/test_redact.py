import re
from pathlib import Path

import msgspec
import pytest

from kvdiag.checks.base import Hosts, run
from kvdiag.derive.host_names import host_names
from kvdiag.derive.pseudonyms import Pseudonyms
from kvdiag.derive.redact import Redactor, without_secrets
from kvdiag.model.gpu import NvidiaGpus
from kvdiag.model.interfaces import NetInterfaces
from kvdiag.model.rdma import RdmaDevices
from kvdiag.model.routing import Routing
from kvdiag.sources.base import Context, collect
from tests.trees import write_tree

KEY = b"a key for tests"
REDACTOR = Redactor(Pseudonyms(KEY), frozenset({"node-7", "node-7.rack3.example.org"}))


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("gid fe80::a288:c2ff:fe5b:1: no route", "a288:c2ff:fe5b:1"),
        ("[2001:db8:3::7]:5000", "2001:db8:3::7"),
        ("gid:0000:0000:0000:0000:0000:ffff:c000:0215", "c000:0215"),
        ("::ffff:192.0.2.21", "192.0.2.21"),
        ("to 192.0.2.21.", "192.0.2.21"),
        ("http://node-7:8000/v1", "node-7"),
        ("NODE-7.rack3.example.org_mlx5", "rack3"),
        ("node_guid a088:c203:0022:3300", "a088:c203:0022:3300"),
        ("Node GUID: 0xa088c20300223300", "a088c20300223300"),
        ("ether a0:88:c2:5b:00:01 up", "a0:88:c2:5b:00:01"),
        ("80:00:02:08:fe:80:00:00:00:00:00:00:a0:88:c2:03:00:22:33:00", "a0:88:c2:03:00:22:33:00"),
        ("kubepods-burstable-pod12345678_1234_1234_1234_123456789abc.slice", "123456789abc"),
        ("cri-containerd-" + "0123456789abcdef" * 4 + ".scope", "0123456789abcdef"),
        ("GPU-12345678-1234-1234-1234-123456789abc", "123456789abc"),
        ("on ip-10-0-0-12.ec2.internal", "10-0-0-12"),
        ("/home/alice/.cache/x.so", "alice"),
        ("Authorization: Bearer abc.def-123", "abc.def-123"),
        ('{"api_key": "topsecret"}', "topsecret"),
        ("--hf-token hf_abcdefghijklmnopqrstuv", "hf_abcdefghijklmnopqrstuv"),
        ("password=hunter2;", "hunter2"),
    ],
)
def test_what_identifies_is_replaced_alike_each_time(text: str, gone: str) -> None:
    replaced = REDACTOR.text(text)
    assert gone.lower() not in replaced.lower()
    assert REDACTOR.text(text) == replaced
    assert REDACTOR.text(f"{text} {text}") == f"{replaced} {replaced}"


@pytest.mark.parametrize(
    "text",
    [
        "0000:3b:00.0",
        "/sys/class/infiniband/mlx5_0/ports/1/gids/3",
        "17:35:26.123 std::vector VLLM::EngineCore",
        "firmware version: 229.2.52.0",
        "127.0.0.1 and ::1 and 0.0.0.0 and :: and 255.255.255.0",
        "localhost:5600",
        "--max-num-batched-tokens 8192 tokens: 5",
        "rc_mlx5/mlx5_0:1 22.39.2048 6.8.0-55-generic",
        "0000:0000:0000:0000",
        "--api-key ***",
    ],
)
def test_what_identifies_nobody_stays(text: str) -> None:
    assert REDACTOR.text(text) == text


def test_forms_of_one_gid_agree() -> None:
    exploded = REDACTOR.text("0000:0000:0000:0000:0000:ffff:c000:0215")
    assert re.fullmatch(r"0000:0000:0000:0000:0000:ffff:[0-9a-f]{4}:[0-9a-f]{4}", exploded)
    short = REDACTOR.text("::ffff:192.0.2.21").removeprefix("::ffff:")
    assert short == REDACTOR.text("192.0.2.21")
    assert "".join(f"{int(part):02x}" for part in short.split(".")) == exploded[-9:].replace(":", "")


def test_networks_hold_their_addresses_in_text_and_in_fields() -> None:
    network = REDACTOR.text("198.51.100.0/26")
    assert network.endswith((".0/26", ".64/26", ".128/26", ".192/26"))
    assert REDACTOR.tree({"destination": "198.51.100.0", "prefix_length": 26, "metric": 5}) == {
        "destination": network.removesuffix("/26"),
        "prefix_length": 26,
        "metric": 5,
    }


def test_fixed_words_and_versions_stay_where_they_are_fields() -> None:
    redactor = Redactor(Pseudonyms(KEY), frozenset({"vllm"}))
    tree = {"engine": "vllm", "value": "vllm", "fw_ver": "227.0.131.0", "host": ["10.1.2.3"]}
    replaced = redactor.tree(tree)
    assert (replaced["engine"], replaced["fw_ver"]) == ("vllm", "227.0.131.0")
    assert replaced["value"].startswith("host-")
    assert replaced["host"] != ["10.1.2.3"]


def test_names_are_found_where_hosts_are_named() -> None:
    command = [
        "vllm", "serve", "--host", "serve-1", "--master-addr=head.example.net", "--port", "8000",
        "--kv-transfer-config", '{"kv_ip": "decode-2", "kv_connector": "NixlConnector"}',
    ]  # fmt: skip
    variables = [{"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "value": "prefill-3"}, {"name": "UCX_TLS", "value": "rc"}]
    found = host_names("me", [{"command": command, "variables": variables, "url": "http://etcd-0:2379,10.0.0.1:1"}])
    assert found == {
        "me", "serve-1", "head", "head.example.net", "example.net", "decode-2", "prefill-3", "etcd-0"
    }  # fmt: skip


def test_a_peer_gets_what_it_compares_and_no_secret(tmp_path: Path) -> None:
    tree = write_tree(
        r"""
        base gb200-nvlink-domain
        proc/8282/cmdline = /home/alice/bin/python3\0-m\0dynamo.vllm\0--header\0Authorization: Bearer abc.def-123
        proc/8282/cgroup = 0::/kubepods/pod12345678-1234-1234-1234-123456789abc/cri-0123456789abcdef0123456789abcdef
        """,
        tmp_path / "host",
    )
    whole = collect(Context(root=tree, live=False))
    sent = without_secrets(whole, KEY)
    text = "".join(msgspec.json.encode(part).decode() for part in sent.parts.values())
    for gone in ("alice", "abc.def-123", "123456789abc", "0123456789abcdef"):
        assert gone not in text
    for part in (RdmaDevices, NvidiaGpus, NetInterfaces, Routing):
        assert sent.part(part) == whole.part(part)
    assert sent.host == whole.host
    assert without_secrets(whole, KEY) == sent
    assert run(Hosts(local=whole, peers=(sent,))) == run(Hosts(local=whole, peers=(whole,)))

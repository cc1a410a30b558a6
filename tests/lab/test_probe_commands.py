"""The probes that compare, register, connect and move KV shapes, on soft-RoCE: few runs, many relations in each."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import validate

from kvdiag.report.json import published_schema
from tests.lab import probing
from tests.lab.topology import Wire, with_memlock

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def wire(lab_pair: Wire) -> Iterator[Wire]:
    """Serve at b; whatever the tests did, both machines end with the RDMA objects that they began with."""
    before = [probing.objects(end.machine) for end in lab_pair.ends]
    with probing.agent(lab_pair.b, "--idle 60"):
        yield lab_pair
    for end, wanted in zip(lab_pair.ends, before, strict=True):
        probing.await_objects(end.machine, wanted)


def local(wire: Wire, arguments: str) -> str:
    """Return the command line of a probe that needs no peer, at end a."""
    return f"exec {probing.KVDIAG} probe {arguments} --device {wire.a.device} -f json"


def remote(wire: Wire, arguments: str, schema: str) -> dict[str, Any]:
    """Return the document of a probe from a to the agent at b; many connections take long on a busy host."""
    command = probing.command(wire.a, wire.b, f"{arguments} --timeout 60 -f json")
    result = wire.a.machine.run(command, 250, environment=probing.ENVIRONMENT)
    assert result.rc == 0, result.stderr
    return checked(result.stdout, schema)


def checked(text: str, schema: str) -> dict[str, Any]:
    """Return a document that fits its published schema."""
    document: dict[str, Any] = json.loads(text)
    validate(document, published_schema(schema))
    return document


def test_registration_costs_grow_with_the_pages_and_memlock_is_reached_cleanly(wire: Wire) -> None:
    flags = "--size 4KiB,1MiB,16MiB --regions 1,64 --threads 1,2 --rounds 5 --limit-regions 512"
    result = wire.a.machine.run(local(wire, f"register {flags} --pages 4KiB,thp"), 120)
    assert result.rc == 0, result.stderr
    document = checked(result.stdout, "kvdiag.probe-register-1")
    cost = {(row["pages"], row["touched"], row["size_bytes"]): row for row in document["rows"]}
    touched = [cost["4KiB", True, size]["register"]["value"] for size in (4096, 1 << 20, 16 << 20)]
    assert touched == sorted(touched) and touched[2] > 4 * touched[0]
    untouched = cost["4KiB", False, 16 << 20]
    assert untouched["register"]["value"] > 3 * touched[2]
    # Registering faulted every page in: the second time costs what touched memory costs.
    assert untouched["again"]["value"] < untouched["register"]["value"] / 2
    whole, cut = document["regions"]
    assert cut["regions"] * cut["region_bytes"] == whole["region_bytes"] == 16 << 20
    assert {row["name"]: row["status"] for row in document["limits"]}["memlock"] == "not_reached"
    assert document["verdict"]["kv_s"] > 0 and document["missing"] == []

    limited = with_memlock(local(wire, "register --size 4KiB,1MiB --regions 1 --threads 1 --rounds 5"), 1 << 19)
    result = wire.a.machine.run(limited, 120)
    assert result.rc == 0, result.stderr
    document = checked(result.stdout, "kvdiag.probe-register-1")
    (memlock,) = [row for row in document["limits"] if row["name"] == "memlock"]
    assert (memlock["allowed"], memlock["refusal"]) == (1 << 19, "ENOMEM")
    assert (1 << 19) - 65536 <= memlock["reached"] <= 1 << 19
    assert any("memlock limit 524288 bytes" in text for text in document["missing"])


def test_kv_blocks_arrive_in_every_layout_and_cost_more_than_one_piece(wire: Wire) -> None:
    shape = "--layers 4 --kv-heads 2 --head-size 64 --prefill-tp 2 --pairs all --tokens 32,64 --rounds 2 --repeats 1"
    document = remote(wire, f"kv {shape} --memory thp", "kvdiag.probe-kv-1")
    assert document["ends"]["local_device"].startswith(wire.a.device)
    assert all("transparent huge pages" in document["ends"][memory] for memory in ("local_memory", "peer_memory"))
    rows = {(row["operation"], row["mode"], row["tokens"]): row for row in document["rows"]}
    assert len(rows) == 2 * 4 * 2
    for operation in ("write", "read"):
        block, whole = rows[operation, "block", 64], rows[operation, "contiguous", 64]
        assert (block["descriptors"], whole["descriptors"]) == (2 * 4 * 2 * 4, 2)
        assert block["bytes"] == whole["bytes"] == 64 * 4 * 2 * 2 * 64 * 2
        assert block["build"]["value"] > whole["build"]["value"]
        assert all(block[stage]["value"] > 0 for stage in ("post", "poll"))
        assert block["fastest_s"] <= block["total"]["value"]
    assert {cost["operation"] for cost in document["costs"]} == {"write", "read"}
    assert document["proof"]["status"] == "proved", document["proof"]
    assert document["proof"]["payload_bytes"] == sum(row["bytes"] for row in rows.values()) * (2 + 1)


def test_rdma_and_tcp_are_compared_by_turns_and_each_is_proved(wire: Wire) -> None:
    arguments = "compare --size 64KiB --iterations 8 --queue-depth 4 --rounds 5 --min-bandwidth 0.0001xlink"
    document = remote(wire, arguments, "kvdiag.probe-compare-1")
    assert [row["method"] for row in document["results"]] == ["rdma-write", "rdma-read", "tcp-write"]
    assert {one["proof"]["status"] for one in document["proofs"]} == {"proved"}
    assert document["link_bytes_per_second"] > 0
    assert [one["status"] for one in document["judgements"]] == ["met"]
    assert all(row["ratio"]["low"] <= row["ratio"]["value"] <= row["ratio"]["high"] for row in document["results"])


def test_queue_pairs_are_made_shared_and_exhausted_cleanly(wire: Wire) -> None:
    before = probing.objects(wire.a.machine)
    arguments = "connections --rounds 1 --pairs 8 --threads 1,2 --most 64 --active 1,4,1024 --in-flight 16 --size 4KiB"
    document = remote(wire, arguments, "kvdiag.probe-connections-1")
    assert [row["step"] for row in document["setup"]] == ["create", "init", "rtr", "rts", "destroy"]
    assert all(row["seconds"]["value"] > 0 for row in document["setup"])
    shapes = [(row["pairs"], row["shared_receive_queue"]) for row in document["creation"]]
    assert shapes == [(8, False), (16, False), (8, True), (16, True)]
    assert (document["exhaustion"]["made"], document["exhaustion"]["made_again"]) == (64, 64)
    assert [(row["queue_pairs"], row["queue_depth"]) for row in document["active"]] == [(1, 16), (4, 4), (1024, 1)]
    assert max(row["of_best"] for row in document["active"]) == 1.0
    assert document["fan_out"]["fits"] and document["missing"] == []
    ways = {row["kind"]: row for row in document["sharing"]}
    assert ways["srq"]["status"] == "offered" and ways["srq"]["create"]["value"] > 0
    assert (ways["xrc"]["status"], ways["dc"]["status"]) == ("not_offered", "not_offered"), ways
    probing.await_objects(wire.a.machine, before)


def test_a_first_transfer_costs_more_than_a_later_one(wire: Wire) -> None:
    document = remote(wire, "cold --size 64KiB --rounds 5 --steady 3", "kvdiag.probe-cold-1")
    stages = {stage["name"]: stage for stage in document["stages"]}
    assert list(stages) == [
        *("resolve", "handshake", "open", "register", "peer", "peer_register", "connect", "first_write"),
    ]
    assert all(stage["again"]["value"] > 0 for stage in stages.values())
    assert document["slowdown"]["low"] > 1

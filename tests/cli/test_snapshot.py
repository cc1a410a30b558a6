"""`kvdiag snapshot`: the same verdict from the redacted file, and nothing in the file that names the host."""

import ipaddress
import json
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kvdiag.checks.base import Failed, Hosts, Judged, run
from kvdiag.cli import main
from kvdiag.derive.redact import Redactor, redact, redactor_of
from kvdiag.report.json import encode, published_schema
from kvdiag.sources import snapshot_file
from kvdiag.sources.base import Context, collect
from kvdiag.sources.snapshot_file import to_document
from tests.trees import HOSTS, write_peer_tree, write_tree

KEY = b"0123456789abcdef-for-tests"
TREES = sorted((HOSTS.parent / "checks").glob("*/fail*.tree"))
NAMES = sorted(path.name for path in HOSTS.iterdir() if path.is_dir())


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_bytes(KEY)
    return path


def judged(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
    code = main(["preflight", "--format", "json", *arguments])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return code, document


def replaced(item: dict[str, Any], redactor: Redactor) -> dict[str, Any]:
    def walk(value: Any) -> Any:
        if isinstance(value, list):
            return [walk(one) for one in value]
        return redactor.text(value) if isinstance(value, str) else value

    return {name: walk(value) for name, value in item.items()}


def comparable(document: dict[str, Any], *contexts: Context) -> dict[str, Any]:
    """Return what a verdict is made of, in an order that names have no part in."""
    if contexts:
        redactor = redactor_of(map(collect, contexts), KEY)
        document = json.loads(json.dumps(document), object_hook=lambda item: replaced(item, redactor))
    kept = {name: document[name] for name in ("host", "peers", "verdict", "missing")}
    # The words of a passing check may list things in the order of their names.
    kept["checks"] = [(item["code"], item["status"]) for item in document["checks"]]
    kept["findings"] = sorted(json.dumps(item, sort_keys=True) for item in document["findings"])
    return kept


def save(root: Path, file: Path, key: Path) -> Path:
    assert main(["snapshot", "--root", str(root), "-o", str(file), "--key-file", str(key)]) == 0
    return file


@pytest.mark.parametrize("name", NAMES)
def test_the_replayed_host_gets_the_verdict_of_the_host(
    name: str, key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = str(HOSTS / name)
    saved = str(save(HOSTS / name, tmp_path / "a.json", key))
    capsys.readouterr()
    live = judged(capsys, "--root", root, "--peer-root", root)
    replayed = judged(capsys, "--snapshot", saved, "--peer-snapshot", saved)
    assert replayed[0] == live[0]
    assert comparable(replayed[1]) == comparable(live[1], Context(root=HOSTS / name, live=False))


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: f"{tree.parent.name}-{tree.stem}")
def test_each_check_s_trees_get_the_same_findings_replayed(tree: Path, tmp_path: Path) -> None:
    text = tree.read_text()
    roots = [write_tree(text, tmp_path / "host"), write_peer_tree(text, tmp_path / "peer")]
    live = [collect(Context(root=root, live=False)) for root in roots if root]
    replayed = []
    for number, snapshot in enumerate(live):
        file = tmp_path / f"{number}.json"
        file.write_text(encode(to_document(redact(snapshot, KEY), redacted=True)))
        replayed.append(snapshot_file.read(file, "--snapshot"))
    redactor = redactor_of(live, KEY)
    before, after = (run(Hosts(local=one[0], peers=tuple(one[1:]))) for one in (live, replayed))
    assert [type(item.outcome) for item in after] == [type(item.outcome) for item in before]
    assert findings(after) == sorted(map(redactor.text, findings(before)))


def findings(judged: Sequence[Judged]) -> list[str]:
    """Return every finding as text, in an order that names have no part in."""
    found = [item for one in judged if isinstance(one.outcome, Failed) for item in one.outcome.findings]
    return sorted(
        " | ".join(map(str, (item.severity, item.subject, item.summary, item.evidence, item.action))) for item in found
    )


def originals(root: Path) -> Iterator[str]:
    """Yield the host name, addresses and GUIDs of a tree, in every form in which they are printed."""
    addresses: set[ipaddress.IPv4Address | ipaddress.IPv6Address] = set()
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            if path.is_symlink():
                continue
            text = path.read_text(errors="replace")
            if name == "hostname":
                yield text.strip()
            if name in ("fw_ver", "version") or "/sys/module/" in str(path):
                continue
            found = re.findall(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])", text)
            found += re.findall(r"(?<![\w:])(?:[0-9a-f]{4}:){7}[0-9a-f]{4}(?![\w:])", text)
            if name == "if_inet6":
                found += [str(ipaddress.IPv6Address(bytes.fromhex(line.split()[0]))) for line in text.splitlines()]
            for item in found:
                address = ipaddress.ip_address(item)
                if int(address) < 1 << 33 and address.version == 6:
                    continue
                if not (address.is_loopback or address.is_unspecified or address.is_multicast):
                    addresses.add(address)
            yield from re.findall(r"(?<![\w:])(?!0000:0000:0000:0000)(?:[0-9a-f]{4}:){3}[0-9a-f]{4}(?![\w:])", text)
            yield from re.findall(
                r"(?<![\w:])(?!(?:00:){5}00|(?:ff:){5}ff)(?:[0-9a-f]{2}:){5}[0-9a-f]{2}(?![\w:])", text
            )
    for address in addresses:
        if str(address) in ("255.255.255.255", "0.0.0.0") or str(address).startswith("255."):
            continue
        yield str(address)
        if isinstance(address, ipaddress.IPv6Address):
            yield address.exploded
            if address.ipv4_mapped:
                yield str(address.ipv4_mapped)


@pytest.mark.parametrize("name", NAMES)
def test_nothing_in_the_file_names_the_host(
    name: str, key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = save(HOSTS / name, tmp_path / "a.json", key).read_text().lower()
    looked_for = {item.lower() for item in originals(HOSTS / name)}
    assert looked_for
    leaked = [item for item in looked_for if re.search(rf"(?<![\w.:-]){re.escape(item)}(?![\w:]|\.\d)", text)]
    assert leaked == []


def test_the_document_has_its_published_schema(key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(save(HOSTS / "roce-bond", tmp_path / "a.json", key).read_text())
    jsonschema.validate(document, published_schema("kvdiag.snapshot-1"))
    assert document["redacted"] is True
    capsys.readouterr()
    assert main(["snapshot", "--root", str(HOSTS / "roce-bond"), "--key-file", str(key), "--format", "json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["parts"] == document["parts"]


def test_two_snapshots_without_a_key_cannot_be_matched(tmp_path: Path) -> None:
    hosts = []
    for name in ("a.json", "b.json"):
        assert main(["snapshot", "--root", str(HOSTS / "roce-bond"), "-o", str(tmp_path / name)]) == 0
        hosts.append(json.loads((tmp_path / name).read_text())["host"])
    assert hosts[0] != hosts[1]


def test_this_machine_can_be_saved_and_replayed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "me.json"
    assert main(["snapshot", "-o", str(file)]) == 0
    live = main(["preflight", "--format", "json"])
    capsys.readouterr()
    code, document = judged(capsys, "--snapshot", str(file))
    assert code == live
    assert document["host"].startswith("host-")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no kvdiag.snapshot/1"),
        (b"\xff\xfe\x00", "no kvdiag.snapshot/1"),
        (b"[" * 100_000, "no kvdiag.snapshot/1"),
        (b'{"schema": "kvdiag.snapshot/2"}', "Invalid enum value 'kvdiag.snapshot/2' - at `$.schema`"),
        (b'{"schema": "kvdiag.preflight/1"}', "Invalid enum value 'kvdiag.preflight/1'"),
        (b'{"schema":"kvdiag.snapshot/1","version":"1","host":"h","time":"noon","redacted":true,"parts":{},"missing":{}}',
         "time 'noon' is no RFC 3339 time"),
        (b'{"schema":"kvdiag.snapshot/1","version":"1","host":"h","time":"2026-01-01T00:00:00Z","redacted":true,'
         b'"parts":{"Kernel":5},"missing":{}}', "Expected `object`, got `int` - at `$.parts[...]`"),
    ],
)  # fmt: skip
def test_a_bad_file_is_one_line_and_64(
    content: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    assert main(["preflight", "--snapshot", str(tmp_path / "bad.json")]) == 64
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1
    assert f"--snapshot {tmp_path}/bad.json" in captured.err and message in captured.err


def test_what_is_no_file_or_too_large_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(1 << 30)
    for name, said in (("pipe", "not a regular file"), ("huge", "at most"), ("none", "No such file")):
        assert main(["preflight", "--snapshot", str(tmp_path / name)]) == 64
        assert said in capsys.readouterr().err


def test_a_part_of_another_version_is_missing_and_the_rest_is_judged(
    key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = save(HOSTS / "roce-bond", tmp_path / "a.json", key)
    document = json.loads(file.read_text())
    document["parts"]["Kernel"] = {"release": 5}
    document["parts"]["FromTheFuture"] = {}
    del document["parts"]["VerbsDevices"]
    file.write_text(json.dumps(document))
    capsys.readouterr()
    _, found = judged(capsys, "--snapshot", str(file))
    reasons = {item["part"]: item["reason"] for item in found["missing"]}
    assert "saved a Kernel that cannot be read" in reasons["Kernel"]
    assert "read no VerbsDevices" in reasons["VerbsDevices"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["snapshot"], "say where to write the snapshot"),
        (
            ["snapshot", "-o", "/nonexistent/x"],
            "--output /nonexistent/x: there is no folder /nonexistent",
        ),
        (
            ["snapshot", "-o", "/dev/null", "--key-file", "/dev/null"],
            "--key-file /dev/null: 0 bytes; it needs at least 16",
        ),
        (["preflight", "--snapshot", "a", "--root", "b"], "--root: a saved snapshot is replayed as it is"),
        (["preflight", "--snapshot", "a", "--pid", "1"], "--pid: a saved snapshot is replayed as it is"),
    ],
)
def test_a_wrong_flag_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 64
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.count("\n") == 1 and message in captured.err

"""The examples of exporters/deploy/exporter: they parse, start what exists, and ask for no more than the docs say."""

import configparser
import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from typer.main import get_command

from kvdiag.cli._main import build_app
from kvdiag_exporters.config import Config

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "exporters/deploy/exporter"
DOCS = (ROOT / "docs/exporter.md").read_text()
DAEMONSET, SIDECAR = "kubernetes-daemonset.yaml", "kubernetes-sidecar.yaml"


def documents(name: str) -> dict[str, dict[str, Any]]:
    return {one["kind"]: one for one in yaml.safe_load_all((FOLDER / name).read_text())}


def pod(name: str) -> dict[str, Any]:
    found = documents(name)
    spec: dict[str, Any] = (
        found["DaemonSet"]["spec"]["template"]["spec"] if "DaemonSet" in found else found["Pod"]["spec"]
    )
    return spec


def exporter(name: str) -> dict[str, Any]:
    (found,) = [one for one in pod(name)["containers"] if one["image"].startswith("registry.example.com/kvdiag")]
    container: dict[str, Any] = found
    return container


def config(name: str) -> Config:
    return msgspec.convert(tomllib.loads(documents(name)["ConfigMap"]["data"]["exporter.toml"]), Config)


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string((FOLDER / "kvdiag-exporter.service").read_text())
    return parser


def flags() -> set[str]:
    command = get_command(build_app()).commands["exporter"]  # type: ignore[attr-defined]
    return {name for parameter in command.params for name in parameter.opts}


def needs() -> dict[str, str]:
    """Return what each part needs, by the table of the docs."""
    table = DOCS.split("## What each part needs")[1].split("\n## ")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \| [^|]+ \|$", table, re.MULTILINE)
    return {part: f"{reads}; {wants}" for part, reads, wants in rows if part not in ("part", "---")}


@pytest.mark.parametrize("name", [DAEMONSET, SIDECAR])
def test_manifests_start_what_there_is_with_a_configuration_that_is_valid(name: str) -> None:
    container, mounts = exporter(name), {one["name"]: one for one in exporter(name)["volumeMounts"]}
    assert (container["command"], container["args"][0]) == (["kvdiag"], "exporter")
    assert {item for item in container["args"] if item.startswith("--")} <= flags()
    assert container["args"][-1] == f"{mounts['config']['mountPath']}/exporter.toml"
    volumes = {one["name"]: one for one in pod(name)["volumes"]}
    assert volumes["config"]["configMap"]["name"] == documents(name)["ConfigMap"]["metadata"]["name"]
    assert mounts.keys() <= volumes.keys()
    found = config(name)
    (port,) = container["ports"]
    assert found.listen == f"0.0.0.0:{port['containerPort']}"
    assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": port["name"]}
    assert found.engines


@pytest.mark.parametrize("name", [DAEMONSET, SIDECAR])
def test_manifests_ask_for_no_privilege(name: str) -> None:
    container, spec = exporter(name), pod(name)
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["automountServiceAccountToken"] is False
    assert "memory" in container["resources"]["limits"]
    assert "hostIPC" not in spec
    for volume in spec["volumes"]:
        if "hostPath" in volume:
            (mount,) = [one for one in container["volumeMounts"] if one["name"] == volume["name"]]
            assert mount["readOnly"] is True, volume


def test_the_daemonset_has_what_the_docs_say_that_a_nodes_parts_need() -> None:
    spec, table = pod(DAEMONSET), needs()
    assert spec["hostPID"] is ("host's process namespace" in table["RDMA objects"]) is True
    assert spec["hostNetwork"] is ("host's network namespace" in table["pauses by priority"]) is True
    mounted = {one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one}
    assert mounted == set(re.findall(r"/var/log/\w+", table["pods of engines"]))


def test_the_sidecar_shares_what_it_reads_with_the_engine_and_writes_only_the_recording() -> None:
    spec, found = pod(SIDECAR), config(SIDECAR)
    (engine,) = [one for one in spec["containers"] if one["name"] == "vllm"]
    mine = {one["mountPath"]: one for one in exporter(SIDECAR)["volumeMounts"]}
    theirs = {one["mountPath"]: one["name"] for one in engine["volumeMounts"]}
    telemetry = found.engines[0].nixl_telemetry
    assert telemetry is not None
    environment = {one["name"]: one["value"] for one in engine["env"]}
    assert environment["NIXL_TELEMETRY_MULTIPROC_DIR"] == telemetry
    assert mine[telemetry]["name"] == theirs[telemetry]
    writable = [path for path, one in mine.items() if not one.get("readOnly")]
    assert found.recorder is not None
    assert writable == [str(Path(found.recorder.path).parent)]
    assert spec["shareProcessNamespace"] is True
    assert "hostPID" not in spec
    assert "hostNetwork" not in spec


def test_the_unit_reloads_by_signal_and_has_no_capability() -> None:
    service = unit()["Service"]
    command = service["ExecStart"].split()
    assert command[1] == "exporter"
    assert {item for item in command if item.startswith("--")} <= flags()
    assert "-HUP" in service["ExecReload"]
    assert (service["CapabilityBoundingSet"], service["NoNewPrivileges"], service["ProtectSystem"]) == (
        "",
        "yes",
        "strict",
    )
    assert "AF_NETLINK" in service["RestrictAddressFamilies"].split()  # RDMA objects
    assert not {"PrivateNetwork", "PrivateDevices", "ProtectProc", "PrivateUsers"} & set(service)
    assert int(service["TimeoutStopSec"]) > 2


def test_every_example_is_in_the_docs() -> None:
    for path in FOLDER.iterdir():
        assert f"`{path.name}`" in DOCS, path.name

"""The examples of exporters/deploy/preflight: they parse, use flags that exist, and act on kvdiag's real exit codes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from kvdiag.cli._main import build_app
from kvdiag.sources import preflight_config
from tests.trees import HOSTS, write_tree

FOLDER = Path(__file__).parents[2] / "exporters/deploy/preflight"


def flags() -> set[str]:
    command = get_command(build_app()).commands["preflight"]  # type: ignore[attr-defined]
    return {name for parameter in command.params for name in parameter.opts}


def run(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", str(FOLDER / script), *arguments],
        env={"PATH": path, "HOME": "/nonexistent", **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture
def nothing(tmp_path: Path) -> Path:
    return write_tree("sys/kernel/", tmp_path / "nothing")


def test_the_configuration_can_be_read() -> None:
    config = preflight_config.read(FOLDER / "preflight.toml")
    assert [waiver.code for waiver in config.waiver] == ["FAB002"]
    assert (config.ignore, config.fail_on) == (("CNT",), "critical")


def test_the_init_container_runs_preflight_with_what_the_engine_gets() -> None:
    pod: dict[str, Any] = yaml.safe_load((FOLDER / "kubernetes-init-container.yaml").read_text())
    (init,), (engine,) = pod["spec"]["initContainers"], pod["spec"]["containers"]
    assert (pod["apiVersion"], pod["kind"], init["command"], init["args"][0]) == ("v1", "Pod", ["kvdiag"], "preflight")
    assert {item for item in init["args"] if item.startswith("--")} <= flags()
    for key in ("image", "env", "resources", "securityContext"):
        assert init[key] == engine[key], key
    mounts = {mount["name"]: mount["mountPath"] for mount in init["volumeMounts"]}
    config = init["args"][init["args"].index("--config") + 1]
    assert config.startswith(f"{mounts['kvdiag']}/")
    assert {volume["name"] for volume in pod["spec"]["volumes"]} >= mounts.keys()


@pytest.mark.parametrize(
    ("host", "code"), [("roce-bond", 0), ("missing-address", 0), ("container-without-provider", 1), ("no-rdma", 0)]
)
def test_the_prolog_drains_for_critical_findings_alone(host: str, code: int, tmp_path: Path) -> None:
    done = run("slurm-prolog.sh", "--root", str(HOSTS / host), KVDIAG_TEXTFILE_DIR=str(tmp_path))
    assert done.returncode == code, done
    text = (tmp_path / "kvdiag_preflight.prom").read_text()
    assert "kvdiag_preflight_exit_code " in text
    assert [path.name for path in tmp_path.iterdir()] == ["kvdiag_preflight.prom"]


def test_the_prolog_lets_jobs_start_where_kvdiag_does_not_work(nothing: Path, tmp_path: Path) -> None:
    assert run("slurm-prolog.sh", "--root", str(nothing)).returncode == 0
    assert run("slurm-prolog.sh", "--no-such-flag").returncode == 0
    hanging = tmp_path / "bin"
    hanging.mkdir()
    (hanging / "kvdiag").write_text("#!/bin/sh\nsleep 30\n")
    (hanging / "kvdiag").chmod(0o755)
    environment = {"PATH": f"{hanging}:{os.environ['PATH']}", "KVDIAG_PREFLIGHT_LIMIT_S": "1"}
    done = subprocess.run(
        ["bash", str(FOLDER / "slurm-prolog.sh")], env=environment, capture_output=True, check=False, timeout=20
    )
    assert done.returncode == 0


@pytest.mark.parametrize(
    ("host", "code", "said"),
    [
        ("roce-bond", 0, "KV transfers are ready"),
        ("missing-address", 0, "KV transfers are ready"),
        ("container-without-provider", 1, "CRITICAL CON001 2 of 2 RDMA device(s) cannot be used"),
        ("no-rdma", 2, "kvdiag preflight could not judge this node"),
    ],
)
def test_the_plugin_answers_as_the_detector_expects(host: str, code: int, said: str) -> None:
    config = json.loads((FOLDER / "node-problem-detector.json").read_text())
    (rule,) = config["rules"]
    assert {item for item in rule["args"] if item.startswith("--")} <= flags()
    assert Path(rule["path"]).name == "node-problem-detector.sh"
    assert rule["condition"] in {condition["type"] for condition in config["conditions"]}
    done = run("node-problem-detector.sh", *rule["args"], "--root", str(HOSTS / host))
    assert (done.returncode, done.stdout.count("\n")) == (code, 1), done
    assert done.stdout.startswith(said)


def test_the_plugin_ends_before_the_detector_stops_it() -> None:
    (rule,) = json.loads((FOLDER / "node-problem-detector.json").read_text())["rules"]
    assert int(rule["timeout"].removesuffix("s")) > 50 + 5 - 1
    assert "KVDIAG_PREFLIGHT_LIMIT_S:-50" in (FOLDER / "node-problem-detector.sh").read_text()

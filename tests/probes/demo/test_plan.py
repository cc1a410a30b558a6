import random
from pathlib import Path
from typing import Literal

import pytest

from kvdiag.errors import UndeterminedError, UsageError
from kvdiag.model.diagnosis import Verdict
from kvdiag.model.missing import Missing
from kvdiag_exporters.config import load
from kvdiag_probes.demo import faults, leftovers, network, nixl_import, run, sidecar

NO_LINK = Missing("no network namespace: Operation not permitted")
NO_NIXL = Missing("NIXL is not installed")


def make_plan(
    monkeypatch: pytest.MonkeyPatch, path: Path, *, link: Missing | None, nixl: str | Missing, **wanted: str
) -> run.Plan:
    monkeypatch.setattr(network, "availability", lambda: link)
    monkeypatch.setattr(nixl_import, "find", lambda: nixl)
    choice = {"transport": "auto", "fault": "random", **wanted}
    return run.plan(transport=choice["transport"], fault=choice["fault"], seed=1, rate=8, duration_s=60, output=path)


def test_without_privileges_loopback_is_used_and_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan = make_plan(monkeypatch, tmp_path, link=NO_LINK, nixl="nixl_cu12", fault="layout")
    assert not plan.isolated
    assert plan.notes == (f"both processes share the loopback interface: {NO_LINK.missing}",)
    with pytest.raises(UndeterminedError, match="--fault link is not possible here: no network namespace"):
        make_plan(monkeypatch, tmp_path, link=NO_LINK, nixl="nixl_cu12", fault="link")


def test_without_nixl_tcp_is_used_and_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    plan = make_plan(monkeypatch, tmp_path, link=None, nixl=NO_NIXL, fault="link")
    assert plan.transport == "tcp"
    assert plan.notes == ("NIXL is not installed; using the TCP probe transport instead",)
    with pytest.raises(UndeterminedError, match="--fault registration is not possible here: the TCP transport"):
        make_plan(monkeypatch, tmp_path, link=None, nixl=NO_NIXL, fault="registration")
    with pytest.raises(UndeterminedError, match="--transport nixl: NIXL is not installed"):
        make_plan(monkeypatch, tmp_path, link=None, nixl=NO_NIXL, transport="nixl")


def test_random_picks_every_possible_fault_and_no_other() -> None:
    rng = random.Random(1)
    assert {faults.choose("nixl", None, rng) for _ in range(100)} == {"registration", "layout", "link"}
    assert {faults.choose("tcp", NO_LINK, rng) for _ in range(100)} == {"layout"}


@pytest.mark.parametrize("fault", ["link", "loss", "delay"])
def test_what_is_done_to_a_link_needs_one(fault: str) -> None:
    assert faults.unavailable(fault, "nixl", NO_LINK) == NO_LINK
    assert faults.unavailable(fault, "nixl", None) is None


@pytest.mark.parametrize(
    ("fault", "status", "cause", "right"),
    [
        ("loss", "cause", "fabric.loss", True),
        ("loss", "cause", "fabric.link_degraded", False),
        ("loss", "abstain", None, False),
        ("none", "no_change", None, True),
        ("none", "abstain", None, True),
        ("none", "cause", "schedule.host_contention", True),
        ("none", "cause", "fabric.loss", False),
        ("pause", "abstain", None, True),
        ("pause", "no_change", None, False),
        ("pause", "cause", "fabric.loss", False),
    ],
)
def test_a_verdict_matches_what_was_done(
    fault: str, status: Literal["cause", "no_change", "abstain"], cause: str | None, right: bool
) -> None:
    verdict = Verdict(status=status, cause=cause, confidence=0.9, reason="")
    assert faults.matches(fault, verdict) == right
    assert faults.CAUSES.keys() == faults.DESCRIPTIONS.keys()


def test_an_unknown_fault_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--fault gremlins: choose one of none, registration"):
        make_plan(monkeypatch, tmp_path, link=None, nixl="nixl_cu12", fault="gremlins")


def test_the_recording_does_not_say_what_was_injected(tmp_path: Path) -> None:
    engines = {"prefill-0": {"name": "a", "role": "prefill", "pid": 1, "nixl_telemetry": '/x y/"z"'}}
    config = tmp_path / "exporter.toml"
    config.write_text(sidecar.configuration(engines, tmp_path / "address", tmp_path / "bundle", 1.0))
    loaded = load(config)
    assert loaded.engines[0].nixl_telemetry == '/x y/"z"'
    assert loaded.recorder is not None and loaded.recorder.incident_start_s is None
    assert not any(fault in config.read_text() for fault in (*faults.CAUSES, "fault") if fault != "none")


def test_only_folders_of_dead_processes_are_swept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    alive = leftovers.make_folder()
    dead, other = tmp_path / "kvdiag-demo-99999999-abc", tmp_path / "kvdiag-demo-notes"
    dead.mkdir()
    (dead / "requests.jsonl").write_text("{}")
    other.mkdir()
    elsewhere = tmp_path / "precious"
    elsewhere.mkdir()
    (tmp_path / "kvdiag-demo-99999998-link").symlink_to(elsewhere)
    assert leftovers.sweep() == (dead,)
    assert alive.is_dir() and other.is_dir() and elsewhere.is_dir()
    assert not dead.exists()


def test_the_sample_shows_one_line_of_each_telling_metric() -> None:
    served = (
        'kvdiag_collector_success{collector="nic"} 1',
        'kvdiag_ttft_seconds_sum{decode_node="d"} 2',
        'kvdiag_transfer_stage_seconds_sum{stage="queue"} 3',
        'kvdiag_transfer_stage_seconds_sum{stage="wire"} 4',
        'kvdiag_netdev_transmit_bytes_total{engine=""} 5',
        'kvdiag_netdev_transmit_bytes_total{engine="demo-prefill"} 6',
    )
    assert sidecar.telling(served) == (served[1], served[3], served[5])

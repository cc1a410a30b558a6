import functools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from jsonschema import validate

from kvdiag.cli import main
from kvdiag.errors import StoppedError
from kvdiag.model.rdma import RdmaDevices
from kvdiag.report.json import published_schema
from kvdiag_probes import register_probe, registration
from kvdiag_probes.budget import Budget
from tests.probes.test_gid import device
from tests.probes.test_registration import Kernel, no_window
from tests.report.trace_format import events_of, tracks

SMALL = ("--size", "4KiB,1MiB", "--pages", "4KiB", "--rounds", "5", "--threads", "1", "--limit-bytes", "2MiB")


@contextmanager
def _opened(_: str) -> Iterator[Kernel]:
    yield Kernel()


@pytest.fixture
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    found = RdmaDevices(devices=(device("mlx5_0", state="DOWN"), device("mlx5_1"), device("mlx5_2")))
    monkeypatch.setattr(register_probe, "read_devices", lambda: found)
    measure = functools.partial(register_probe.measure, open_domain=_opened, open_window=no_window)
    monkeypatch.setattr(register_probe, "measure", measure)


@pytest.mark.usefixtures("two_devices")
def test_every_active_device_is_measured_and_every_limit_has_its_answer(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "register", *SMALL, "--kv", "1MiB", "-f", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    validate(document, published_schema("kvdiag.probe-register-1"))
    assert document["settings"]["devices"] == ["mlx5_1", "mlx5_2"]
    assert [row["devices"] for row in document["devices"]] == [1, 2]
    limits = {row["name"]: row["status"] for row in document["limits"]}
    assert limits.keys() == {"memlock", "max_mr", "max_mr_size", "bar1"}
    assert limits["bar1"] == "not_observable"


@pytest.mark.usefixtures("two_devices")
def test_the_timeline_holds_every_step_and_registration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.json"
    assert main(["probe", "register", *SMALL, "--kv", "1MiB", "-f", "json", "--trace", str(path)]) == 0
    assert json.loads(capsys.readouterr().out)["missing"] == []
    found = tracks(events_of(path.read_text()))
    assert [one["name"] for one in found["stages"]][-3:] == ["1MiB on 1 devices", "1MiB on 2 devices", "limits"]
    registered = [one for one in found["operations"] if one["name"] == "register"]
    assert len(registered) == 2 * 2 * 2 * 5  # sizes, touched or not, first and again, rounds


@pytest.mark.usefixtures("two_devices")
def test_the_text_names_what_cannot_be_observed_and_judges_with_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "register", *SMALL, "--device", "mlx5_2", "--budget-ms", "0"]) == 2
    out = capsys.readouterr().out
    assert "bar1: not observable here: no GPU driver is loaded" in out
    assert "registration may not be in the request path" in out and "the budget is 0 ms" in out
    assert main(["probe", "register", "--device", "mlx5_2,mlx5_9"]) == 64
    assert "--device mlx5_9: there is none; there are mlx5_0, mlx5_1, mlx5_2" in capsys.readouterr().err


@pytest.mark.usefixtures("two_devices")
def test_ctrl_c_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def stop(*_: object) -> None:
        raise StoppedError("interrupted")

    monkeypatch.setattr(registration, "time_threads", stop)
    assert main(["probe", "register", *SMALL, "-f", "json"]) == 130
    said = capsys.readouterr()
    document = json.loads(said.out)
    validate(document, published_schema("kvdiag.probe-register-1"))
    assert document["failure"] == "interrupted" and len(document["rows"]) == 4 and document["regions"]
    assert (document["threads"], document["limits"]) == ([], [])
    assert main(["probe", "register", *SMALL]) == 130
    assert "INCOMPLETE: the run failed" in capsys.readouterr().out


@pytest.mark.usefixtures("two_devices")
def test_registering_is_held_against_the_link_and_paced(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    spent: list[int] = []
    monkeypatch.setattr(Budget, "spend", lambda _, moved: spent.append(moved))
    assert main(["probe", "register", *SMALL, "--min-bandwidth", "1Mb/s", "--budget", "1GB/s", "-f", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    validate(document, published_schema("kvdiag.probe-register-1"))
    (judged,) = document["judgements"]
    assert (judged["rule"], judged["metric"], judged["status"]) == ("--min-bandwidth", "kv.registered", "met")
    assert judged["value"] == pytest.approx(document["verdict"]["kv_bytes"] / document["verdict"]["kv_s"])
    assert spent.count(4096) >= 2 * 2 * 5 and spent.count(1 << 20) >= 2 * 2 * 5
    assert main(["probe", "register", *SMALL, "--min-bandwidth", "1000000000000Tb/s"]) == 2
    assert main(["probe", "register", *SMALL, "--budget", "much"]) == 64


def test_without_a_device_there_is_nothing_to_measure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(register_probe, "read_devices", lambda: RdmaDevices(devices=()))
    assert main(["probe", "register"]) == 3
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "no RDMA device on this host" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--pages", "1GiB"], "--pages: '1GiB': give each of 4KiB, thp, hugetlb"),
        (["--threads", "0"], "--threads: '0': give different counts from 1 to 256"),
        (["--regions", "1,x"], "--regions: '1,x'"),
        (["--kv", "1GB"], "--kv: '1GB' may mean"),
    ],
)
def test_bad_flags_are_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "register", *arguments]) == 64
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and said in err

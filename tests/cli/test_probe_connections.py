import pytest

from kvdiag.cli import main
from kvdiag.cli.probe.connections import exit_code
from kvdiag.model.rdma import RdmaDevices
from kvdiag_probes import rdma_path


def test_without_a_device_there_is_nothing_to_measure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rdma_path, "read_devices", lambda: RdmaDevices(devices=()))
    assert main(["probe", "connections"]) == 3
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "no RDMA device on this host" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--active", "0,1"], "--active: '0,1': give different counts from 1 to 1024"),
        (["--threads", "1,1"], "--threads: '1,1'"),
        (["--budget", "10"], "--budget: '10' is no rate"),
    ],
)
def test_bad_flags_are_one_line(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "connections", *arguments]) == 64
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and said in err


def test_a_fan_out_that_was_not_tried_is_not_known() -> None:
    assert [exit_code(code, True) for code in (0, 1, 2, 3)] == [0, 1, 2, 3]
    assert [exit_code(code, None) for code in (0, 1, 2, 3)] == [3, 3, 2, 3]
    assert {exit_code(code, False) for code in (0, 1, 2, 3)} == {2}

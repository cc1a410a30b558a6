import pytest

from kvdiag.cli import main
from kvdiag.model.rdma import RdmaDevices
from kvdiag_probes import register_probe


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

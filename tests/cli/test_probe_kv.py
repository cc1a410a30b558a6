import json
from collections.abc import Iterator

import pytest
from jsonschema import validate

from kvdiag.cli import main
from kvdiag.report.json import published_schema
from tests.probes.agents import serving

SMALL = ("--layers", "4", "--kv-heads", "2", "--head-size", "64", "--rounds", "5", "--repeats", "3")


@pytest.fixture(scope="module")
def peer() -> Iterator[str]:
    with serving() as server:
        yield str(server.address)


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVDIAG_TOKEN", "let-me-in")


def test_tcp_moves_every_layout_both_ways_with_unequal_parallelism(
    peer: str, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--transport", "tcp", "--tokens", "32,64,128", "--prefill-tp", "2", "--decode-tp", "1", *SMALL]
    assert main(["probe", "kv", peer, *arguments, "-f", "json"]) == 0
    out, err = capsys.readouterr()
    document = json.loads(out)
    validate(document, published_schema("kvdiag.probe-kv-1"))
    assert err == ""
    assert document["request"] == {
        "bytes_per_token": 4 * 2 * 2 * 64 * 2,
        "pairs": 2,
        "descriptors": 2 * 4 * 2 * 8,
        "bytes": 128 * 4 * 2 * 2 * 64 * 2,
    }
    found = {(row["operation"], row["mode"], row["tokens"]): row for row in document["rows"]}
    assert len(found) == 2 * 4 * 3
    assert found["read", "block", 128]["descriptors"] == 4 * 2 * 8
    assert all(row["bytes"] * 2 == row["tokens"] * 2048 for row in found.values())
    assert {one["tokens"] for cost in document["costs"] for one in cost["predictions"]} == {64}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--transport", "tcp"], 64, "PEER: give HOST:PORT"),
        (["10.0.0.1:1", "--transport", "nixl"], 64, "PEER: give HOST:PORT"),
        (["--transport", "nixl", "--device", "mlx5_0"], 64, "--transport rdma only"),
        (["--transport", "nixl", "--prefill-tp", "3"], 64, "8 KV heads are not divisible among 3 ranks"),
        (["--transport", "nixl", "--tokens", "0"], 64, "--tokens: '0'"),
        (["--transport", "nixl", "--tokens", "100000"], 64, "at most 1 GiB"),
        (["--transport", "nixl", "--op", "push"], 64, "--op: 'push'"),
    ],
)
def test_bad_flags_are_one_line(arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "kv", *arguments]) == code
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and said in err

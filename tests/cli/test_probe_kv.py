import json
from pathlib import Path

import pytest
from jsonschema import validate

from kvdiag.cli import main
from kvdiag.report.json import published_schema
from tests.sources.test_model_config import LATENT

SMALL = ("--layers", "4", "--kv-heads", "2", "--head-size", "64", "--rounds", "5", "--repeats", "3")


pytestmark = pytest.mark.usefixtures("token")


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
    found = {
        (row["operation"], row["mode"], row["tokens"], tuple(row["pair"]) if row["pair"] else None): row
        for row in document["rows"]
    }
    assert len(document["rows"]) == 2 * 4 * 3 * 3
    assert document["settings"]["pairs"] == [[0, 0], [1, 0]] and document["settings"]["measured"] == "each"
    assert found["read", "block", 128, (1, 0)]["descriptors"] == 4 * 2 * 8
    assert found["read", "block", 128, None]["descriptors"] == 2 * 4 * 2 * 8
    assert all(row["bytes"] * (1 if pair is None else 2) == row["tokens"] * 2048 for (*_, pair), row in found.items())
    assert {one["tokens"] for cost in document["costs"] for one in cost["predictions"]} == {64}
    # Every byte of every repetition went over the data connection, both ways.
    assert document["proof"]["status"] == "proved"
    moved = sum(row["bytes"] for row in document["rows"]) * (5 + 1) * 3
    assert document["proof"]["payload_bytes"] == moved


def test_a_models_geometry_is_read_from_its_configuration_and_flags_win(
    peer: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps(LATENT))
    arguments = ["--model-config", str(config), "--layers", "2", "--tokens", "32", "--pairs", "all"]
    quick = ["--transport", "tcp", "--rounds", "1", "--repeats", "1", "--op", "read"]
    assert main(["probe", "kv", peer, *arguments, *quick, "--prefill-tp", "2", "--decode-tp", "2"]) == 0
    out = capsys.readouterr().out
    assert f"geometry: DeepseekV3ForCausalLM of {config}" in out
    assert f"{2 * 576 * 2} bytes a token" in out and "2 pairs of ranks" in out
    assert "measured: all pairs together" in out and "tcp: carried as named: proved" in out
    assert main(["probe", "kv", peer, "--model-config", str(tmp_path / "absent.json"), *quick]) == 64
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and "absent.json: No such file or directory: give a model's config.json" in err


@pytest.mark.parametrize(
    ("limit", "code", "status"), [("1kb/s", 0, "met"), ("100Tb/s", 2, "missed"), ("0.9xlink", 3, "undetermined")]
)
def test_the_longest_prompt_coalesced_is_held_against_a_minimum(
    peer: str, capsys: pytest.CaptureFixture[str], limit: str, code: int, status: str
) -> None:
    arguments = ["--transport", "tcp", "--tokens", "16,32", "--op", "read", "--min-bandwidth", limit, *SMALL]
    assert main(["probe", "kv", peer, *arguments, "-f", "json"]) == code
    document = json.loads(capsys.readouterr().out)
    assert [one["status"] for one in document["judgements"]] == [status]
    (judged,) = [row for row in document["rows"] if row["bandwidth"]["name"] == document["judgements"][0]["metric"]]
    assert (judged["mode"], judged["tokens"]) == ("coalesced", 32)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--transport", "tcp"], 64, "PEER: give HOST:PORT"),
        (
            ["--transport", "nixl", "--device", "mlx5_0"],
            64,
            "--device chooses an RDMA port: leave it out with --transport nixl",
        ),
        (["a:1", "--transport", "tcp", "--port", "1", "--gid-index", "0"], 64, "--port and --gid-index choose an RDMA"),
        (["--transport", "nixl", "--prefill-tp", "3"], 64, "8 KV heads are not divisible among 3 ranks"),
        (["--transport", "nixl", "--tokens", "0"], 64, "--tokens: '0'"),
        (["--transport", "nixl", "--tokens", "100000"], 64, "at most 1 GiB"),
        (["--transport", "nixl", "--op", "push"], 64, "--op: 'push'"),
        (["--transport", "nixl", "--mla", "--kv-heads", "8"], 64, "--kv-heads: a latent (--mla, or kv_lora_rank of"),
        (["--transport", "nixl", "--dtype-bytes", "3"], 64, "--dtype-bytes: no element has 3 bytes: give 1, 2, 4 or 8"),
        (["--transport", "nixl", "--tolerance", "0.2"], 64, "--tolerance: only with --baseline FILE"),
        (
            ["1.2.3.4:5", "--transport", "tcp", "--memory", "cuda"],
            64,
            "--memory and --peer-memory: only for --transport",
        ),
    ],
)
def test_bad_flags_are_one_line(arguments: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["probe", "kv", *arguments]) == code
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and said in err

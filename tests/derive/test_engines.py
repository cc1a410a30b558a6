import json

import pytest

from kvdiag.derive.engines import setup, transfer_config
from kvdiag.model.engine import EngineSetup
from kvdiag.model.missing import Missing
from kvdiag.model.serving import ServingProcess, Variable
from kvdiag.sources.serving_processes import engine_of

ABSENT = Missing("not read")


def parsed(command: str | list[str], **variables: str) -> EngineSetup:
    words = tuple(command.split() if isinstance(command, str) else command)
    process = ServingProcess(
        pid=1,
        engine=engine_of(words) or "unknown",
        command=words,
        uid=ABSENT,
        groups=ABSENT,
        memlock=ABSENT,
        cap_eff=ABSENT,
        initial_user_namespace=ABSENT,
        cgroup=ABSENT,
        network=ABSENT,
        variables=tuple(Variable(name=name, value=value) for name, value in variables.items()),
    )
    return setup(process)


def vllm(config: object, *more: str) -> EngineSetup:
    return parsed(["vllm", "serve", "m", "--kv-transfer-config", json.dumps(config), *more])


@pytest.mark.parametrize(
    ("config", "library", "direction", "backends", "protocol", "role"),
    [
        ({"kv_connector": "NixlConnector", "kv_role": "kv_producer"}, "nixl", "pull", ("UCX",), None, "prefill"),
        ({"kv_connector": "NixlPushConnector", "kv_role": "kv_consumer"}, "nixl", "push", ("UCX",), None, "decode"),
        (
            {
                "kv_connector": "NixlPullConnector",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {"backends": ["LIBFABRIC"]},
            },
            *("nixl", "pull", ("LIBFABRIC",), None, "both"),
        ),
        ({"kv_connector": "MooncakeConnector", "kv_role": "kv_producer"}, "mooncake", "push", (), "rdma", "prefill"),
        (
            {"kv_connector": "MooncakeConnector", "kv_connector_extra_config": {"mooncake_protocol": "tcp"}},
            *("mooncake", "push", (), "tcp", None),
        ),
        (
            {"kv_connector": "MoRIIOConnector", "kv_connector_extra_config": {"read_mode": "true", "backend": "xgmi"}},
            *("mori", "pull", (), "xgmi", None),
        ),
        ({"kv_connector": "MoRIIOConnector"}, "mori", "push", (), "rdma", None),
        ({"kv_connector": "LMCacheConnectorV1", "kv_role": "kv_both"}, "lmcache", None, (), None, "both"),
        ({"kv_connector": "MyOwnConnector", "kv_role": "kv_both"}, "unknown", None, (), None, "both"),
    ],
)
def test_vllm_connectors(
    config: object,
    library: str,
    direction: str | None,
    backends: tuple[str, ...],
    protocol: str | None,
    role: str | None,
) -> None:
    found = vllm(config)
    (connector,) = found.connectors
    assert (connector.library, connector.direction, connector.backends, connector.protocol) == (
        *(library, direction, backends, protocol),
    )
    assert found.role == role


def test_a_multi_connector_is_what_it_holds() -> None:
    child = {"kv_connector": "NixlConnector", "kv_connector_extra_config": {"kv_lease_duration": 60}}
    other = {"kv_connector": "LMCacheConnectorV1"}
    found = vllm(
        {
            "kv_connector": "MultiConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"connectors": [child, other, "x"]},
        }
    )
    assert [connector.library for connector in found.connectors] == ["nixl", "lmcache"]
    assert found.connectors[0].setting("kv_lease_duration") == "60"
    assert found.connectors[0].setting("kv_role") == "kv_both"


@pytest.mark.parametrize("text", ["{", "[]", "null", "[" * 100_000, '{"kv_connector": 3}', '{"kv_connector": null}'])
def test_a_configuration_that_cannot_be_read_is_no_connector(text: str) -> None:
    found = parsed(["vllm", "serve", "m", "--kv-transfer-config", text])
    assert found.connectors == ()
    assert all(len(problem.splitlines()) == 1 for problem in found.problems)


def test_a_multi_connector_in_itself_ends() -> None:
    config: dict[str, object] = {"kv_connector": "NixlConnector"}
    for _ in range(20):
        config = {"kv_connector": "MultiConnector", "kv_connector_extra_config": {"connectors": [config]}}
    assert vllm(config).connectors == ()


def test_dotted_and_underscored_options() -> None:
    found = parsed(
        "vllm serve m --kv-transfer-config.kv_connector NixlConnector --kv-transfer-config.kv_role=kv_producer -tp 4"
    )
    assert [connector.library for connector in found.connectors] == ["nixl"]
    assert found.role == "prefill"
    assert found.option("--tensor-parallel-size", "-tp") == "4"
    assert parsed("vllm serve m --block_size 32 --enforce-eager --x=1").options == (
        *(("--block-size", "32"), ("--enforce-eager", ""), ("--x", "1")),
    )


@pytest.mark.parametrize(
    ("command", "variables", "library", "role", "devices", "backends", "protocol"),
    [
        (
            "python3 -m sglang.launch_server --disaggregation-mode prefill --disaggregation-ib-device mlx5_0,mlx5_1",
            {},
            *("mooncake", "prefill", ("mlx5_0", "mlx5_1"), (), "rdma"),
        ),
        (
            "python3 -m sglang.launch_server --disaggregation-mode decode --disaggregation-transfer-backend nixl",
            {"SGLANG_DISAGGREGATION_NIXL_BACKEND": "LIBFABRIC"},
            *("nixl", "decode", (), ("LIBFABRIC",), None),
        ),
        (
            "python3 -m sglang.launch_server --disaggregation-mode decode --disaggregation-transfer-backend "
            "mooncake_tcp",
            {},
            *("mooncake", "decode", (), (), "tcp"),
        ),
        (
            "python3 -m dynamo.sglang --disaggregation-mode prefill --disaggregation-transfer-backend mori",
            {},
            *("mori", "prefill", (), (), None),
        ),
        (
            "python3 -m dynamo.vllm --model m --is-prefill-worker --connector nixl",
            {},
            "nixl",
            "prefill",
            (),
            ("UCX",),
            None,
        ),
        (
            "python3 -m dynamo.vllm --model m --disaggregation-mode decode --connector lmcache",
            {},
            *("lmcache", "decode", (), (), None),
        ),
        ("trtllm-serve m", {"TRTLLM_USE_NIXL_KVCACHE": "1"}, "nixl", None, (), (), None),
        ("trtllm-serve m", {"TRTLLM_NIXL_KVCACHE_BACKEND": "LIBFABRIC"}, "nixl", None, (), ("LIBFABRIC",), None),
        (
            "mooncake_client --protocol=rdma --device_name=mlx5_0,mlx5_1",
            {},
            *("mooncake", None, ("mlx5_0", "mlx5_1"), (), "rdma"),
        ),
    ],
)
def test_other_engines(
    command: str,
    variables: dict[str, str],
    library: str,
    role: str | None,
    devices: tuple[str, ...],
    backends: tuple[str, ...],
    protocol: str | None,
) -> None:
    found = parsed(command, **variables)
    (connector,) = found.connectors
    assert (connector.library, found.role, connector.devices, connector.backends, connector.protocol) == (
        *(library, role, devices, backends, protocol),
    )


@pytest.mark.parametrize(
    "command",
    [
        "vllm serve m",
        "python3 -m sglang.launch_server --model-path m",
        "VLLM::EngineCore",
        "trtllm-serve m",
        "my-engine",
    ],
)
def test_an_engine_that_is_not_set_up_to_transfer_or_is_unknown_has_no_connector(command: str) -> None:
    found = parsed(command)
    assert (found.connectors, found.role, found.problems) == ((), None, ())


def test_a_changed_configuration_keeps_the_rest() -> None:
    found = vllm({"kv_connector": "NixlConnector", "kv_connector_extra_config": {"backends": ["UCX"]}})
    text = transfer_config(found, kv_lease_duration=120)
    assert json.loads(text.removeprefix("--kv-transfer-config '").removesuffix("'")) == {
        "kv_connector": "NixlConnector",
        "kv_connector_extra_config": {"backends": ["UCX"], "kv_lease_duration": 120},
    }

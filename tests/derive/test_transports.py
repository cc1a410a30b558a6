"""Which variables an engine's transports read, which list narrows their devices, and how a variable is set."""

import pytest

from kvdiag.derive.environments import environment_of
from kvdiag.derive.setting import set_variable, unset_variable
from kvdiag.derive.transports import device_lists, reads
from kvdiag.model.missing import Missing
from tests.derive.test_engines import parsed, vllm

NIXL = {"kv_connector": "NixlConnector"}
LIBFABRIC = {**NIXL, "kv_connector_extra_config": {"backends": ["LIBFABRIC"]}}
MOONCAKE = {"kv_connector": "MooncakeConnector"}
BOTH = {
    "kv_connector": "MultiConnector",
    "kv_connector_extra_config": {"connectors": [NIXL, {"kv_connector": "MooncakeStoreConnector"}]},
}
NAMES = ("UCX_TLS", "MC_GID_INDEX", "MORI_RDMA_DEVICES", "NCCL_IB_HCA")


@pytest.mark.parametrize(
    ("config", "read"),
    [
        (NIXL, {"UCX_TLS"}),
        (LIBFABRIC, set()),
        (MOONCAKE, {"MC_GID_INDEX"}),
        (BOTH, {"UCX_TLS", "MC_GID_INDEX"}),
        ({"kv_connector": "MoRIIOConnector"}, {"MORI_RDMA_DEVICES"}),
        ({"kv_connector": "P2pNcclConnector"}, {"NCCL_IB_HCA"}),
        ({"kv_connector": "MyOwnConnector"}, set(NAMES)),
        ({"kv_connector": "LMCacheConnectorV1"}, set(NAMES)),
    ],
)
def test_a_transport_reads_its_own_variables(config: dict[str, object], read: set[str]) -> None:
    assert {name for name in NAMES if reads(vllm(config), name)} == read


def test_every_variable_counts_where_no_connector_is_known() -> None:
    assert all(reads(parsed("vllm serve m"), name) for name in NAMES)
    assert reads(vllm(NIXL), "VLLM_NIXL_SIDE_CHANNEL_HOST")


@pytest.mark.parametrize(("own", "read"), [({}, True), ({"MC_GID_INDEX": "3"}, False)])
def test_mooncake_takes_the_index_of_nccl_where_it_has_none(own: dict[str, str], read: bool) -> None:
    engine = parsed("python3 -m sglang.launch_server --disaggregation-mode prefill", NCCL_IB_GID_INDEX="5", **own)
    assert reads(engine, "NCCL_IB_GID_INDEX") is read


@pytest.mark.parametrize(
    ("command", "lists"),
    [
        ("--disaggregation-ib-device mlx5_0,mlx5_1", {"MC_": "mlx5_0,mlx5_1"}),
        ("--disaggregation-ib-device /etc/map.json", {"MC_": None}),
        ("--disaggregation-transfer-backend nixl", {"UCX_": "mlx5_3:1"}),
        ("--disaggregation-transfer-backend mori --disaggregation-ib-device mlx5_0", {"MORI_": "mlx5_0"}),
        ("--disaggregation-transfer-backend other", {}),
    ],
)
def test_the_list_of_the_transport_in_use_narrows_its_devices(command: str, lists: dict[str, str | None]) -> None:
    engine = parsed(
        f"python3 -m sglang.launch_server --disaggregation-mode prefill {command}", UCX_NET_DEVICES="mlx5_3:1"
    )
    assert device_lists(engine) == lists
    named = environment_of(engine)
    assert not isinstance(named, Missing)
    assert ("UCX_NET_DEVICES" in named.variables) is (lists in ({"UCX_": "mlx5_3:1"}, {}))


@pytest.mark.parametrize(
    ("group", "set_text", "unset_text"),
    [
        ("", "export UCX_TLS=rc,sm", "unset UCX_TLS"),
        ("/user.slice/user-0.slice/user@0.service/app.slice", "export UCX_TLS=rc,sm", "unset UCX_TLS"),
        (
            "/system.slice/sgl.service",
            "systemctl edit sgl.service (below [Service]: Environment=UCX_TLS=rc,sm) && systemctl restart sgl.service",
            "systemctl edit sgl.service (below [Service]: UnsetEnvironment=UCX_TLS) && systemctl restart sgl.service",
        ),
        (
            "/kubepods.slice/kubepods-pod1.slice/cri-containerd-1.scope",
            'in the container\'s spec of the pod: env: [{name: UCX_TLS, value: "rc,sm"}]',
            "take UCX_TLS out of the env of the pod's container",
        ),
        (
            "/system.slice/docker-0a.scope",
            "start the container with -e UCX_TLS=rc,sm",
            "start the container without -e UCX_TLS",
        ),
    ],
)
def test_what_started_a_process_decides_how_its_variable_is_set(group: str, set_text: str, unset_text: str) -> None:
    assert set_variable(group, "UCX_TLS", "rc,sm") == set_text
    assert unset_variable(group, "UCX_TLS") == unset_text

"""Faults that others have reported in public, with an established cause: each gives its finding of its severity, and no
other critical one. `follows` are the findings shown below it.

The best-documented ones have all the evidence of the report in one tree: what the host shows and what the engine logs.
"""

from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path

import pytest

from kvdiag.checks.base import Failed, Hosts, Passed, run
from kvdiag.checks.first_cause import group
from kvdiag.model.finding import Severity
from kvdiag.sources.base import Context, collect
from tests.trees import write_peer_tree, write_tree

FIXTURES = Path(__file__).parents[1] / "fixtures" / "checks"
CRITICAL, WARNING, INFO = Severity.CRITICAL, Severity.WARNING, Severity.INFO


@dataclass(frozen=True, slots=True)
class Report:
    """`where` is the report's repository and number; `tree` names one of tests/fixtures/checks, `more` adds to it."""

    where: str
    code: str
    severity: Severity
    tree: str = "fail"
    more: tuple[str, ...] = ()
    follows: Set[str] = frozenset()

    @property
    def text(self) -> str:
        return "\n".join([(FIXTURES / self.code.lower() / f"{self.tree}.tree").read_text(), *self.more])


RETRY = (
    "E1129 14:05:00.007919 74572 worker_pool.cpp:294] Worker: Process failed for slice (opcode: 1, source_addr: "
    "0x7f0000010000, length: 65536, dest_addr: 0x7e0000010000, local_nic: mlx5_bond_0, peer_nic: "
    "198.51.100.22:16012@mlx5_bond_0, dest_rkey: 5001, retry_cnt: 0): transport retry counter exceeded"
)
INVALID = RETRY.replace("mlx5_bond_0", "mlx5_0").replace("transport retry counter exceeded", "remote invalid request")
NO_PROVIDER = (
    "libibverbs: Warning: no userspace device-specific driver found for /sys/class/infiniband_verbs/uverbs0\\n"
    "No IB devices found"
)
NCCL_GID = "prefill-0:319733:319761 [1] NCCL WARN read failed in ncclIbRoceGetVersionNum: Invalid argument"

REPORTS = (
    # With all their evidence.
    Report("ai-dynamo/dynamo#1314", "TRN001", CRITICAL, more=("logs/p.log << ucx-tcp-lanes.log",), follows={"TRN003"}),
    Report("ai-dynamo/dynamo#10852", "TRN004", CRITICAL, more=("logs/p.log << ucx-no-gid.log",), follows={"ENG043"}),
    Report(
        *("kvcache-ai/Mooncake#351", "GDR002", CRITICAL),
        more=("logs/p.log << sglang-registration-then-dead.log",),
        follows={"ENG040"},
    ),
    Report(
        *("NVIDIA/gpu-operator#2868", "GDR003", CRITICAL),
        more=("logs/k.log << kernel-peermem.log",),
        follows={"ENG040"},
    ),
    Report("ai-dynamo/dynamo#12463", "GDR010", CRITICAL),
    Report("openucx/ucx#8229", "LIM001", CRITICAL, more=("logs/p.log << ucx-memlock.log",), follows={"ENG041"}),
    Report("kvcache-ai/Mooncake#691", "LIM004", WARNING, "fail-logged"),
    Report("kvcache-ai/Mooncake#113", "GID001", CRITICAL, more=(f"logs/p.log = {RETRY}",), follows={"WC012"}),
    Report("k8snetworkplumbingwg/multus-cni#1100", "GID002", CRITICAL, more=(f"logs/p.log = {NCCL_GID}",)),
    Report(
        *("kvcache-ai/Mooncake#3868", "MTU001", CRITICAL, "fail-mooncake"),
        more=(f"logs/p.log = {INVALID}",),
        follows={"WC009"},
    ),
    Report("openucx/ucx#11680", "TOP003", WARNING),
    Report("sgl-project/sglang#29127", "FAB004", CRITICAL, follows={"WC012"}),
    Report(
        *("kvcache-ai/Mooncake#3121", "CON001", CRITICAL),
        more=(f"commands/ibv_devinfo.txt = {NO_PROVIDER}", "logs/p.log << mooncake-fallback.log"),
        follows={"TRN001", "ENG042"},
    ),
    Report("ROCm/MAD#224", "CNT001", CRITICAL),
    Report("k8snetworkplumbingwg/sriov-network-device-plugin#345", "CNT002", WARNING),
    Report("prometheus/node_exporter#3265", "CNT004", INFO),
    Report("treydock/infiniband_exporter#33", "TOP003", WARNING),
    Report("vllm-project/vllm#27083", "ENG001", CRITICAL, "fail-logged", follows={"ENG012"}),
    Report("vllm-project/vllm#25897", "ENG010", WARNING),
    Report("vllm-project/vllm#50913", "ENG030", WARNING),
    Report("kvcache-ai/Mooncake#848", "REG001", WARNING),
    # The others with an established cause.
    Report(
        *("kvcache-ai/Mooncake#1259", "TRN013", CRITICAL),
        more=("logs/p.log << mooncake-fallback.log",),
        follows={"ENG042"},
    ),
    Report("llm-d/llm-d#2370", "TRN003", CRITICAL),
    Report("vllm-project/vllm#52607", "TRN005", WARNING),
    Report("ai-dynamo/nixl#791", "TRN014", WARNING),
    Report("ai-dynamo/nixl#747", "ENG042", CRITICAL),
    Report("ROCm/ATOM#1866", "TRN008", WARNING),
    Report("sgl-project/sglang#40641", "TRN009", WARNING),
    Report("kvcache-ai/Mooncake#3538", "GDR001", CRITICAL),
    Report("Mellanox/nv_peer_memory#101", "GDR005", CRITICAL),
    Report("NVIDIA/open-gpu-kernel-modules#1253", "GDR011", WARNING),
    Report("NVIDIA/nccl#489", "GDR012", WARNING),
    Report("openucx/ucx#10955", "GDR013", WARNING),
    Report("openucx/ucx#9908", "ENG044", WARNING),
    Report("ai4d-iasc/trixie#81", "LIM001", CRITICAL),
    Report("NVIDIA/cudf-spark#7632", "LIM001", CRITICAL, "fail-container"),
    Report("NVIDIA/nccl#563", "EFA001", WARNING),
    Report("ofiwg/libfabric#7368", "LIM003", WARNING),
    Report("autoscriptlabs/nccl-mesh-plugin#12", "MTU001", WARNING),
    Report("docs.min.io/memkv", "MTU002", WARNING),
    Report("openucx/ucx#5598", "NET002", WARNING),
    Report("vllm-project/vllm#43799", "TOP003", WARNING, "fail-uneven"),
    Report("ai-dynamo/modelexpress#255", "TOP001", WARNING),
    Report("NVIDIA/nccl#1698", "WC012", WARNING, "fail-then-flushed"),
    Report("kvcache-ai/Mooncake#1699", "FAB014", WARNING),
    Report("kvcache-ai/Mooncake#2515", "FAB015", INFO),
    Report("leptonai/gpud#943", "FAB002", CRITICAL),
    Report("leptonai/gpud#482", "FAB003", WARNING),
    Report("losslessnetwork.com/host-side", "FAB010", WARNING),
    Report("SemiAnalysisAI/InferenceX#998", "ENG031", WARNING),
    Report("modal-projects/training-gym#421", "CON002", CRITICAL),
    Report("ROCm/container-toolkit#140", "CON002", CRITICAL, "fail-kernel-abi"),
    Report("ROCm/MAD#200", "VND001", WARNING),
    Report("Mellanox/k8s-rdma-shared-dev-plugin#84", "CON004", CRITICAL),
    Report("sgl-project/sglang#30099", "TRN010", WARNING),
    Report("ROCm/mori#497", "REG005", CRITICAL),
    Report("ROCm/MAD#191", "VND002", WARNING),
    Report("vllm-project/vllm#38687", "VND003", WARNING),
    Report("prometheus/node_exporter#966", "CNT003", INFO),
    Report("prometheus/node_exporter#1511", "TRN002", INFO, "fail-plain-host"),
    Report("uccl-project/rdmatop#13", "CNT008", INFO),
    Report("vllm-project/vllm#52234", "ENG012", CRITICAL),
    Report("ai-dynamo/nixl#1983", "ENG013", CRITICAL),
    Report("vllm-project/vllm#29503", "ENG005", CRITICAL, "fail-log-only"),
    Report("vllm-project/vllm#24264", "ENG020", WARNING),
    Report("ai-dynamo/nixl#1668", "ENG016", WARNING),
    Report("NVIDIA/TensorRT-LLM#12542", "ENG017", WARNING),
    Report("kvcache-ai/Mooncake#3210", "REG003", WARNING),
    Report("ofiwg/libfabric#12019", "EFA002", WARNING),
    Report("kvcache-ai/Mooncake#2246", "ENG006", WARNING),
)


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: report.where)
def test_a_reported_fault_gives_its_finding_and_no_other_critical_one(report: Report, tmp_path: Path) -> None:
    peer = write_peer_tree(report.text, tmp_path / "peer")
    hosts = Hosts(
        local=collect(Context(root=write_tree(report.text, tmp_path / "host"), live=False)),
        peers=(collect(Context(root=peer, live=False)),) if peer else (),
    )
    groups = group(run(hosts))
    ours = [item for item in groups if item.cause.code == report.code]
    assert [item.cause.severity for item in ours][:1] == [report.severity]
    assert report.follows <= {finding.code for item in ours for finding in item.consequences}
    others = [item for item in groups if item.sort_key[0] == Severity.CRITICAL.rank and item not in ours]
    assert others == []


def test_a_card_without_board_id_and_type_hides_no_counter_of_the_others(tmp_path: Path) -> None:
    # prometheus/node_exporter#2769: loading irdma, whose devices lack both, made the metrics of mlx5 vanish.
    base = "sys/devices/pci0000:5a/0000:5b:00.0/infiniband/mlx5_bond_1"
    text = "\n".join(["base roce-bond", *(f"- {base}/{name}" for name in ("board_id", "hca_type", "fw_ver"))])
    judged = run(Hosts(local=collect(Context(root=write_tree(text, tmp_path / "host"), live=False))))
    assert [finding for item in judged if isinstance(item.outcome, Failed) for finding in item.outcome.findings] == []
    assert {type(item.outcome) for item in judged if item.check.code in ("CNT001", "CNT004", "FAB002")} == {Passed}

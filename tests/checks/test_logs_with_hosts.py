"""What a log says is shown below what explains it on the host: the first cause leads, not the last words of a log."""

from pathlib import Path

import pytest

from kvdiag.checks.base import Hosts, run
from kvdiag.checks.first_cause import group
from kvdiag.model.finding import Severity
from kvdiag.sources.base import Context, collect
from tests.trees import write_tree

NAMED = "VLLM_NIXL_SIDE_CHANNEL_HOST=192.0.2.21"
MEMLOCK = "Max locked memory         65536                65536                bytes"


@pytest.mark.parametrize(
    ("entries", "cause", "follows"),
    [
        (
            [
                "base roce-bond",
                f"proc/5151/environ = {NAMED}\\0PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                "logs/prefill.log << sglang-registration-then-dead.log",
            ],
            *("GDR002", {"ENG040"}),
        ),
        (["base roce-bond", f"proc/5151/limits = {MEMLOCK}", "logs/ucx.log << ucx-memlock.log"], "LIM001", {"ENG041"}),
        (["base roce-bond", "logs/decode.log << nixl-dead-pair.log"], "ENG013", set()),
        (["base dgx-8x-infiniband", "logs/p.log << mooncake-sick-nic.log"], "FAB004", {"WC012", "ENG014"}),
        (["base roce-bond", "logs/decode.log << vllm-engine-id-mismatch.log"], "ENG001", {"ENG012"}),
        (["base roce-bond", "logs/decode.log << vllm-incompatible.log"], "ENG005", {"ENG012"}),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_one_critical_cause_and_what_follows(entries: list[str], cause: str, follows: set[str], tmp_path: Path) -> None:
    snapshot = collect(Context(root=write_tree("\n".join(entries), tmp_path / "host"), live=False))
    groups = group(run(Hosts(local=snapshot)))
    critical = [item for item in groups if item.sort_key[0] == Severity.CRITICAL.rank]
    assert [item.cause.code for item in critical] == [cause]
    assert follows <= {finding.code for finding in critical[0].consequences}

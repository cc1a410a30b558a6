from typing import Any

import pytest

from kvdiag.errors import UsageError
from kvdiag.model.probe import ProbeSettings
from kvdiag_probes.control.address import Address
from kvdiag_probes.session import ProbeOptions, run_probe
from tests.probes.agents import TOKEN


def options(**changes: Any) -> ProbeOptions:
    settings: dict[str, Any] = {
        "kind": "bandwidth",
        "operation": "write",
        "transport": "rdma",
        "sizes": (4096,),
        "queue_depth": 16,
        "iterations": 10,
        "duration_s": None,
        "warmup": 0,
    }
    return ProbeOptions(
        peer=Address("127.0.0.1", 1), credential=TOKEN, settings=ProbeSettings(**(settings | changes)), timeout_s=1
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"transport": "tcp", "queue_pairs": 2}, "--qps.* are for --transport rdma"),
        ({"transport": "tcp", "operation": "write-imm"}, "--op write-imm.* are for --transport rdma"),
        ({"memory": "cuda", "bidirectional": True}, "--bidirectional.* need --memory host, thp or huge"),
        ({"operation": "read", "ordering_rounds": 3}, "--check-ordering writes flags"),
        ({"batch": 17}, "--batch 17 with --signal-every 17 could fill --queue-depth 16"),
        ({"batch": 8, "signal_every": 10}, "--batch 8 with --signal-every 10 could fill --queue-depth 16"),
    ],
)
def test_flags_that_do_not_go_together_are_refused_before_anything_is_connected(
    changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        run_probe(options(**changes))

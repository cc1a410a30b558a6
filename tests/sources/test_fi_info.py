from pathlib import Path

from kvdiag.model.libfabric import LibfabricDomain, LibfabricDomains
from kvdiag.sources.base import Context
from kvdiag.sources.fi_info import SOURCE
from tests.trees import write_tree

TEXT = (
    "provider: efa\\n    fabric: efa\\n    domain: rdmap85s0-rdm\\n    version: 200.0\\n    type: FI_EP_RDM"
    "\\n    protocol: FI_PROTO_EFA\\nprovider: efa\\n    fabric: efa\\n    domain: rdmap85s0-rdm\\n    version: 200.0"
    "\\n    type: FI_EP_DGRAM\\nprovider: tcp;ofi_rxm\\n    fabric: 192.0.2.0/24\\n    domain: eth0"
    "\\n    version: 200.0"
)


def test_each_entry_once_in_order(tmp_path: Path) -> None:
    part = SOURCE.read(Context(root=write_tree(f"commands/fi_info.txt = {TEXT}", tmp_path), live=False))
    assert part == LibfabricDomains(
        domains=(
            LibfabricDomain(provider="efa", fabric="efa", domain="rdmap85s0-rdm", version="200.0"),
            LibfabricDomain(provider="tcp;ofi_rxm", fabric="192.0.2.0/24", domain="eth0", version="200.0"),
        ),
        origin="/commands/fi_info.txt",
    )
    assert part.providers == ("efa", "tcp")

"""An agent on loopback, in a thread of the test."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kvdiag_probes.control.address import Address
from kvdiag_probes.control.credential import Credential
from kvdiag_probes.control.server import AgentServer
from kvdiag_probes.control.sessions import Limits, Sessions
from kvdiag_probes.control.targets import DeviceOptions, TargetFactory

TOKEN = Credential(token="let-me-in")


@contextmanager
def serving(credential: Credential = TOKEN, limits: Limits | None = None) -> Iterator[AgentServer]:
    """Serve until the block ends."""
    bounds = limits or Limits()
    sessions = Sessions(TargetFactory(DeviceOptions(), bounds.session_idle_s), bounds)
    server = AgentServer(Address("127.0.0.1", 0), credential, sessions)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        server.stop()
        thread.join(10)
        assert not thread.is_alive()
        assert len(sessions) == 0

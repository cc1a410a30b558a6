"""QEMU's control protocol, as far as the lab needs it."""

import json
import socket
from typing import Any

from tests.lab.image import LabError

__all__ = ["Monitor"]

_ANSWER_S = 20.0


class Monitor:
    """A connection to one QEMU."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(_ANSWER_S)
        self._connection = connection
        self._lines = connection.makefile("rb")
        self._greeted = False

    def execute(self, command: str, **arguments: Any) -> Any:
        """Run one command and return its answer; raises LabError when QEMU refuses or does not answer."""
        if not self._greeted:
            self._greeted = True
            self.execute("qmp_capabilities")
        try:
            request = {"execute": command, "arguments": arguments} if arguments else {"execute": command}
            self._connection.sendall(json.dumps(request).encode())
            while True:
                answer = json.loads(self._lines.readline())
                if "error" in answer:
                    raise LabError(f"qemu refused {command}: {answer['error']['desc']}")
                if "return" in answer:
                    return answer["return"]
        except (OSError, ValueError) as error:
            raise LabError(f"qemu does not answer {command}: {error}") from error

    def close(self) -> None:
        """End the connection."""
        self._lines.close()
        self._connection.close()

"""An exporter in a lab machine that takes up one configuration after the other: to start one takes long."""

import json
import re
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.lab.machine import Machine
from tests.lab.process import Result

_CONFIG = "/tmp/lab-exporter.toml"
_LIMIT_S = 240.0
_HEAD = 'node = "host-a"\nlisten = "127.0.0.1:0"\n'

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


class Scrape:
    """One exposition."""

    def __init__(self, text: str) -> None:
        self.samples: Samples = {
            (one.name, frozenset(one.labels.items())): one.value
            for family in text_string_to_metric_families(text)
            for one in family.samples
        }

    def rows(self, name: str, *by: str, **labels: str) -> dict[tuple[str, ...], float]:
        """Return the sums of a metric's samples that have the labels, by the values of other labels."""
        found: dict[tuple[str, ...], float] = {}
        for (one, pairs), value in self.samples.items():
            if one == name and labels.items() <= pairs:
                key = tuple(dict(pairs)[label] for label in by)
                found[key] = found.get(key, 0.0) + value
        return found

    def sum(self, name: str, **labels: str) -> float | None:
        """Return the sum of a metric's samples that have the labels; None where there is none."""
        return self.rows(name, **labels).get(())


class LabExporter:
    """`kvdiag exporter` in a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._put("")
        self._process = machine.spawn(f"exec {sys.executable} -m kvdiag exporter --config {_CONFIG}")
        self._configured = 1

    def configure(self, text: str) -> None:
        """Have it go on with another configuration, and wait until it serves by that."""
        self._await_serving(self._configured)
        self._put(text)
        self._process.kill(signal.SIGHUP)
        self._configured += 1
        self._await_serving(self._configured)

    def scrape(self) -> Scrape:
        """Return what it serves now."""
        return Scrape(self._ask("metrics"))

    def health(self) -> Any:
        """Return the document of /healthz."""
        return json.loads(self._ask("healthz"))

    def await_scrape(self, wanted: Callable[[Scrape], bool], what: str) -> Scrape:
        """Return the first scrape that is as wanted."""
        deadline_s = time.monotonic() + _LIMIT_S
        while not wanted(found := self.scrape()):
            assert self._process.poll() is None, self._process.log()
            assert time.monotonic() < deadline_s, f"{what}: {sorted(found.samples)}; {self.health()}"
            time.sleep(0.5)
        return found

    def stop(self) -> Result:
        """End it in order."""
        self._process.kill(signal.SIGTERM)
        return self._process.wait(60)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    def _put(self, text: str) -> None:
        self.machine.put(f"{_HEAD}{text}".encode(), _CONFIG)

    def _await_serving(self, times: int) -> None:
        match = self._process.wait_for(rf"(?s)\A(?:.*?serving http://127\.0\.0\.1:(\d+)){{{times}}}", _LIMIT_S)
        self._port = match[1]

    def _ask(self, path: str) -> str:
        line = f"exec 3<>/dev/tcp/127.0.0.1/{self._port}; printf 'GET /{path} HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3"
        return re.split("\r?\n\r?\n", self.machine.run(line, 60, check=True).stdout, maxsplit=1)[1]

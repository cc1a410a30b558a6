"""The demo as a user runs it: what it names, what it keeps, and that it leaves nothing behind."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import jsonschema
import pytest

from kvdiag.errors import UndeterminedError
from kvdiag.model.missing import Missing
from kvdiag.model.transfer import STAGES
from kvdiag.report.json import published_schema
from kvdiag.sources.bundle import read_bundle
from kvdiag_probes.demo import leftovers, network, tether

pytestmark = pytest.mark.component

CAUSES = {
    "registration": "registration.on_path",
    "layout": "layout.fragmented",
    "link": "fabric.link_degraded",
    "none": None,
}
LINK = network.availability()
needs_link = pytest.mark.skipif(isinstance(LINK, Missing), reason=f"no network namespaces: {LINK}")


def command(output: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "kvdiag", "demo", "--output", str(output), *arguments]


def network_namespaces() -> set[str]:
    found = set()
    for link in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(str(link.readlink()))
        except OSError:
            continue
    return found


def processes(marker: str) -> dict[int, list[str]]:
    """Return the command lines, by pid, that mention the marker; this process aside."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if any(marker in part for part in line) and int(path.parent.name) != os.getpid():
            found[int(path.parent.name)] = line
    return found


def ended(marker: str, within_s: float = 15) -> bool:
    """Wait until no process mentions the marker."""
    deadline_s = time.monotonic() + within_s
    while processes(marker) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    return not processes(marker)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    return {**os.environ, "TMPDIR": str(temporary)}


@pytest.fixture
def unchanged(tmp_path: Path) -> Iterator[None]:
    """Check that afterwards no process, no shared memory and no interface of the demo is left on the host."""
    shared = set(Path("/dev/shm").iterdir())
    yield
    assert ended(str(tmp_path)), processes(str(tmp_path))
    left = {path.name for path in set(Path("/dev/shm").iterdir()) - shared}
    assert not {name for name in left if any(word in name for word in ("ucx", "nixl", "kvdiag"))}
    assert not {path.name for path in Path("/sys/class/net").iterdir()} & {"kvp0", "kvd0"}


@contextmanager
def under_way(tmp_path: Path, environment: dict[str, str], *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a demo and wait until its exporter serves."""
    line = command(tmp_path / "out", *arguments)
    with subprocess.Popen(line, env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            for text in process.stderr:
                if text.startswith("metrics on"):
                    break
            else:
                pytest.fail("the demo did not start")
            yield process
        finally:
            process.kill()


def workers(tmp_path: Path) -> dict[str, int]:
    return {
        role: pid
        for pid, line in processes(str(tmp_path)).items()
        for role in ("prefill", "decode")
        if f"kvdiag_probes.demo.{role}" in line
    }


@needs_link
@pytest.mark.timeout(240)
@pytest.mark.parametrize("fault", CAUSES)
def test_the_verdict_names_what_was_injected(
    fault: str, tmp_path: Path, environment: dict[str, str], unchanged: None
) -> None:
    pytest.importorskip("nixl_cu12", reason="NIXL's wheel is not installed")
    line = command(tmp_path / "out", "--fault", fault, "--duration", "40", "--format", "json", "--seed", "11")
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=200)
    assert done.stdout, done.stderr
    document = json.loads(done.stdout)
    jsonschema.validate(document, published_schema("kvdiag.demo-1"))
    assert document["verdict"]["cause"] == CAUSES[fault], done.stdout
    assert (done.returncode, document["matched"], document["transport"]) == (0, True, "nixl")
    assert document["isolated"]
    bundle = read_bundle(document["bundle"])
    assert len(bundle.requests) == document["requests"] > 250
    ttft = bundle.requests.number("ttft_s")
    assert ttft is not None
    stages = [column for column in map(bundle.requests.number, STAGES) if column is not None]
    assert abs(sum(stages) - ttft).max() < 1e-9
    descriptors = bundle.requests.number("descriptors")
    assert descriptors is not None
    assert (descriptors.max() > 1000) == (fault == "layout")
    metrics = {series.metric for series in bundle.series}
    assert {"nic.tx_bytes", "nixl.tx_bytes"} <= metrics
    assert any(sample.startswith("kvdiag_ttft_seconds") for sample in document["metrics_sample"])
    recorded = "".join(path.read_text() for path in Path(document["bundle"]).iterdir())
    assert "fault" not in recorded
    assert list(Path(environment["TMPDIR"]).iterdir()) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_interrupted_demo_leaves_only_its_recording(
    number: signal.Signals, status: int, tmp_path: Path, environment: dict[str, str], unchanged: None
) -> None:
    namespaces = network_namespaces()
    with under_way(tmp_path, environment, "--fault", "none") as process:
        time.sleep(3)
        started = workers(tmp_path)
        assert set(started) == {"prefill", "decode"}
        if LINK is None:
            assert len(network_namespaces() - namespaces) >= 2
        for _ in range(3):  # an impatient user presses Ctrl-C again
            process.send_signal(number)
            time.sleep(0.02)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == status
    assert "Traceback" not in errors
    assert list(Path(environment["TMPDIR"]).iterdir()) == []
    (bundle,) = (tmp_path / "out").iterdir()
    assert len(read_bundle(bundle).requests) > 0


def test_a_killed_demo_takes_its_processes_along_and_the_next_one_sweeps(
    tmp_path: Path, environment: dict[str, str], unchanged: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with under_way(tmp_path, environment, "--fault", "none") as process:
        assert set(workers(tmp_path)) == {"prefill", "decode"}
        process.kill()
        process.wait()
    assert ended(str(tmp_path)), processes(str(tmp_path))
    left = list(Path(environment["TMPDIR"]).iterdir())
    assert len(left) == 1
    monkeypatch.setattr("tempfile.tempdir", environment["TMPDIR"])
    assert leftovers.sweep() == tuple(left)


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_crashed_worker_ends_the_demo_in_one_line(
    role: str, tmp_path: Path, environment: dict[str, str], unchanged: None
) -> None:
    with under_way(tmp_path, environment, "--fault", "none") as process:
        os.kill(workers(tmp_path)[role], signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == UndeterminedError.exit_code
    (line,) = [text for text in errors.splitlines() if text.startswith("kvdiag: error:")]
    assert "process" in line
    assert list(Path(environment["TMPDIR"]).iterdir()) == []


@pytest.mark.timeout(120)
def test_over_tcp_the_rows_and_the_layout_fault_are_there(
    tmp_path: Path, environment: dict[str, str], unchanged: None
) -> None:
    arguments = ("--fault", "layout", "--transport", "tcp", "--duration", "20", "--rate", "12", "--format", "json")
    line = command(tmp_path / "out", *arguments)
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False, timeout=100)
    assert done.stdout, done.stderr
    document = json.loads(done.stdout)
    assert document["transport"] == "tcp"
    descriptors = read_bundle(document["bundle"]).requests.number("descriptors")
    assert descriptors is not None
    assert descriptors.min() == 8
    assert descriptors.max() > 1000


@needs_link
def test_a_namespace_and_its_link_end_with_the_last_process_inside() -> None:
    sleepers = [
        subprocess.Popen(tether.wrap(["sleep", "60"], on_parent_death=signal.SIGKILL, netns=True)) for _ in range(2)
    ]
    try:
        own = Path("/proc/self/ns/net").readlink()
        deadline_s = time.monotonic() + 10
        while any(Path(f"/proc/{one.pid}/exe").resolve().name != "sleep" for one in sleepers):
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        names = {str(Path(f"/proc/{one.pid}/ns/net").readlink()) for one in sleepers}
        assert len(names) == 2 and str(own) not in names
        network.connect(sleepers[0].pid, sleepers[1].pid)
        network.degrade(sleepers[0].pid, 1e9)
    finally:
        for one in sleepers:
            one.kill()
            one.wait()
    assert not names & network_namespaces()

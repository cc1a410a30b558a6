"""The link from vLLM's transfers to requests, over a connector with the public interface of vLLM 0.33."""

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from kvdiag.model.piece_line import PieceLine
from kvdiag.model.record import HandleTransfer
from kvdiag_exporters.plugins import vllm, vllm_link, vllm_stats
from kvdiag_exporters.plugins.line_writer import LineWriter

A, B = "cmpl-a-0-00aa11bb", "cmpl-b-0-22cc33dd"


class Stats:
    """NixlKVConnectorStats: the lists are in `data`, and an empty one is false."""

    def __init__(self, durations: list[float], sizes: Sequence[int] = ()) -> None:
        self.data = {
            "transfer_duration": durations, "post_duration": [0.001] * len(durations),
            "bytes_transferred": list(sizes) or [4096] * len(durations), "num_descriptors": [2] * len(durations),
        }  # fmt: skip

    def __bool__(self) -> bool:
        return bool(self.data["transfer_duration"])


class Connector:
    """Of vLLM before 0.32, which is asked with get_finished."""

    def __init__(self, *steps: tuple[Any, Any]) -> None:
        self.steps = list(steps)

    def get_finished(self, finished_req_ids: set[str]) -> Any:
        return self.steps[0][0]

    def get_kv_connector_stats(self) -> Any:
        return self.steps.pop(0)[1]


class NewConnector(Connector):
    """Of vLLM 0.32, which is asked with get_transfer_results; recorded in a run: get_finished is never called."""

    def bind_connector_metadata(self, metadata: Any) -> None:
        self.bound = metadata

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        sending, receiving = self.steps[0][0]
        return SimpleNamespace(finished_sending=sending, finished_recving=receiving, failed_recving=set())


def run(path: Path, *steps: tuple[Any, Any], connector: str = "NixlConnector") -> tuple[list[HandleTransfer], int]:
    """Return what was told of the steps, and how many steps could not be told of."""
    made = Connector(*steps)

    class Factory:
        @staticmethod
        def create_connector(config: Any, role: str) -> Connector:
            return made

    writer = LineWriter(path, msgspec.json.encode)
    vllm_link.wrap_factory(Factory, writer)
    vllm_link.wrap_factory(Factory, writer)  # a second call wraps nothing twice
    config = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector=connector, kv_connector_extra_config={}))
    one = Factory.create_connector(config, role="worker")
    assert one is made
    for finished, stats in steps:
        assert one.get_finished(set()) is finished
        assert one.get_kv_connector_stats() is stats
    writer.close()
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [handle for line in lines for handle in msgspec.json.decode(line, type=PieceLine).transfers], writer.lost


def test_the_handles_of_a_step_are_those_of_the_only_request_that_finished_in_it(tmp_path: Path) -> None:
    found, _ = run(
        tmp_path / "steps",
        ((None, {A}), Stats([0.1, 0.2])),  # one request, two ranks
        ((None, {A, B}), Stats([0.3, 0.4])),  # whose is which is not told
        ((None, None), Stats([0.5])),  # the first part of a request
        (({A}, None), Stats([0.6])),  # sent, which a pulling side does not
        ((set(), set()), None),
    )
    assert [one.keys for one in found] == [*[(("id", "a"),)] * 2, *[()] * 4]
    assert [one.duration_s for one in found] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6]
    first = found[0]
    assert first.start_s is not None
    assert first.evidence == {"start_s": "derived"}
    assert found[2].start_s is None


def test_the_interface_of_vllm_0_32(tmp_path: Path) -> None:
    made = NewConnector(((set(), {A}), Stats([0.1])))

    class Factory:
        @classmethod
        def create_connector(cls, config: Any, role: str) -> Connector:
            return made

    writer = LineWriter(tmp_path / "steps", msgspec.json.encode)
    vllm_link.wrap_factory(Factory, writer)
    config = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector="NixlConnector"))
    one = Factory.create_connector(config, role="worker")
    assert one.get_transfer_results(set()).finished_recving == {A}  # type: ignore[attr-defined]
    one.get_kv_connector_stats()
    writer.close()
    line = msgspec.json.decode((tmp_path / "steps").read_bytes(), type=PieceLine)
    assert [handle.keys for handle in line.transfers] == [(("id", "a"),)]


def bound(path: Path, asked: list[dict[str, Any]], finished: set[str], stats: Stats) -> list[HandleTransfer]:
    """Return what was told of a step in which these finished, of those that it was asked for in steps before."""
    made = NewConnector((({"cmpl-sent-0-11aa11aa"}, finished), stats))

    class Factory:
        @classmethod
        def create_connector(cls, config: Any, role: str) -> Connector:
            return made

    writer = LineWriter(path, msgspec.json.encode)
    vllm_link.wrap_factory(Factory, writer)
    config = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector="NixlConnector"))
    one: Any = Factory.create_connector(config, role="worker")
    for wanted in asked:
        metadata = SimpleNamespace(reqs_to_recv=wanted)
        one.bind_connector_metadata(metadata)
        assert one.bound is metadata
    one.get_transfer_results(set())
    one.get_kv_connector_stats()
    writer.close()
    return list(msgspec.json.decode(path.read_bytes(), type=PieceLine).transfers)


def pulled(blocks: Any) -> SimpleNamespace:
    return SimpleNamespace(local_block_ids=blocks)


def test_handles_of_several_requests_are_told_apart_by_their_order_and_size(tmp_path: Path) -> None:
    # One that began in between goes on, another one had everything already; two ranks each.
    asked = [{B: pulled(([1, 2], [3])), "cmpl-c-0-44ee44ee": pulled(([4],))}, {A: pulled([9]), "d": pulled(([], []))}]
    found = bound(tmp_path / "s", asked, {A, B, "d"}, Stats([0.1, 0.2, 0.3, 0.4], [1536, 1536, 512, 512]))
    assert [(one.keys, one.duration_s) for one in found] == [
        ((("id", "b"),), 0.1), ((("id", "b"),), 0.2), ((("id", "a"),), 0.3), ((("id", "a"),), 0.4),
    ]  # fmt: skip
    assert all(one.start_s is not None and one.evidence == {"start_s": "derived"} for one in found)


@pytest.mark.parametrize(
    ("asked", "sizes"),
    [
        ({A: pulled([1]), B: pulled([2, 3])}, [1024, 512]),  # in another order
        ({A: pulled([1]), B: pulled([2])}, [512]),  # one was there already, or failed
        ({A: pulled([1])}, [512, 512]),  # one that began before anything was noted
        ({A: pulled([1]), B: pulled(None)}, [512, 512]),
        (None, [512, 512]),
    ],
)
def test_handles_that_do_not_fit_stay_without_a_request(tmp_path: Path, asked: Any, sizes: list[int]) -> None:
    found = bound(tmp_path / "s", [asked], {A, B}, Stats([0.1] * len(sizes), sizes))
    assert [one.keys for one in found] == [()] * len(sizes)


def test_a_pushing_side_has_sent_its_requests(tmp_path: Path) -> None:
    found, _ = run(tmp_path / "steps", (({B}, {A}), Stats([0.1])), connector="NixlPushConnector")
    assert [(one.keys, one.direction) for one in found] == [((("id", "b"),), "push")]


@pytest.mark.parametrize("finished", [None, 3, (None,), ()])
def test_what_a_later_version_may_give_stops_nothing(tmp_path: Path, finished: Any) -> None:
    found, lost = run(tmp_path / "steps", (finished, Stats([0.1])), ((None, {A}), SimpleNamespace(data=[1])))
    assert [one.keys for one in found] == [()]
    assert lost == 1


def test_the_stat_logger_leaves_the_transfers_to_the_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(vllm_stats.VARIABLE, str(tmp_path / "steps"))
    monkeypatch.setenv(vllm_stats.LINK_VARIABLE, "1")
    monkeypatch.setattr(vllm, "_writers", {})
    logger = vllm.KvdiagStatLogger(SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_connector="NixlConnector")))
    line = logger.line(1.0, 0, {"transfer_duration": [0.1], "num_failed_transfers": 2}, ())
    assert line.transfers == ()
    assert line.windows[0].values == {"NixlConnector.num_failed_transfers": 2.0}


def test_loading_the_link_loads_nothing_of_the_stat_logger() -> None:
    program = (
        "import sys; import kvdiag_exporters.plugins.vllm_link as link; link.register(); "
        "print([name for name in ('kvdiag_exporters.plugins.vllm', 'numpy', 'wrapt') if name in sys.modules])"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "KVDIAG_VLLM_RECORDS": ""}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environ)
    assert done.stdout == "[]\n"


def test_without_being_asked_nothing_is_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    (found,) = entry_points(group="vllm.general_plugins", name="kvdiag")
    register = found.load()
    monkeypatch.setenv(vllm_stats.VARIABLE, "/tmp/nowhere")
    monkeypatch.delenv(vllm_stats.LINK_VARIABLE, raising=False)
    monkeypatch.setattr(vllm_link, "wrap_factory", lambda *args: pytest.fail("wrapped"))
    register()

"""What is set in the kernel, and that all of it goes again, whatever happens between."""

import errno
from pathlib import Path

import pytest

from kvdiag.errors import UndeterminedError
from kvdiag.sources.tree import Tree
from kvdiag_exporters.kernel_calls.session import Session
from kvdiag_exporters.kernel_calls.tracefs import find
from tests.exporters.kernel_calls.tracing import NAMES, FakeTracefs

FOREIGN = "p:kprobes/somebody vfs_read"


@pytest.fixture
def files() -> FakeTracefs:
    return FakeTracefs(kprobes=[FOREIGN], synthetic=["their_latency u64 lat"], instances={"theirs": []})


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


def assert_only_others_are_left(files: FakeTracefs) -> None:
    assert (files.kprobes, files.synthetic) == ([FOREIGN], ["their_latency u64 lat"])
    assert (files.instances, files.held) == ({"theirs": []}, {})


def test_everything_is_the_sessions_own_and_gone_at_the_end(files: FakeTracefs, tree: Tree) -> None:
    session = Session(files, tree)
    session.arm()
    assert session.timed == ("reg_mr", "dereg_mr", "pin", "modify_qp")
    assert session.missing == (
        "reg_dmabuf_mr: the kernel has no ib_uverbs_handler_UVERBS_METHOD_REG_DMABUF_MR",
        "create_qp: the kernel has no ib_uverbs_create_qp, ib_uverbs_ex_create_qp, "
        "ib_uverbs_handler_UVERBS_METHOD_QP_CREATE",
    )
    mine = [line for line in files.kprobes if line != FOREIGN]
    assert len(mine) == 2 * len(NAMES)
    assert all(f":{session.name}/{session.name}__" in line for line in mine)
    assert sorted(files.instances) == sorted(["theirs", session.name])
    assert len(files.instances[session.name]) == 4 * len(NAMES)
    assert files.instances["theirs"] == []
    assert {reading.call for reading in session.read()} == {"reg_mr", "dereg_mr", "pin", "modify_qp"}
    session.disarm()
    assert_only_others_are_left(files)
    session.disarm()
    assert_only_others_are_left(files)


def test_what_a_killed_exporter_left_goes_and_what_a_live_one_uses_stays(files: FakeTracefs, tree: Tree) -> None:
    killed, live, mine = Session(files, tree), Session(files, tree), Session(files, tree)
    killed.arm()
    files.held.clear()  # what the kernel does with the files of a process that is gone
    live.arm()
    assert killed.name not in files.instances and not any(killed.name in line for line in files.kprobes)
    mine.arm()
    assert sorted(files.instances) == sorted(["theirs", live.name, mine.name])
    assert len(list(live.read())) == len(NAMES)
    mine.disarm()
    live.disarm()
    assert_only_others_are_left(files)


@pytest.mark.parametrize(
    ("refused", "code", "told"),
    [
        ("kprobe_events", errno.EPERM, "kprobe_events: Operation not permitted; only root may trace the kernel"),
        ("instances/", errno.EROFS, "mounted read-only here; tracing needs it writable"),
        ("tracing_on", errno.ENOENT, "tracing_on: No such file or directory"),
        ("instances", errno.EACCES, "instances: Permission denied; only root may trace the kernel"),
    ],
)
def test_what_is_refused_is_told_and_nothing_stays(
    files: FakeTracefs, tree: Tree, refused: str, code: int, told: str
) -> None:
    session = Session(files, tree)
    files.refused = {refused: code}
    with pytest.raises(UndeterminedError, match=told.replace("(", ".")):
        session.arm()
    files.refused = {}
    assert_only_others_are_left(files)


def test_a_trigger_that_the_kernel_does_not_know_costs_that_call_only(files: FakeTracefs, tree: Tree) -> None:
    files.refused = {"modify_qp_0_out/trigger": errno.EINVAL}
    session = Session(files, tree)
    session.arm()
    assert session.timed == ("reg_mr", "dereg_mr", "pin")
    assert any("ib_modify_qp_with_udata: Invalid argument" in line for line in session.missing)
    assert not any("modify_qp" in line for line in [*files.kprobes, *files.synthetic])
    assert not any("modify_qp" in line for line in files.instances[session.name])


def test_no_function_at_all_is_a_reason(tree: Tree) -> None:
    files = FakeTracefs(functions=())
    with pytest.raises(UndeterminedError, match="reg_mr: the kernel has no ib_uverbs_reg_mr"):
        Session(files, tree).arm()
    assert (files.kprobes, files.synthetic, files.instances) == ([], [], {})


def test_an_instance_that_others_removed_is_told(files: FakeTracefs, tree: Tree) -> None:
    session = Session(files, tree)
    session.arm()
    del files.instances[session.name]
    with pytest.raises(UndeterminedError, match="hist: No such file"):
        list(session.read())
    session.disarm()
    assert_only_others_are_left(files)


def test_a_lockdown_is_named(files: FakeTracefs, tmp_path: Path) -> None:
    (tmp_path / "sys/kernel/security").mkdir(parents=True)
    (tmp_path / "sys/kernel/security/lockdown").write_text("none integrity [confidentiality]\n")
    files.refused = {"kprobe_events": errno.EPERM}
    with pytest.raises(UndeterminedError, match="the kernel is locked down"):
        Session(files, Tree(tmp_path)).arm()


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ((), "/sys/kernel/tracing does not exist"),
        (("sys/kernel/tracing/",), "nothing is mounted at /sys/kernel/tracing; mount -t tracefs tracefs"),
        (
            ("sys/kernel/tracing/instances/",),
            "/sys/kernel/tracing has no kprobe_events: a kernel without CONFIG_KPROBE",
        ),
        (
            ("sys/kernel/tracing/instances/", "sys/kernel/tracing/kprobe_events"),
            "/sys/kernel/tracing has no synthetic_events: a kernel without CONFIG_SYNTH_EVENTS",
        ),
    ],
)
def test_the_place_is_looked_for(tmp_path: Path, made: tuple[str, ...], told: str) -> None:
    for path in made:
        place = tmp_path / path
        if path.endswith("/"):
            place.mkdir(parents=True)
        else:
            place.write_text("")
    with pytest.raises(UndeterminedError, match=told):
        find(Tree(tmp_path))


def test_an_older_place_serves_as_well(tmp_path: Path) -> None:
    for name in ("kprobe_events", "synthetic_events", "instances"):
        (tmp_path / "sys/kernel/debug/tracing" / name).mkdir(parents=True)
    (tmp_path / "sys/kernel/tracing").mkdir()
    assert find(Tree(tmp_path)).names("") == ["instances", "kprobe_events", "synthetic_events"]

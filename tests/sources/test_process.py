import os
import resource
import subprocess
import sys
from pathlib import Path

import msgspec

from kvdiag.model.missing import Missing
from kvdiag.model.process import Process
from kvdiag.sources.base import Context
from kvdiag.sources.process import SOURCE, descendants, read_process
from kvdiag.sources.tree import Tree

LIVE = Tree(Path("/"))


def test_this_process_is_seen_as_it_is() -> None:
    found = SOURCE.read(Context(pid=os.getpid()))
    assert not isinstance(found, Missing)
    assert found.parent_pid == os.getppid()
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    assert found.memlock_limit_bytes == ("unlimited" if soft == resource.RLIM_INFINITY else soft)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    assert abs(found.cpu_s - usage.ru_utime - usage.ru_stime) < 1
    assert not isinstance(found.rss_bytes, Missing)
    # The kernel adds up its per-CPU counts of pages now and then only, so the two differ a little.
    assert 0.1 < found.rss_bytes / (usage.ru_maxrss * 1024) < 1.1
    assert found.pinned_bytes == 0
    assert isinstance(found.open_fds, int)


def test_a_name_with_brackets_and_spaces_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "proc/7"
    folder.mkdir(parents=True)
    numbers = [3, *range(101, 110), 250, 50, 30, 20, *range(115, 117), 4, 117, 9000, 118, 119]
    (folder / "stat").write_text(f"7 (a) S (b) R {' '.join(map(str, numbers))}\n")
    (folder / "status").write_text("Name:\ta) S (b\nVmLck:\t 8 kB\nVmPin:\t 16 kB\nVmRSS:\t 4 kB\n")
    (folder / "limits").write_text("Max locked memory         unlimited            unlimited            bytes     \n")
    (tmp_path / "proc/stat").write_text("cpu 1 2\nbtime 1700000000\n")
    found = read_process(Tree(tmp_path), 7)
    assert not isinstance(found, Missing)
    assert (found.name, found.parent_pid, found.threads, found.start_ticks) == ("a) S (b", 3, 4, 9000)
    assert (found.cpu_s, found.reaped_cpu_s, found.start_s) == (3.0, 0.5, 1700000090.0)
    assert (found.locked_bytes, found.pinned_bytes, found.rss_bytes) == (8192, 16384, 4096)
    assert found.memlock_limit_bytes == "unlimited"
    assert msgspec.json.decode(msgspec.json.encode(found), type=Process) == found
    assert isinstance(found.open_fds, Missing)


def test_children_of_children_are_found() -> None:
    child = (
        "import subprocess,sys; p=subprocess.Popen(['sleep','30']); print(p.pid,flush=True); sys.stdin.read(); p.kill()"
    )
    with subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        grandchild = int(process.stdout.readline())
        found = descendants(LIVE, os.getpid())
        process.communicate(b"")
    assert not isinstance(found, Missing) and {process.pid, grandchild} <= set(found)


def test_a_process_that_is_gone_is_missing() -> None:
    with subprocess.Popen(["true"]) as process:
        process.wait()
    found = read_process(LIVE, process.pid)
    assert found == Missing(f"there is no process {process.pid}")
    assert isinstance(SOURCE.read(Context()), Missing)

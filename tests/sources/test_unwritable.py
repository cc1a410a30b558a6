"""A wrong place is the caller's mistake; a full disk is not."""

import errno
import os
from pathlib import Path

import pytest

from kvdiag.cli import main
from kvdiag.errors import UndeterminedError, UsageError
from kvdiag.sources.unwritable import unwritable
from tests.trees import HOSTS

NO_RDMA = ["--root", str(HOSTS / "no-rdma")]
WRITING = [
    ["snapshot", *NO_RDMA, "-o"],
    ["preflight", *NO_RDMA, "--format", "json", "--out"],
    ["preflight", *NO_RDMA, "--format", "junit", "--out"],
]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO])
def test_a_disk_that_is_full_or_fails_is_undetermined(number: int) -> None:
    found = unwritable("--out f", OSError(number, os.strerror(number)), "name another file")
    assert isinstance(found, UndeterminedError)
    assert str(found) == f"--out f: {os.strerror(number)}; make room, or write elsewhere"


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOENT, errno.EROFS, errno.EISDIR])
def test_a_place_that_cannot_be_written_to_is_a_usage_error(number: int) -> None:
    found = unwritable("--out f", OSError(number, os.strerror(number)), "name another file")
    assert isinstance(found, UsageError)
    assert str(found) == f"--out f: {os.strerror(number)}; name another file"


@pytest.mark.parametrize("command", WRITING, ids=lambda one: f"{one[0]} {one[-1]}")
def test_commands_that_write_tell_a_full_disk_from_a_wrong_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    assert main([*command, "/dev/full"]) == 3
    err = capsys.readouterr().err
    assert "/dev/full: No space left on device; make room, or write elsewhere\n" in err
    assert main([*command, str(tmp_path / "none/file")]) == 64
    assert str(tmp_path / "none") in capsys.readouterr().err

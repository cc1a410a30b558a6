"""Working folders of the demo: named after the process that made them, so that those of a dead one can be told."""

import os
import re
import shutil
import tempfile
from pathlib import Path

_PREFIX = "kvdiag-demo-"
_NAME = re.compile(re.escape(_PREFIX) + r"(\d+)-\w+")


def make_folder() -> Path:
    """Return a new working folder in the system's place for temporary files."""
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))


def sweep() -> tuple[Path, ...]:
    """Remove this user's working folders whose process is dead (it was killed), and return them."""
    removed = []
    for path in sorted(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*")):
        match = _NAME.fullmatch(path.name)
        if match is None or path.is_symlink() or not path.is_dir() or path.stat().st_uid != os.getuid():
            continue
        if not Path(f"/proc/{match[1]}").exists():
            shutil.rmtree(path, ignore_errors=True)
            removed.append(path)
    return tuple(removed)

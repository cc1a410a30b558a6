"""Compiles the loops of latency measurements while a wheel is built, where there is a compiler and libibverbs-dev."""

import hashlib
import os
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_SOURCE = Path("probes/kvdiag_probes/latency_loops.c")


class CompileLoops(BuildHookInterface[Any]):
    """Puts latency_loops.so beside its source; without it a wheel is for any platform and times latencies in Python."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        source = Path(self.root) / _SOURCE
        library = source.with_suffix(".so")
        digest = hashlib.sha256(source.read_bytes()).hexdigest()
        if not (library.exists() and digest.encode() in library.read_bytes()):
            library.unlink(missing_ok=True)
            self._compile(source, library, digest)
        if library.exists():
            build_data["artifacts"].append(str(_SOURCE.with_suffix(".so")))
            build_data["pure_python"] = False
            build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"

    def _compile(self, source: Path, library: Path, digest: str) -> None:
        compiler = shutil.which(os.environ.get("CC", "gcc"))
        if compiler is None:
            self.app.display_warning("no C compiler: latencies will be timed in Python (apt install gcc libc6-dev)")
            return
        flags = ["-O2", "-shared", "-fPIC", f'-DKVDIAG_SOURCE="{digest}"']
        made = library.with_suffix(".so.new")
        done = subprocess.run(
            [compiler, *flags, "-o", str(made), str(source)], check=False, capture_output=True, text=True
        )
        if done.returncode:
            why = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip())
            self.app.display_warning(
                f"{_SOURCE} does not compile ({why}): latencies will be timed in Python (apt install libibverbs-dev)"
            )
            return
        made.rename(library)

"""Lets a vLLM pair share a small machine without a GPU; on PYTHONPATH of the engines of benchmarks/vllm_pair.py only.

NIXL's Python API has its progress thread poll without a pause, one core per engine; here it rests for 1 ms. On a CPU,
vLLM binds the KV transfers of every engine of the host to the same core; here that is left to the kernel.
"""

import importlib.abc
import importlib.machinery
import os
import sys
from typing import Any

PROGRESS_EVERY_US = 1000


class _Rested(importlib.abc.MetaPathFinder):
    """Patches the bindings when they are first imported, which most processes never do."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:  # noqa: ARG002  (the import system's)
        if not name.endswith("._api") or not name.startswith("nixl"):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                run(module)
                if hasattr(module, "nixlBind"):
                    module.nixlBind.nixlAgentConfig = _rested(module.nixlBind.nixlAgentConfig)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _rested(config: Any) -> Any:
    class Rested(config):  # type: ignore[misc]
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, PROGRESS_EVERY_US if name == "pthrDelay" else value)

    return Rested


sys.meta_path.insert(0, _Rested())
os.sched_setaffinity = lambda _pid, _cores: None

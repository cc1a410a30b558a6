"""NVIDIA GPUs: through NVML, else as `nvidia-smi -q` lists them."""

import re
import sys

import msgspec

from kvdiag.model.gpu import NvidiaGpus
from kvdiag.model.missing import Missing
from kvdiag.sources._command import output
from kvdiag.sources._nvidia_smi import parse
from kvdiag.sources.base import Context
from kvdiag.sources.tree import Tree

_SHOWN = re.compile(r"^Driver Version|^GPU [0-9A-Fa-f]{4,8}:", re.MULTILINE)


class NvidiaGpusSource:
    """A copied tree keeps `nvidia-smi -q` in `commands/nvidia-smi-q.txt`."""

    part = NvidiaGpus

    def read(self, context: Context) -> NvidiaGpus | Missing:
        if context.live:
            if not Tree.of(context).exists("/proc/driver/nvidia/version"):
                return Missing("the NVIDIA driver is not loaded")
            told = output(context, "nvml", (sys.executable, "-m", "kvdiag.sources._nvml_query"))
            if not isinstance(told, Missing):
                try:
                    return msgspec.json.decode(told.text, type=NvidiaGpus)
                except msgspec.DecodeError as error:
                    return Missing(f"NVML: {error}")
        said = output(context, "nvidia-smi-q", ("nvidia-smi", "-q"), _SHOWN)
        if isinstance(said, Missing):
            return said
        return parse(said.text, "nvidia-smi -q" if context.live else said.origin)


SOURCE = NvidiaGpusSource()

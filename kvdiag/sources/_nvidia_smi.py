"""The text of `nvidia-smi -q`: sections by indentation, one block per GPU."""

import re
from collections.abc import Iterator

from kvdiag.model.gpu import Gpu, NvidiaGpus
from kvdiag.model.missing import Missing
from kvdiag.sources._nvml_query import address

_GPU = re.compile(r"^GPU ([0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*$")
_SIZE = re.compile(r"(\d{1,12}) (KiB|MiB|GiB)$")
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
_ABSENT = ("N/A", "Requested functionality has been deprecated", "")

Values = dict[tuple[str, ...], str]


def parse(text: str, origin: str) -> NvidiaGpus:
    """Return the GPUs in the text, sorted by address; a value that a GPU does not have ("N/A") is Missing."""
    driver = re.search(r"^Driver Version\s*: (\S+)", text, re.MULTILINE)
    return NvidiaGpus(
        gpus=tuple(sorted((_gpu(where, values) for where, values in _blocks(text)), key=lambda gpu: gpu.address)),
        driver=driver[1] if driver else Missing(f"{origin} has no line 'Driver Version'"),
        origin=origin,
    )


def _gpu(where: str, values: Values) -> Gpu:
    return Gpu(
        address=address(where),
        name=_value(values, "Product Name"),
        memory_bytes=_bytes(values, "FB Memory Usage", "Total"),
        window_bytes=_bytes(values, "BAR1 Memory Usage", "Total"),
        window_used_bytes=_bytes(values, "BAR1 Memory Usage", "Used"),
        links=Missing("nvidia-smi -q does not list NVLinks"),
        fabric_state=_value(values, "Fabric", "State"),
        cluster_uuid=_value(values, "Fabric", "ClusterUUID"),
    )


def _blocks(text: str) -> Iterator[tuple[str, Values]]:
    where, values = "", Values()
    stack: list[tuple[int, str]] = []
    for line in text.splitlines():
        match = _GPU.match(line)
        if match:
            if where:
                yield where, values
            where, values, stack = match[1], {}, []
        elif where and line.strip():
            indent = len(line) - len(line.lstrip())
            while stack and stack[-1][0] >= indent:
                stack.pop()
            name, colon, value = line.partition(" : ")
            stack.append((indent, name.strip()))
            if colon:
                values.setdefault(tuple(part for _, part in stack), value.strip())
    if where:
        yield where, values


def _value(values: Values, *path: str) -> str | Missing:
    value = values.get(path, "")
    return value if value not in _ABSENT else Missing(f"nvidia-smi -q shows no {' / '.join(path)}")


def _bytes(values: Values, *path: str) -> int | Missing:
    value = _value(values, *path)
    if isinstance(value, Missing):
        return value
    match = _SIZE.match(value)
    return int(match[1]) * _UNITS[match[2]] if match else Missing(f"nvidia-smi -q shows {value[:40]!r} as a size")

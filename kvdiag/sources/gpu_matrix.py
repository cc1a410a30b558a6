"""The matrix of `nvidia-smi topo -m`."""

import re

from kvdiag.model.gpu_matrix import GpuLink, GpuMatrix
from kvdiag.model.missing import Missing
from kvdiag.sources._command import output
from kvdiag.sources.base import Context

# Headings are underlined on some releases, whether or not they go to a terminal.
_ESCAPE = re.compile(r"\x1b\[[0-9;]*m")
_NAME = re.compile(r"(GPU|NIC)\d+|[a-z]\w*\d\w*")
_KIND = re.compile(r"NV\d+|PIX|PXB|PHB|NODE|SYS")
_LEGEND = re.compile(r"^\s*(NIC\d+): (\S+)", re.MULTILINE)


class GpuMatrixSource:
    """A copied tree keeps the matrix in `commands/nvidia-smi-topo-m.txt`."""

    part = GpuMatrix

    def read(self, context: Context) -> GpuMatrix | Missing:
        said = output(context, "nvidia-smi-topo-m", ("nvidia-smi", "topo", "-m"))
        if isinstance(said, Missing):
            return said
        links = parse(said.text)
        if links is None:
            return Missing(f"{said.origin} holds no matrix")
        return GpuMatrix(links=links, origin=said.origin)


def parse(text: str) -> tuple[GpuLink, ...] | None:
    """Return each pair once (seen with drivers 470 to 575; older ones head columns by device name), None for no matrix.

    Columns are separated by tabs; the head has none above the rows' names. NICn is replaced by its device's name where
    the legend has it.
    """
    plain = _ESCAPE.sub("", text)
    names = dict(_LEGEND.findall(plain))
    head: list[str] | None = None
    found: dict[frozenset[str], GpuLink] = {}
    for line in plain.splitlines():
        cells = [cell.strip() for cell in line.split("\t")]
        if head is None:
            columns = [cell for cell in cells if cell]
            if columns and all(_NAME.fullmatch(cell) for cell in columns[:2]) and not _is_row(columns):
                head = columns
            continue
        if not _NAME.fullmatch(cells[0]):
            continue
        for column, kind in zip(head, cells[1:], strict=False):
            if _KIND.fullmatch(kind) and _NAME.fullmatch(column):
                one, other = names.get(cells[0], cells[0]), names.get(column, column)
                found.setdefault(frozenset((one, other)), GpuLink(one=one, other=other, kind=kind))
    return None if head is None else tuple(found.values())


def _is_row(columns: list[str]) -> bool:
    return any(cell == "X" or _KIND.fullmatch(cell) for cell in columns)


SOURCE = GpuMatrixSource()

"""Bytes of a terminal as names of keys."""

_SEQUENCES = {
    b"\x1b[A": "up", b"\x1b[B": "down", b"\x1b[C": "right", b"\x1b[D": "left",
    b"\x1bOA": "up", b"\x1bOB": "down", b"\x1bOC": "right", b"\x1bOD": "left",
    b"\x1b[5~": "page-up", b"\x1b[6~": "page-down", b"\x1b[H": "home", b"\x1b[F": "end",
    b"\x1b[1~": "home", b"\x1b[4~": "end", b"\x1bOH": "home", b"\x1bOF": "end", b"\x1b[Z": "back-tab",
}  # fmt: skip
_SINGLE = {"\t": "tab", "\r": "enter", "\n": "enter", "\x7f": "backspace", "\x08": "backspace", "\x1b": "escape"}


def decode(data: bytes) -> list[str]:
    """Return the keys in what was read at once; sequences that are not known are passed over."""
    found: list[str] = []
    while data:
        sequence = next((one for one in _SEQUENCES if data.startswith(one)), None)
        if sequence is not None:
            found.append(_SEQUENCES[sequence])
            data = data[len(sequence) :]
        elif data[:2] in (b"\x1b[", b"\x1bO"):
            end = next((at for at in range(2, len(data)) if 0x40 <= data[at] <= 0x7E), len(data) - 1)
            data = data[end + 1 :]
        else:
            length = next((n for n in (1, 2, 3, 4) if _whole(data[:n])), 1)
            text = data[:length].decode(errors="replace")
            found.append(_SINGLE.get(text, text))
            data = data[length:]
    return found


def _whole(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False

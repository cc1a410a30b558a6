"""Writes initramfs archives (cpio "newc") without the cpio program."""

import stat

__all__ = ["Archive"]


class Archive:
    """An initramfs in the making: add entries, then take the bytes."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._count = 0
        self._folders: set[str] = set()

    def folder(self, path: str) -> None:
        """Add a folder and the folders above it, each once."""
        above, _, _ = path.rpartition("/")
        if above:
            self.folder(above)
        if path not in self._folders:
            self._folders.add(path)
            self._entry(path, stat.S_IFDIR | 0o755, b"")

    def file(self, path: str, content: bytes, *, executable: bool = False) -> None:
        """Add a regular file, and its folders."""
        self._above(path)
        self._entry(path, stat.S_IFREG | (0o755 if executable else 0o644), content)

    def link(self, path: str, target: str) -> None:
        """Add a symbolic link, and its folders."""
        self._above(path)
        self._entry(path, stat.S_IFLNK | 0o777, target.encode())

    def device(self, path: str, major: int, minor: int) -> None:
        """Add a character device, and its folders."""
        self._above(path)
        self._entry(path, stat.S_IFCHR | 0o600, b"", device=(major, minor))

    def finish(self) -> bytes:
        """Return the whole archive."""
        self._entry("TRAILER!!!", 0, b"")
        return bytes(self._data)

    def _above(self, path: str) -> None:
        above, _, _ = path.rpartition("/")
        if above:
            self.folder(above)

    def _entry(self, path: str, mode: int, content: bytes, device: tuple[int, int] = (0, 0)) -> None:
        self._count += 1
        name = path.encode() + b"\0"
        # inode, mode, uid, gid, links, mtime, size, device of the file (2), device it is (2), name, check
        fields = (self._count, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(name), 0)
        self._data += b"070701" + b"".join(b"%08x" % field for field in fields) + name
        self._pad()
        self._data += content
        self._pad()

    def _pad(self) -> None:
        self._data += b"\0" * (-len(self._data) % 4)

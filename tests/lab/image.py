"""Prepares what the lab's machines boot: Debian's kernel, uncompressed, and a small initramfs."""

import fcntl
import hashlib
import lzma
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.lab.cpio import Archive

__all__ = ["REPOSITORY", "Image", "LabError", "cache_folder", "logs_folder", "missing_prerequisite", "prepare"]

REPOSITORY = Path(__file__).resolve().parents[2]
_HERE = Path(__file__).resolve().parent
_GUEST = _HERE / "guest"
_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/bin", "/sbin", "/bin"))
_OLD_LOGS = 9
_KERNEL_METAPACKAGE = "linux-image-amd64"

# Loaded by /init, in this order. rdma_rxe fails to load without a crc32 driver.
_BOOT_MODULES = [
    "virtio_pci",
    "virtio_console",
    "9pnet_virtio",
    "9p",
    "overlay",
    "virtio_net",
    "veth",
    "sch_netem",
    "crc32_generic",
    "ib_uverbs",
    "rdma_ucm",
    "ib_umad",
    "rdma_rxe",
]
# In the machine's /lib/modules for tests that modprobe them.
_EXTRA_MODULES = [
    "dummy",
    "bridge",
    "macvlan",
    "ifb",
    "act_mirred",
    "cls_u32",
    "sch_ingress",
    "sch_tbf",
    "sch_htb",
    "brd",
    "loop",
    "null_blk",
    "nvmet_rdma",
    "nvme_rdma",
]

_PROGRAMS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "depmod": "kmod",
    "rdma": "iproute2",
    "ibv_devinfo": "ibverbs-utils",
    "ib_write_bw": "perftest",
    "dpkg-deb": "dpkg",
    "apt-get": "apt",
    "setpriv": "util-linux",
}
_FILES = {
    "/etc/libibverbs.d/rxe.driver": "ibverbs-providers",
    "/usr/lib/python3/dist-packages/pyverbs/__init__.py": "python3-pyverbs",
}


class LabError(Exception):
    """The lab cannot be prepared, or one of its machines is lost."""


@dataclass(frozen=True)
class Image:
    """Files that every machine boots from."""

    kernel: Path
    initramfs: Path


def cache_folder() -> Path:
    """Return the folder of everything the lab makes: KVDIAG_LAB_CACHE, or .lab beside pyproject.toml."""
    return Path(os.environ.get("KVDIAG_LAB_CACHE") or REPOSITORY / ".lab").resolve()


def logs_folder() -> Path:
    """Return a new folder for one run's logs; the nine runs before it keep theirs."""
    above = cache_folder() / "logs"
    above.mkdir(parents=True, exist_ok=True)
    for old in sorted(above.iterdir())[:-_OLD_LOGS]:
        shutil.rmtree(old, ignore_errors=True)
    return above / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"


def missing_prerequisite() -> str | None:
    """Return one line naming what this host lacks for the lab, or None."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return f"the lab needs Linux on x86_64, this is {platform.system()} on {platform.machine()}"
    if os.geteuid() != 0:
        return "the lab needs root: its machines share the host's root file system"
    lacking = {p for name, p in _PROGRAMS.items() if shutil.which(name, path=_PATH) is None}
    lacking |= {package for path, package in _FILES.items() if not Path(path).exists()}
    if lacking:
        names = " ".join(sorted(lacking))
        return f"the lab lacks packages: apt-get install --no-install-recommends {names}"
    return None


def prepare() -> Image:
    """Return the image for Debian's current kernel, building it (about 15 s) when it is not in the cache.

    Raises LabError with one line when a package or the network is missing.
    """
    reason = missing_prerequisite()
    if reason:
        raise LabError(reason)
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    with _lock(cache / "lock"):
        package = _kernel_package()
        folder = cache / f"image-{package}-{_recipe_digest()}"
        if not folder.exists():
            _build(_kernel_deb(package, cache), folder)
    return Image(folder / "vmlinux", folder / "initramfs")


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _output(command: Sequence[str], hint: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env={**os.environ, "PATH": _PATH})
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise LabError(f"{' '.join(command[:2])} failed ({said}); {hint}")
    return done.stdout


def _kernel_package() -> str:
    hint = "run apt-get update"
    listing = _output(["apt-cache", "depends", _KERNEL_METAPACKAGE], hint)
    names = [line.split()[-1] for line in listing.splitlines() if "Depends: linux-image-" in line]
    if not names:
        raise LabError(f"{_KERNEL_METAPACKAGE} names no kernel; {hint}")
    return names[0]


def _kernel_deb(package: str, cache: Path) -> Path:
    """Return the kernel's package file, downloaded once (about 70 MB)."""
    folder = cache / "kernel"
    folder.mkdir(exist_ok=True)
    found = sorted(folder.glob(f"{package}_*.deb"))
    if not found:
        for old in folder.glob("*.deb"):
            old.unlink()
        hint = f"run apt-get update, or check that {package} can be downloaded"
        _output(["apt-get", "-qq", "download", package], hint, cwd=folder)
        found = sorted(folder.glob(f"{package}_*.deb"))
    return found[-1]


def _recipe_digest() -> str:
    busybox = shutil.which("busybox", path=_PATH) or ""
    digest = hashlib.sha256()
    for path in (Path(__file__), _HERE / "cpio.py", *sorted(_GUEST.iterdir()), Path(busybox)):
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _build(deb: Path, target: Path) -> None:
    for old in target.parent.glob("image-*"):
        shutil.rmtree(old)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        root = Path(scratch, "root")
        made = Path(scratch, "made")
        made.mkdir()
        _output(["dpkg-deb", "-x", str(deb), str(root)], f"delete {deb} and try again")
        (bzimage,) = root.glob("boot/vmlinuz-*")
        (modules,) = root.glob("lib/modules/*")
        (made / "vmlinux").write_bytes(_vmlinux(bzimage))
        (made / "initramfs").write_bytes(_initramfs(modules))
        made.rename(target)


def _vmlinux(bzimage: Path) -> bytes:
    """Return the ELF kernel inside a bzImage: emulated, its own decompressor takes seconds."""
    data = bzimage.read_bytes()
    start = data.find(b"\xfd7zXZ\0")
    if start < 0:
        raise LabError(f"{bzimage.name} is not compressed with xz, which the lab expects")
    return lzma.LZMADecompressor().decompress(data[start:])


def _initramfs(modules: Path) -> bytes:
    release = modules.name
    root = modules.parents[2]
    kept = _with_dependencies(modules, [*_BOOT_MODULES, *_EXTRA_MODULES])
    with tempfile.TemporaryDirectory(dir=root) as scratch:
        small = Path(scratch, "lib/modules", release)
        for path in kept:
            (small / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(modules / path, small / path)
        for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
            if (modules / name).exists():
                shutil.copy(modules / name, small / name)
        _output(["depmod", "-b", scratch, release], "install kmod")
        archive = Archive()
        for file in sorted(small.rglob("*")):
            if file.is_file():
                archive.file(str(file.relative_to(scratch)), file.read_bytes())
    archive.folder("dev")
    archive.device("dev/console", 5, 1)
    busybox = Path(shutil.which("busybox", path=_PATH) or "").read_bytes()
    archive.file("bin/busybox", busybox, executable=True)
    archive.link("bin/sh", "busybox")
    archive.file("init", (_GUEST / "init").read_bytes(), executable=True)
    archive.file("lab/modules", " ".join(_BOOT_MODULES).encode())
    for name in ("setup", "agent.py"):
        archive.file(f"lab/{name}", (_GUEST / name).read_bytes(), executable=True)
    return archive.finish()


def _with_dependencies(modules: Path, names: Sequence[str]) -> set[str]:
    """Return the paths, below the kernel's module folder, of the modules and all they depend on."""
    _output(["depmod", "-b", str(modules.parents[2]), modules.name], "install kmod")
    needs: dict[str, list[str]] = {}
    path_of: dict[str, str] = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        path, _, rest = line.partition(":")
        needs[path] = rest.split()
        path_of[Path(path).name.split(".")[0].replace("-", "_")] = path
    kept: set[str] = set()
    for name in names:
        if name not in path_of:
            continue  # built into this kernel
        path = path_of[name]
        kept.update((path, *needs[path]))
    return kept

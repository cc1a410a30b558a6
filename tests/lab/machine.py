"""One virtual machine that shares the host's root file system, read only."""

import shlex
import shutil
import socket
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal

from tests.lab.image import REPOSITORY, Image, LabError
from tests.lab.process import Channel, CommandFailedError, MachineLostError, Process, Result
from tests.lab.qmp import Monitor

__all__ = ["BOOT_LIMIT_S", "Cable", "Machine"]

BOOT_LIMIT_S = 120.0
_CONSOLE_LINES = 15
_NETDEV = "wire"
# No AVX: TCG emulates it slowly. x86-64-v2, which numpy's wheels need, is Nehalem.
_CPU = "Nehalem,+rdrand"
_KERNEL_LINE = (
    "console=ttyS0 loglevel=5 panic=-1 oops=panic reboot=t tsc=reliable no_timer_check mitigations=off nokaslr "
    "audit=0 cryptomgr.notests lsm= random.trust_cpu=on net.ifnames=0"
)


@dataclass(frozen=True)
class Cable:
    """One end of a cable between two machines: its two unix datagram sockets, and this end's addresses.

    A machine has one network device for each of its cables (eth0, eth1, …); only the first comes up when it boots.
    """

    here: Path
    there: Path
    mac: str
    address: str


class Machine:
    """A virtual machine; its processes see the host's files (not later changes to them) and write to memory only.

    `wire` is what joins it to another machine, cable by cable, "veth" for two rxe devices joined inside this one, or
    "none". The clock of a
    `counted` machine counts executed instructions, a nanosecond each, and leaps where all wait: whatever else the host
    does, the same work takes the same time.
    """

    def __init__(
        self,
        name: str,
        image: Image,
        logs: Path,
        wire: Sequence[Cable] | Literal["veth", "none"] = "none",
        memory_mib: int = 1536,
        *,
        counted: bool = False,
    ) -> None:
        self.name = name
        self.console = logs / f"{name}.console.log"
        self._image = image
        self._logs = logs
        self._wire = wire
        self._memory_mib = memory_mib
        self._counted = counted
        self._console_start = 0
        self._qemu: subprocess.Popen[bytes] | None = None
        self._channel: Channel | None = None
        self._monitor: Monitor | None = None

    def start(self) -> None:
        """Start booting, and return at once; call it from a thread that outlives the machine (usually the main one)."""
        if self._qemu:
            raise LabError(f"machine {self.name} was started before")
        self._logs.mkdir(parents=True, exist_ok=True)
        agent, agent_end = socket.socketpair()
        monitor, monitor_end = socket.socketpair()
        with agent_end, monitor_end, self.console.open("ab") as console:
            self._console_start = console.tell()
            # The kernel kills QEMU when the thread that started it dies, however that comes.
            self._qemu = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *self._command(agent_end.fileno(), monitor_end.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                pass_fds=(agent_end.fileno(), monitor_end.fileno()),
                start_new_session=True,
            )
        self._channel = Channel(agent, self._lost)
        self._monitor = Monitor(monitor)

    def wait_ready(self, timeout_s: float = BOOT_LIMIT_S) -> None:
        """Wait until the machine takes commands; raises MachineLostError past the limit."""
        self._open_channel().await_ready(timeout_s)

    def restart(self) -> None:
        """Boot again, after kill() or not; what was written in the machine is gone."""
        self.kill()
        self.start()
        self.wait_ready()

    def run(
        self,
        command: str | Sequence[str],
        timeout_s: float = 60.0,
        *,
        check: bool = False,
        folder: str | Path = REPOSITORY,
        environment: Mapping[str, str] | None = None,
    ) -> Result:
        """Run a command (a string goes to bash) to its end; what it leaves running is killed.

        Raises CommandTimeoutError past the limit, CommandFailedError if `check` and the status is not 0, and
        MachineLostError.
        """
        process = self.spawn(command, folder=folder, environment=environment)
        result = process.wait(timeout_s)
        if check:
            _check(process, result)
        return result

    def spawn(
        self,
        command: str | Sequence[str],
        *,
        folder: str | Path = REPOSITORY,
        environment: Mapping[str, str] | None = None,
        stdin: bool = False,
        terminal: tuple[int, int] | None = None,
        on_output: Callable[[bytes], None] | None = None,
    ) -> Process:
        """Start a command in the background; `stdin` leaves its input open, `terminal` (rows, columns) gives it one.

        Raises MachineLostError.
        """
        process = self._open_channel().start(command, str(folder), environment or {}, terminal, on_output)
        if not stdin and not terminal:
            process.close_input()
        return process

    def put(self, content: bytes | Path, path: str) -> None:
        """Write bytes, or a host's file, to a file in the machine; raises CommandFailedError or MachineLostError."""
        data = content.read_bytes() if isinstance(content, Path) else content
        process = self.spawn(f"cat > {shlex.quote(path)}", stdin=True)
        process.write(data)
        process.close_input()
        _check(process, process.wait(120))

    def get(self, path: str) -> bytes:
        """Return the bytes of a file in the machine; raises CommandFailedError or MachineLostError."""
        process = self.spawn(["cat", path])
        _check(process, process.wait(120))
        return process.stdout

    def set_link(self, up: bool) -> None:
        """Plug or pull this machine's end of the first cable: its own port sees it at once; raises LabError."""
        if self._monitor is None or isinstance(self._wire, str):
            raise LabError(f"machine {self.name} has no cable")
        self._monitor.execute("set_link", name=f"{_NETDEV}0", up=up)

    def kill(self) -> None:
        """Stop the machine without warning, as a power failure does."""
        if self._qemu:
            self._qemu.kill()
            self._qemu.wait()
            self._qemu = None
        if self._channel:
            self._channel.close()
            self._channel = None
        if self._monitor:
            self._monitor.close()
            self._monitor = None

    def close(self) -> None:
        """Save the kernel's log beside the console's, then stop the machine."""
        try:
            if self._qemu and self._qemu.poll() is None and self._open_channel().ready:
                log = self.run(["dmesg"], timeout_s=10).stdout
                (self._logs / f"{self.name}.dmesg.log").write_text(log)
        except LabError:
            pass  # a machine that hangs has its console's log
        finally:
            self.kill()

    def __enter__(self) -> "Machine":
        """Boot."""
        self.start()
        try:
            self.wait_ready()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop."""
        self.close()

    def _command(self, agent: int, monitor: int) -> list[str]:
        qemu = shutil.which("qemu-system-x86_64") or "qemu-system-x86_64"
        cables = () if isinstance(self._wire, str) else self._wire
        wire = cables[0].address if cables else self._wire
        line = f"{_KERNEL_LINE} lab_host={self.name} lab_wire={wire}"
        command = [qemu, "-name", f"kvdiag-lab-{self.name}", "-nodefaults", "-no-user-config", "-no-reboot"]
        command += ["-display", "none", "-machine", "q35", "-accel", "tcg,thread=single", "-cpu", _CPU, "-smp", "1"]
        command += ["-icount", "shift=0"] if self._counted else []
        command += ["-m", str(self._memory_mib), "-kernel", str(self._image.kernel)]
        command += ["-initrd", str(self._image.initramfs), "-append", line, "-serial", "stdio"]
        command += ["-device", "virtio-serial-pci", "-chardev", f"socket,id=agent,fd={agent}"]
        command += ["-device", "virtserialport,chardev=agent,name=lab.agent"]
        command += ["-chardev", f"socket,id=monitor,fd={monitor}", "-mon", "chardev=monitor,mode=control"]
        command += ["-fsdev", "local,id=host,path=/,security_model=none,readonly=on,multidevs=remap"]
        command += ["-device", "virtio-9p-pci,fsdev=host,mount_tag=host"]
        for number, cable in enumerate(cables):
            sockets = f"local.type=unix,local.path={cable.here},remote.type=unix,remote.path={cable.there}"
            command += ["-netdev", f"dgram,id={_NETDEV}{number},{sockets}"]
            # An rxe port takes the largest RDMA MTU, 4096, that fits the network device's.
            device = f"virtio-net-pci,netdev={_NETDEV}{number},mac={cable.mac},host_mtu=4200,romfile="
            command += ["-device", device]
        return command

    def _open_channel(self) -> Channel:
        if self._channel is None:
            raise MachineLostError(f"machine {self.name} is not running")
        return self._channel

    def _lost(self, what: str) -> MachineLostError:
        lines = self.console.read_bytes()[self._console_start :].decode(errors="replace").splitlines()
        panic = next((i for i, line in enumerate(lines) if "Kernel panic" in line), len(lines))
        text = "\n  ".join(lines[max(0, panic - _CONSOLE_LINES) : panic + _CONSOLE_LINES]) or "(nothing)"
        return MachineLostError(f"machine {self.name}: {what}; from {self.console}:\n  {text}")


def _check(process: Process, result: Result) -> None:
    if result.rc:
        log = process.log()
        raise CommandFailedError(f"{process.title!r} ended with {result.rc}: {log}", log, result.rc)

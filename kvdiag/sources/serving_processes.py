"""The processes that serve the model: found by their command lines in /proc, or named by pid."""

import os
import re
from typing import Literal

from kvdiag.model.missing import Missing, present
from kvdiag.model.serving import ServingProcess, ServingProcesses, Variable
from kvdiag.sources.base import Context
from kvdiag.sources.environment import chosen
from kvdiag.sources.tree import Tree

_PROGRAMS = {
    "lmcache_server": "lmcache",
    "mooncake_client": "mooncake",
    "mooncake_store_service": "mooncake",
    "sglang": "sglang",
    "trtllm-serve": "tensorrt_llm",
    "vllm": "vllm",
}
_MODULES = (
    (re.compile(r"vllm\.entrypoints\."), "vllm"),
    (re.compile(r"sglang\.launch_server$"), "sglang"),
    (re.compile(r"dynamo\.(vllm|sglang|trtllm)\b"), "dynamo"),
    (re.compile(r"tensorrt_llm\.commands\.serve$"), "tensorrt_llm"),
    (re.compile(r"lmcache\.(server|v1\.server)\b"), "lmcache"),
    (re.compile(r"mooncake\.mooncake_store_service$"), "mooncake"),
)
# Workers rename themselves (setproctitle), which replaces their command line.
_TITLES = (("VLLM::", "vllm"), ("sglang::", "sglang"))
_SECRET_FLAG = re.compile(r"(?i)(api[-_]?key|(^|[-_])token$|secret|passw|credential|(^|[-_])auth$)")
_URL_LOGIN = re.compile(r"://[^/@\s]+@")


class ServingProcessesSource:
    """Environments are read by whitelisted name only, and command lines lose the values of secret flags."""

    part = ServingProcesses

    def read(self, context: Context) -> ServingProcesses | Missing:
        tree = Tree.of(context)
        if context.pid is not None:
            if not tree.exists(f"/proc/{context.pid}"):
                return Missing(f"there is no process {context.pid}")
            command = _command(tree, context.pid)
            return ServingProcesses(processes=(_process(tree, context.pid, engine_of(command) or "unknown", command),))
        names = tree.names("/proc")
        if isinstance(names, Missing):
            return names
        found = []
        hidden: list[str] = []
        for pid in sorted(int(name) for name in names if name.isdecimal() and int(name) != os.getpid()):
            command = _command(tree, pid, hidden)
            engine = engine_of(command)
            if engine:
                found.append(_process(tree, pid, engine, command))
        if hidden and not found:
            return Missing(f"whether a process serves is hidden: {hidden[0]}")
        return ServingProcesses(processes=tuple(found))


def engine_of(command: tuple[str, ...]) -> str | None:
    """Return the engine that a command line starts, or None: benchmarks, routers and editors move no KV blocks."""
    if not command:
        return None
    for title, engine in _TITLES:
        if command[0].startswith(title):
            return engine
    words = command
    if re.match(r"python[\d.]*$", words[0].rpartition("/")[2]):
        if "-m" in words[1:-1]:
            module = words[words.index("-m") + 1]
            return next((engine for pattern, engine in _MODULES if pattern.match(module)), None)
        words = tuple(word for word in words[1:] if not word.startswith("-"))
    program = words[0].rpartition("/")[2] if words else ""
    if program in ("vllm", "sglang") and words[1:2] != ("serve",):
        return None
    return _PROGRAMS.get(program)


def redacted(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command line without the values of flags that name a secret and without logins in URLs."""
    found: list[str] = []
    hide_next = False
    for word in command:
        name, equals, _ = word.partition("=")
        secret = word.startswith("-") and _SECRET_FLAG.search(name) is not None
        if hide_next and not word.startswith("-"):
            found.append("***")
        elif secret and equals:
            found.append(f"{name}=***")
        else:
            found.append(_URL_LOGIN.sub("://***@", word))
        hide_next = secret and not equals
    return tuple(found)


def _command(tree: Tree, pid: int, hidden: list[str] | None = None) -> tuple[str, ...]:
    """Return the command line; why it cannot be read goes into `hidden`, unless the process has ended meanwhile."""
    path = f"/proc/{pid}/cmdline"
    text = tree.read(path)
    if isinstance(text, str) and "\ufffd" in text:
        text = Missing(f"{path} is binary, not words")
    if isinstance(text, Missing):
        if hidden is not None and tree.exists(path):
            hidden.append(text.missing)
        return ()
    return tuple(word.strip() for word in text.split("\0") if word.strip())


def _process(tree: Tree, pid: int, engine: str, command: tuple[str, ...]) -> ServingProcess:
    base = f"/proc/{pid}"
    status = tree.read(f"{base}/status")
    uids = _status(status, base, "Uid")
    groups = _status(status, base, "Groups")
    gids = _status(status, base, "Gid")
    capabilities = _status(status, base, "CapEff")
    uid_map = tree.read(f"{base}/uid_map") or Missing(f"{base}/uid_map is empty")
    return ServingProcess(
        pid=pid,
        engine=engine,
        command=redacted(command),
        uid=uids if isinstance(uids, Missing) else int(uids.split()[1]),
        groups=_ids(gids, groups),
        memlock=_memlock(tree, base),
        cap_eff=capabilities if isinstance(capabilities, Missing) else int(capabilities, 16),
        # The initial user namespace maps every id onto itself (user_namespaces(7)).
        initial_user_namespace=(
            uid_map if isinstance(uid_map, Missing) else uid_map.split()[:3] == ["0", "0", "4294967295"]
        ),
        cgroup=_cgroup(tree, base),
        network=tree.link(f"{base}/ns/net"),
        variables=_variables(tree, base),
    )


def _status(text: str | Missing, base: str, name: str) -> str | Missing:
    if isinstance(text, Missing):
        return text
    match = re.search(rf"^{name}:[ \t]*([0-9a-f][0-9a-f \t]*)$", text, re.MULTILINE)
    if match is None or (name == "Uid" and len(match[1].split()) < 2):
        return Missing(f"{base}/status has no line {name}")
    return match[1].strip()


def _ids(gids: str | Missing, groups: str | Missing) -> tuple[int, ...] | Missing:
    if isinstance(gids, Missing):
        return gids
    words = gids.split()[1:2] + (present(groups) or "").split()
    return tuple(sorted({int(word) for word in words if word.isdecimal()}))


def _memlock(tree: Tree, base: str) -> int | Literal["unlimited"] | Missing:
    text = tree.read(f"{base}/limits")
    if isinstance(text, Missing):
        return text
    match = re.search(r"^Max locked memory\s+(\d+|unlimited)", text, re.MULTILINE)
    if match is None:
        return Missing(f"{base}/limits has no line 'Max locked memory'")
    return "unlimited" if match[1] == "unlimited" else int(match[1])


def _cgroup(tree: Tree, base: str) -> str | Missing:
    text = tree.read(f"{base}/cgroup")
    if isinstance(text, Missing):
        return text
    paths = {line.split(":", 2)[1]: line.split(":", 2)[2] for line in text.splitlines() if line.count(":") >= 2}
    return paths.get("") or paths.get("name=systemd") or Missing(f"{base}/cgroup names no group")


def _variables(tree: Tree, base: str) -> tuple[Variable, ...] | Missing:
    text = tree.read(f"{base}/environ")
    if isinstance(text, Missing):
        return text
    if text.strip("\0") and "=" not in text:
        return Missing(f"{base}/environ holds {text[:20]!r}, not variables")
    pairs = (word.strip().split("=", 1) for word in text.split("\0") if "=" in word)
    return chosen((name, value) for name, value in pairs)


SOURCE = ServingProcessesSource()

"""Engine set-ups out of command lines and environments. What an unknown engine's words mean is never guessed.

Flags and defaults are those of vLLM 0.11 to 0.33 (config/kv_transfer.py), SGLang 0.4.9 to 0.5.23 (server_args.py),
Dynamo 0.7 to 1.6, TensorRT-LLM 1.2 and Mooncake 0.3.
"""

import json
import re
from collections.abc import Mapping

from kvdiag.derive.device_lists import device_list
from kvdiag.model.engine import Connector, Direction, EngineSetup, Role
from kvdiag.model.missing import Missing
from kvdiag.model.serving import ServingProcess, ServingProcesses
from kvdiag.model.snapshot import Snapshot

_LIBRARIES: dict[str, tuple[str, Direction | None]] = {
    "NixlConnector": ("nixl", "pull"),
    "NixlPullConnector": ("nixl", "pull"),
    "NixlPushConnector": ("nixl", "push"),
    "MooncakeConnector": ("mooncake", "push"),
    "MooncakeStoreConnector": ("mooncake", None),
    "MoRIIOConnector": ("mori", None),
    "LMCacheConnectorV1": ("lmcache", None),
    "LMCacheMPConnector": ("lmcache", None),
    "P2pNcclConnector": ("nccl", None),
}
_ROLES: dict[str, Role] = {"kv_producer": "prefill", "kv_consumer": "decode", "kv_both": "both"}
_MODES: dict[str, Role] = {"prefill": "prefill", "decode": "decode", "prefill_and_decode": "both", "agg": "both"}
_DYNAMO_CONNECTORS = {"nixl": "NixlConnector", "lmcache": "LMCacheConnectorV1", "mooncake": "MooncakeConnector"}
_MOST_NESTED = 4
_OPTION = re.compile(r"--[A-Za-z]|-[a-z]{1,4}(=|$)")


def setups(snapshot: Snapshot) -> tuple[EngineSetup, ...] | Missing:
    """Return the set-up of every serving process, in order; workers whose title replaced their command line have no
    options, and so no connector.
    """
    serving = snapshot.part(ServingProcesses)
    if isinstance(serving, Missing):
        return serving
    return tuple(setup(process) for process in serving.processes)


def transferring(snapshot: Snapshot, *libraries: str) -> tuple[EngineSetup, ...] | Missing:
    """Return the set-ups that have a connector of one of these libraries (of any where none is named)."""
    found = setups(snapshot)
    if isinstance(found, Missing):
        return found
    return tuple(item for item in found if any(not libraries or c.library in libraries for c in item.connectors))


def described(snapshot: Snapshot) -> tuple[str, ...]:
    """Return a line for each serving process: what it is and how it moves KV blocks, as far as it can be told."""
    found = setups(snapshot)
    if isinstance(found, Missing):
        return (f"serving process: {found.missing}",)
    lines = []
    for item in found:
        how = [
            " ".join(filter(None, (c.name, f"({'/'.join(c.backends)})" if c.backends else c.protocol, c.direction)))
            for c in item.connectors
        ]
        if not how:
            unknown = item.process.engine == "unknown"
            how = ["no known engine: generic checks only" if unknown else "no KV transfer on its command line"]
        lines.append(f"{item.process.name}: {', '.join(filter(None, (item.role, *how, *item.problems)))}")
    return tuple(lines) or ("no serving process is seen: kvdiag's own environment is judged",)


def setup(process: ServingProcess) -> EngineSetup:
    """Return what a process's command line and environment say about its transfers."""
    options = _options(process.command)
    values = dict(options)
    variables: dict[str, str] | Missing = (
        process.variables
        if isinstance(process.variables, Missing)
        else {variable.name: variable.value for variable in process.variables}
    )
    role: Role | None = None
    connectors: tuple[Connector, ...] = ()
    problems: tuple[str, ...] = ()
    module = _module(process.command)
    if process.engine == "vllm" or module == "dynamo.vllm":
        role, connectors, problems = _vllm(values)
        if module == "dynamo.vllm":
            role, connectors = _dynamo_vllm(values, role, connectors)
    elif process.engine == "sglang" or module == "dynamo.sglang":
        role, connectors = _sglang(values, variables)
    elif process.engine == "tensorrt_llm" or module == "dynamo.trtllm":
        role, connectors = _MODES.get(values.get("--disaggregation-mode", "")), _tensorrt_llm(variables)
    elif process.engine == "mooncake":
        protocol = values.get("--protocol")
        devices = device_list(values.get("--device_name", values.get("--device-name", "")))
        connectors = (Connector(name="mooncake", library="mooncake", protocol=protocol, devices=devices),)
    elif process.engine == "lmcache":
        connectors = (Connector(name="lmcache", library="lmcache"),)
    return EngineSetup(
        process=process, role=role, connectors=connectors, options=options, variables=variables, problems=problems
    )


def _module(command: tuple[str, ...]) -> str:
    return command[command.index("-m") + 1] if "-m" in command[:-1] else ""


def _options(command: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the options with their values; vLLM and SGLang take `_` for `-`, so names are given with `-`."""
    found = []
    for index, word in enumerate(command):
        if not _OPTION.match(word):
            continue
        name, equals, value = word.partition("=")
        if not equals and index + 1 < len(command) and not _OPTION.match(command[index + 1]):
            value = command[index + 1]
        head, dot, tail = name.partition(".")
        found.append((head.replace("_", "-") + dot + tail, value))
    return tuple(found)


def _vllm(values: Mapping[str, str]) -> tuple[Role | None, tuple[Connector, ...], tuple[str, ...]]:
    text = values.get("--kv-transfer-config")
    dotted = {
        name.removeprefix("--kv-transfer-config."): value
        for name, value in values.items()
        if name.startswith("--kv-transfer-config.")
    }
    if text is None and not dotted:
        return None, (), ()
    try:
        config = json.loads(text) if text else {}
    except (ValueError, RecursionError) as error:
        return None, (), (f"--kv-transfer-config is not JSON: {str(error)[:120]}",)
    if not isinstance(config, dict):
        return None, (), (f"--kv-transfer-config holds {str(text)[:60]!r}, not a JSON object",)
    config = {**config, **dotted}
    role = _ROLES.get(str(config.get("kv_role")))
    return role, _connectors(config, _MOST_NESTED), ()


def _connectors(config: Mapping[str, object], depth: int) -> tuple[Connector, ...]:
    name = config.get("kv_connector")
    if not isinstance(name, str) or depth == 0:
        return ()
    extra = config.get("kv_connector_extra_config")
    extra = extra if isinstance(extra, dict) else {}
    if name == "MultiConnector":
        inner = extra.get("connectors")
        children = inner if isinstance(inner, list) else []
        return tuple(
            connector
            for child in children[:16]
            if isinstance(child, dict)
            for connector in _connectors({"kv_role": config.get("kv_role"), **child}, depth - 1)
        )
    library, direction = _LIBRARIES.get(name, ("unknown", None))
    protocol = None
    if library == "mori":
        # read_mode false is WRITE (mori_io_connector); the default backend is rdma.
        direction = "pull" if str(extra.get("read_mode", False)).lower() in ("true", "1") else "push"
        protocol = str(extra.get("backend", "rdma"))
    if name == "MooncakeConnector":
        protocol = str(extra.get("mooncake_protocol", "rdma"))
    backends = extra.get("backends", ["UCX"] if library == "nixl" else [])
    plain = {**{key: value for key, value in config.items() if key != "kv_connector_extra_config"}, **extra}
    return (
        Connector(
            name=name,
            library=library,
            direction=direction,
            backends=tuple(str(item) for item in backends) if isinstance(backends, list) else (str(backends),),
            protocol=protocol,
            settings=tuple(
                (str(key), value if isinstance(value, str) else json.dumps(value))
                for key, value in sorted(plain.items())
                if key not in ("kv_connector", "connectors")
            ),
        ),
    )


def _dynamo_vllm(
    values: Mapping[str, str], role: Role | None, connectors: tuple[Connector, ...]
) -> tuple[Role | None, tuple[Connector, ...]]:
    """Dynamo 0.x named roles by switches, 1.x by --disaggregation-mode; its --connector gave way to vLLM's own flag."""
    if "--is-prefill-worker" in values:
        role = "prefill"
    elif "--is-decode-worker" in values:
        role = "decode"
    role = _MODES.get(values.get("--disaggregation-mode", ""), role)
    named = _DYNAMO_CONNECTORS.get(values.get("--connector", ""))
    if not connectors and named:
        connectors = _connectors({"kv_connector": named}, 1)
    return role, connectors


def _sglang(
    values: Mapping[str, str], variables: Mapping[str, str] | Missing
) -> tuple[Role | None, tuple[Connector, ...]]:
    role = _MODES.get(values.get("--disaggregation-mode", ""))
    if role is None:
        return None, ()
    name = values.get("--disaggregation-transfer-backend", "mooncake")
    devices = device_list(values.get("--disaggregation-ib-device", ""))
    known = {} if isinstance(variables, Missing) else variables
    backends = (known.get("SGLANG_DISAGGREGATION_NIXL_BACKEND") or "UCX",) if name == "nixl" else ()
    protocol = {"mooncake": "tcp" if known.get("MC_FORCE_TCP") else "rdma", "mooncake_tcp": "tcp"}.get(name)
    library = "mooncake" if name == "mooncake_tcp" else name
    # The prefill side writes (sglang/srt/disaggregation/{mooncake,nixl}/conn.py).
    direction: Direction | None = "push" if library in ("mooncake", "nixl") else None
    return role, (
        Connector(
            name=name, library=library, direction=direction, backends=backends, protocol=protocol, devices=devices
        ),
    )


def _tensorrt_llm(variables: Mapping[str, str] | Missing) -> tuple[Connector, ...]:
    """Its transceiver's backend stands in a YAML file, which is not read; only the environment's switches are known."""
    known = {} if isinstance(variables, Missing) else variables
    backend = known.get("TRTLLM_NIXL_KVCACHE_BACKEND")
    for switch, library in (
        ("TRTLLM_USE_NIXL_KVCACHE", "nixl"),
        ("TRTLLM_USE_UCX_KVCACHE", "ucx"),
        ("TRTLLM_USE_MOONCAKE_KVCACHE", "mooncake"),
        ("TRTLLM_USE_MPI_KVCACHE", "mpi"),
    ):
        if known.get(switch) == "1":
            return (Connector(name=switch, library=library, backends=(backend,) if backend else ()),)
    return (Connector(name="TRTLLM_NIXL_KVCACHE_BACKEND", library="nixl", backends=(backend,)),) if backend else ()


def transfer_config(setup: EngineSetup, **extra: object) -> str:
    """Return vLLM's --kv-transfer-config as it is set with these keys of its extra configuration changed, to paste."""
    try:
        config = json.loads(setup.option("--kv-transfer-config") or "{}")
    except (ValueError, RecursionError):
        config = {}
    config = config if isinstance(config, dict) else {}
    inner = config.get("kv_connector_extra_config")
    merged = {**(inner if isinstance(inner, dict) else {}), **extra}
    text = json.dumps({**config, "kv_connector_extra_config": merged}, separators=(",", ":"))
    return f"--kv-transfer-config '{text}'"

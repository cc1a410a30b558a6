from pathlib import Path

import pytest

from kvdiag.model.missing import Missing
from kvdiag.model.serving import ServingProcesses, Variable
from kvdiag.sources.base import Context
from kvdiag.sources.serving_processes import SOURCE, engine_of, redacted
from tests.trees import write_tree


@pytest.mark.parametrize(
    ("command", "engine"),
    [
        ("/usr/bin/python3 /usr/local/bin/vllm serve example/model", "vllm"),
        ("vllm serve example/model", "vllm"),
        ("python3.12 -m vllm.entrypoints.openai.api_server --model m", "vllm"),
        ("VLLM::EngineCore", "vllm"),
        ("VLLM::Worker_TP0", "vllm"),
        ("python3 -u -m sglang.launch_server --model-path m", "sglang"),
        ("sglang::scheduler_TP0", "sglang"),
        ("python3 -m dynamo.vllm --model m", "dynamo"),
        ("/opt/venv/bin/python /opt/venv/bin/trtllm-serve serve m", "tensorrt_llm"),
        ("mooncake_client --port 1", "mooncake"),
        ("lmcache_server localhost 65432", "lmcache"),
        ("vim vllm serve.py", None),
        ("tail -f vllm.log", None),
        ("vllm bench serve --model m", None),
        ("python3 -m sglang.bench_serving", None),
        ("python3 -m sglang_router.launch_router", None),
        ("python3 -m dynamo.frontend", None),
        ("python3 -c import vllm", None),
        ("kvdiag preflight --pid 1", None),
        ("", None),
    ],
)
def test_engines_are_told_from_what_only_names_them(command: str, engine: str | None) -> None:
    assert engine_of(tuple(command.split())) == engine


def test_secrets_leave_neither_command_lines_nor_environments(tmp_path: Path) -> None:
    write_tree(
        """
        proc/42/cmdline = vllm\\0serve\\0m\\0--api-key\\0sk-secret\\0--hf-token=secret\\0--max-tokens\\07\\0--tokenizer\\0t\\0http://u:secret@h/
        proc/42/environ = HF_TOKEN=secret\\0UCX_TLS=rc,cuda\\0MC_HOST_store=https://u:secret@h\\0UCX_NET_DEVICES=mlx5_0:1
        """,
        tmp_path,
    )
    part = SOURCE.read(Context(root=tmp_path, live=False))
    assert "secret" not in repr(part)
    assert isinstance(part, ServingProcesses)
    (process,) = part.processes
    assert process.command == (
        *("vllm", "serve", "m", "--api-key", "***", "--hf-token=***", "--max-tokens", "7", "--tokenizer", "t"),
        "http://***@h/",
    )
    assert process.variables == (
        Variable(name="UCX_NET_DEVICES", value="mlx5_0:1"),
        Variable(name="UCX_TLS", value="rc,cuda"),
    )


def test_a_secret_flag_without_a_value_hides_no_flag() -> None:
    assert redacted(("--password", "--port", "1")) == ("--password", "--port", "1")


def test_limits_ids_and_groups_of_a_process(tmp_path: Path) -> None:
    write_tree(
        """
        proc/42/cmdline = VLLM::EngineCore
        proc/42/status = Name: x\\nUid: 1 1000 1 1\\nGid: 5 6 5 5\\nGroups: 44 110 \\nCapEff: 000001ffffffffff
        proc/42/limits = Max locked memory         8388608              unlimited            bytes
        proc/42/uid_map =          0     100000      65536
        proc/42/cgroup = 12:memory:/x\\n1:name=systemd:/user.slice\\n0::/system.slice/vllm.service
        """,
        tmp_path,
    )
    part = SOURCE.read(Context(root=tmp_path, live=False))
    assert isinstance(part, ServingProcesses)
    (process,) = part.processes
    assert (process.uid, process.groups, process.memlock) == (1000, (6, 44, 110), 8388608)
    assert process.cap_eff == 0x1FFFFFFFFFF
    assert process.initial_user_namespace is False
    assert process.cgroup == "/system.slice/vllm.service"
    assert process.variables == Missing("/proc/42/environ does not exist")


def test_a_named_process_is_read_whatever_it_runs(tmp_path: Path) -> None:
    write_tree("proc/42/cmdline = /opt/engine\\0--fast", tmp_path)
    part = SOURCE.read(Context(root=tmp_path, live=False, pid=42))
    assert isinstance(part, ServingProcesses)
    assert [(process.pid, process.engine) for process in part.processes] == [(42, "unknown")]
    assert SOURCE.read(Context(root=tmp_path, live=False, pid=43)) == Missing("there is no process 43")

"""`kvdiag probe kv`: a model's KV blocks, moved in several layouts."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvdiag.cli._output import Format, FormatOption, require
from kvdiag.cli.probe import _options as flags
from kvdiag.cli.probe._trace import traced

if TYPE_CHECKING:
    from kvdiag.model.kv_geometry import KvGeometry
    from kvdiag.model.model_config import ModelConfig
    from kvdiag.model.probe import ProbeEnds


class _Transport(StrEnum):
    RDMA = "rdma"
    TCP = "tcp"
    NIXL = "nixl"


class _Measured(StrEnum):
    FIRST = "first"
    EACH = "each"
    ALL = "all"


class _Layout(StrEnum):
    HND = "hnd"
    NHD = "nhd"


_Ranks = Annotated[int, typer.Option(min=1, max=1024, help="Tensor-parallel ranks.")]


def register(app: typer.Typer) -> None:
    app.command()(kv)


def kv(
    peer: Annotated[
        str | None,
        typer.Argument(metavar="[PEER]", help="HOST:PORT of an agent; nixl without: two processes here."),
    ] = None,
    transport: Annotated[_Transport, typer.Option("--transport", help="rdma, tcp, or nixl (at both ends).")] = (
        _Transport.RDMA
    ),
    model_config: Annotated[
        Path | None, typer.Option("--model-config", help="config.json of the model, or its folder; flags below win.")
    ] = None,
    layers: Annotated[int | None, typer.Option("--layers", min=1, max=1000, help="Default: 32.")] = None,
    kv_heads: Annotated[int | None, typer.Option("--kv-heads", min=1, max=1024, help="Default: 8.")] = None,
    head_size: Annotated[
        int | None, typer.Option("--head-size", min=1, max=8192, help="With --mla the latent. Default: 128.")
    ] = None,
    dtype_bytes: Annotated[
        int | None, typer.Option("--dtype-bytes", min=1, max=8, help="1, 2, 4 or 8; default: 2.")
    ] = None,
    block_tokens: Annotated[int, typer.Option("--block-tokens", min=1, max=4096, help="The engine's block size.")] = 16,
    mla: Annotated[bool, typer.Option("--mla", help="Multi-head latent attention: one vector per layer.")] = False,
    layout: Annotated[_Layout, typer.Option("--layout", help="Order within a block.")] = _Layout.HND,
    tokens: Annotated[
        str, typer.Option("--tokens", help="Prompt lengths; of three or more, the fit must predict the middle one.")
    ] = "64,128,256",
    prefill_tp: _Ranks = 1,
    decode_tp: _Ranks = 1,
    pairs: Annotated[
        _Measured | None,
        typer.Option("--pairs", help="Of ranks: first, all together, or each and then all (default if TP differ)."),
    ] = None,
    op: Annotated[str, typer.Option("--op", help="write pushes, read pulls; or both: write,read.")] = "write,read",
    rounds: flags.Rounds = 5,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, max=10000, help="Transfers of one list in a round; the fastest counts.")
    ] = 10,
    memory: flags.MemoryOption = flags.Memory.HOST,
    peer_memory: flags.PeerMemory = None,
    device: flags.Device = None,
    port: flags.Port = None,
    gid_index: flags.GidIndex = None,
    token_file: flags.TokenFile = None,
    tls_cert: flags.TlsCert = None,
    tls_key: flags.TlsKey = None,
    tls_ca: flags.TlsCa = None,
    timeout: flags.Timeout = 10.0,
    budget: flags.Budget = None,
    out: flags.History = None,
    trace: flags.TraceFile = None,
    min_bandwidth: flags.MinBandwidth = None,
    baseline: flags.Baseline = None,
    tolerance: flags.Tolerance = flags.TOLERANCE,
    output: FormatOption = Format.TEXT,
) -> int:
    """Move a model's KV blocks one by one, layer by layer, coalesced and as one piece; fit what a descriptor costs.

    Examples: kvdiag probe kv 10.0.0.2:18580 --model-config config.json --prefill-tp 8 --decode-tp 4 --token-file token

    kvdiag probe kv --transport nixl --layers 80 --kv-heads 8 --head-size 128 --prefill-tp 8 --decode-tp 8
    """
    given = locals()
    return traced("kv", trace, lambda: _run(**given))


def _run(**given: Any) -> int:
    require("numpy", "probes", "kvdiag probe kv")
    from kvdiag.cli.probe import _finish
    from kvdiag.derive.kv_blocks import exchanges
    from kvdiag.errors import KvdiagError, UsageError
    from kvdiag.model.probe_kv import KvDocument, KvSettings
    from kvdiag.report.json import head
    from kvdiag.report.probe_kv_text import render
    from kvdiag_probes.budget import Budget
    from kvdiag_probes.datapath import Operation
    from kvdiag_probes.kv.measure import Samples, costs, measure, rows
    from kvdiag_probes.kv.open import open_path
    from kvdiag_probes.kv.shapes import MODES, measured_pairs, request, shape

    if given["peer"] is None and given["transport"] is not _Transport.NIXL:
        raise UsageError("PEER: give HOST:PORT of an agent for rdma and tcp; only --transport nixl does without")
    _finish.refuse_port(given)
    given["peer_memory"] = given["peer_memory"] or given["memory"]
    if given["transport"] is not _Transport.RDMA and {given["memory"], given["peer_memory"]} != {flags.Memory.HOST}:
        raise UsageError("--memory and --peer-memory: only for --transport rdma; tcp and nixl move host memory here")
    operations = _finish.parse_names(given["op"], "--op", ("write", "read"))
    tokens = tuple(sorted(_finish.parse_counts(given["tokens"], "--tokens", most=1 << 22)))
    model, geometry = _geometry(given)
    degrees = given["prefill_tp"], given["decode_tp"]
    pairs = exchanges(geometry, *degrees)
    which: Any = given["pairs"] or (_Measured.FIRST if degrees[0] == degrees[1] else _Measured.EACH)
    measured = which.value
    chosen = measured_pairs(pairs, measured)
    shapes = [shape(geometry, *degrees, some, count, mode) for some in chosen for count in tokens for mode in MODES]
    _finish.check(given)
    allowed = Budget(_finish.parse_rate(given["budget"], "--budget") if given["budget"] else None)
    samples, failure, ends = Samples(shapes), None, None
    wanted = [Operation(name) for name in operations]
    counts = given["rounds"], given["repeats"], given["timeout"]
    size = max(max(one.source_bytes, one.target_bytes) for one in shapes)
    try:
        with open_path(given["transport"].value, given, size) as (path, ends):
            measure(path, shapes, wanted, *counts, allowed, _finish.progress(), samples)
            proof = path.prove(samples.moved)
    except KvdiagError as error:
        if not samples.timings:
            raise
        failure = error
        proof = _finish.unproved(sum(samples.moved.values()))
    made = rows(samples)
    # What a well laid out cache reaches: blocks coalesced, of the longest prompt.
    best = [row.bandwidth for row in made if (row.mode, row.tokens) == ("coalesced", max(tokens))]
    document = KvDocument(
        **head("kvdiag.probe-kv/1"),  # type: ignore[arg-type]
        settings=KvSettings(
            transport=given["transport"].value,
            operations=operations,
            geometry=geometry,
            tokens=tokens,
            prefill_tp=degrees[0],
            decode_tp=degrees[1],
            pairs=pairs,
            measured=measured,
            rounds=given["rounds"],
            repeats=given["repeats"],
            model=model.name if model else None,
            memory=given["memory"].value,
            peer_memory=given["peer_memory"].value,
        ),
        request=request(geometry, *degrees, max(tokens)),
        ends=ends,
        rows=made,
        costs=costs(samples, tokens[len(tokens) // 2] if len(tokens) > 2 else None),
        proof=proof,
        judgements=_finish.judge_rates(given, ends, best),
        failure=str(failure) if failure else None,
        missing=(
            *(model.notes if model else ()),
            *(_over_tcp(ends) if given["transport"] is _Transport.NIXL else ()),
            *(() if len(tokens) > 2 else ("a check of the fit: give three or more --tokens",)),
        ),
    )
    metrics = [one for row in document.rows for one in (row.total, row.bandwidth)]
    return _finish.finish(document, render, given, metrics, proof.status == "contradicted", failure)


def _over_tcp(ends: "ProbeEnds | None") -> tuple[str, ...]:
    """Say how NIXL moves over RDMA where this host could and was not told to."""
    import os

    from kvdiag_probes.rdma_path import read_devices

    if ends is None or "UCX_TLS" in os.environ:
        return ()
    active = [port for port in read_devices().ports if port.state == "ACTIVE"]
    if not active:
        return ()
    pins = f"UCX_TLS=rc UCX_NET_DEVICES={active[0].device}:{active[0].number}"
    return (f"NIXL over RDMA: this was UCX's TCP; set {pins} here, and the like at the agent, to compare with rdma",)


def _geometry(given: dict[str, Any]) -> "tuple[ModelConfig | None, KvGeometry]":
    """Return what the configuration file says, and the geometry with the flags laid over it."""
    from kvdiag.errors import UsageError
    from kvdiag.model.kv_geometry import KvGeometry
    from kvdiag.sources import model_config

    if given["dtype_bytes"] not in (None, 1, 2, 4, 8):
        raise UsageError(f"--dtype-bytes: no element has {given['dtype_bytes']} bytes: give 1, 2, 4 or 8")
    model = model_config.read(given["model_config"]) if given["model_config"] else None
    mla = given["mla"] or (model is not None and model.mla)
    if mla and given["kv_heads"] is not None:
        raise UsageError("--kv-heads: a latent (--mla, or kv_lora_rank of --model-config) has no heads: leave it out")

    def value(name: str, default: int) -> int:
        if given[name] is not None:
            return int(given[name])
        return default if model is None else int(getattr(model, name))

    geometry = KvGeometry(
        layers=value("layers", 32),
        kv_heads=value("kv_heads", 8),
        head_size=value("head_size", 128),
        dtype_bytes=value("dtype_bytes", 2),
        block_tokens=given["block_tokens"],
        mla=mla,
        layout=given["layout"].value,
    )
    return model, geometry

"""`kvdiag probe kv`: a model's KV blocks, moved in several layouts."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from kvdiag.cli._output import Format, FormatOption, require
from kvdiag.cli.probe import _options as flags


class _Transport(StrEnum):
    RDMA = "rdma"
    TCP = "tcp"
    NIXL = "nixl"


class _Layout(StrEnum):
    HND = "hnd"
    NHD = "nhd"


def register(app: typer.Typer) -> None:
    app.command()(kv)


def kv(
    peer: Annotated[
        str | None, typer.Argument(metavar="[PEER]", help="HOST:PORT of a `kvdiag agent`; none with --transport nixl.")
    ] = None,
    transport: Annotated[_Transport, typer.Option("--transport", help="rdma, tcp, or nixl on this host.")] = (
        _Transport.RDMA
    ),
    layers: Annotated[int, typer.Option("--layers", min=1, max=1000, help="num_hidden_layers.")] = 32,
    kv_heads: Annotated[int, typer.Option("--kv-heads", min=1, max=1024, help="num_key_value_heads.")] = 8,
    head_size: Annotated[
        int, typer.Option("--head-size", min=1, max=8192, help="head_dim; with --mla the latent: 576 for DeepSeek.")
    ] = 128,
    dtype_bytes: Annotated[int, typer.Option("--dtype-bytes", min=1, max=8, help="Bytes per element.")] = 2,
    block_tokens: Annotated[int, typer.Option("--block-tokens", min=1, max=4096, help="The engine's block size.")] = 16,
    mla: Annotated[bool, typer.Option("--mla", help="Multi-head latent attention: one vector per layer.")] = False,
    layout: Annotated[_Layout, typer.Option("--layout", help="Order within a block.")] = _Layout.HND,
    tokens: Annotated[
        str, typer.Option("--tokens", help="Prompt lengths; of three or more, the fit must predict the middle one.")
    ] = "64,128,256",
    prefill_tp: Annotated[int, typer.Option("--prefill-tp", min=1, max=1024, help="Tensor-parallel ranks.")] = 1,
    decode_tp: Annotated[int, typer.Option("--decode-tp", min=1, max=1024, help="Tensor-parallel ranks.")] = 1,
    op: Annotated[str, typer.Option("--op", help="write pushes, read pulls; or both: write,read.")] = "write,read",
    rounds: flags.Rounds = 5,
    repeats: Annotated[
        int, typer.Option("--repeats", min=1, max=10000, help="Transfers of one list in a round; the fastest counts.")
    ] = 10,
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
    baseline: flags.Baseline = None,
    tolerance: flags.Tolerance = 0.1,
    output: FormatOption = Format.TEXT,
) -> int:
    """Move a model's KV blocks one by one, layer by layer, coalesced and as one piece; fit what a descriptor costs.

    Example: kvdiag probe kv --transport nixl --layers 80 --kv-heads 8 --head-size 128 --prefill-tp 8 --decode-tp 8
    """
    return _run(**locals())


def _run(**given: Any) -> int:
    require("numpy", "probes", "kvdiag probe kv")
    from kvdiag.cli.probe import _finish
    from kvdiag.derive.kv_blocks import exchanges
    from kvdiag.errors import UsageError
    from kvdiag.model.kv_geometry import KvGeometry
    from kvdiag.model.probe_kv import KvDocument, KvSettings
    from kvdiag.report.json import head
    from kvdiag.report.probe_kv_text import render
    from kvdiag_probes.budget import Budget
    from kvdiag_probes.datapath import Operation
    from kvdiag_probes.kv.measure import costs, measure, rows
    from kvdiag_probes.kv.open import open_path
    from kvdiag_probes.kv.shapes import MODES, request, shape

    if (given["peer"] is None) != (given["transport"] is _Transport.NIXL):
        raise UsageError("PEER: give HOST:PORT of an agent for rdma and tcp, and none for --transport nixl")
    operations = _finish.parse_names(given["op"], "--op", ("write", "read"))
    tokens = tuple(sorted(_finish.parse_counts(given["tokens"], "--tokens", most=1 << 22)))
    geometry = KvGeometry(
        layers=given["layers"],
        kv_heads=given["kv_heads"],
        head_size=given["head_size"],
        dtype_bytes=given["dtype_bytes"],
        block_tokens=given["block_tokens"],
        mla=given["mla"],
        layout=given["layout"].value,
    )
    degrees = given["prefill_tp"], given["decode_tp"]
    pair = exchanges(geometry, *degrees)[0]
    shapes = [shape(geometry, *degrees, pair, count, mode) for count in tokens for mode in MODES]
    allowed = Budget(_finish.parse_rate(given["budget"], "--budget") if given["budget"] else None)
    with open_path(given["transport"].value, given, max(max(s.source_bytes, s.target_bytes) for s in shapes)) as opened:
        path, ends = opened
        wanted = [Operation(name) for name in operations]
        samples = measure(
            path, shapes, wanted, given["rounds"], given["repeats"], given["timeout"], allowed, _finish.progress()
        )
    document = KvDocument(
        **head("kvdiag.probe-kv/1"),  # type: ignore[arg-type]
        settings=KvSettings(
            transport=given["transport"].value,
            operations=operations,
            geometry=geometry,
            tokens=tokens,
            prefill_tp=degrees[0],
            decode_tp=degrees[1],
            pair=pair,
            rounds=given["rounds"],
            repeats=given["repeats"],
        ),
        request=request(geometry, *degrees, max(tokens)),
        ends=ends,
        rows=rows(samples),
        costs=costs(samples, tokens[len(tokens) // 2] if len(tokens) > 2 else None),
        judgements=(),
        missing=() if len(tokens) > 2 else ("a check of the fit: give three or more --tokens",),
    )
    metrics = [one for row in document.rows for one in (row.total, row.bandwidth)]
    return _finish.finish(document, render, given, metrics)

"""`kvdiag preflight`: everything that can be known before traffic flows."""

import os
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvdiag.cli._flags import GidIndex, Port
from kvdiag.cli._output import require, stdout

if TYPE_CHECKING:
    from kvdiag.checks.base import Check
    from kvdiag.model.preflight import PreflightDocument
    from kvdiag.model.snapshot import Snapshot
    from kvdiag.sources.preflight_config import PreflightConfig

_CONFIG_VARIABLE = "KVDIAG_PREFLIGHT_CONFIG"

_MARKS = (
    b'"kvdiag.preflight/',
    b'<testsuite name="kvdiag.preflight"',
    b"# HELP kvdiag_preflight_",
    b" not observable here",
)
"""What the beginning of a preflight's file holds, in each of its formats."""


class PreflightFormat(StrEnum):
    TEXT = "text"
    JSON = "json"
    JUNIT = "junit"
    PROMETHEUS = "prometheus"


class FailOn(StrEnum):
    WARNING = "warning"
    CRITICAL = "critical"


def register(app: typer.Typer) -> None:
    app.command()(preflight)


def preflight(
    root: Annotated[
        Path | None,
        typer.Option(help="Judge a copied tree (its sys, proc, etc and commands folders) instead of this host."),
    ] = None,
    snapshot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Judge what kvdiag snapshot saved instead of this host.")
    ] = None,
    pid: Annotated[
        int | None, typer.Option(help="The serving process; found by its command line where not given.")
    ] = None,
    log: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Look for known errors in this engine log too.")
    ] = None,
    peer: Annotated[
        list[str] | None, typer.Option(metavar="HOST:PORT", help="Compare with the host of this running kvdiag agent.")
    ] = None,
    peer_root: Annotated[list[Path] | None, typer.Option(help="Compare with the host of this copied tree.")] = None,
    peer_snapshot: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Compare with the host of this saved snapshot.")
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option("--select", metavar="CODE|FAMILY", help="Run only these checks: GID001, or GID,MTU."),
    ] = None,
    check: Annotated[
        list[str] | None, typer.Option("--check", metavar="CODE|FAMILY", help="The same as --select.")
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="CODE|FAMILY", help="Leave these checks out; may be repeated.")
    ] = None,
    fail_on: Annotated[
        FailOn | None, typer.Option(help="With critical, warnings alone leave the exit code at 0 (default: warning).")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", envvar=_CONFIG_VARIABLE, help="TOML file with select, ignore, fail_on and waivers."
        ),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the peers' token (default: the variable KVDIAG_TOKEN).")
    ] = None,
    tls_ca: Annotated[Path | None, typer.Option(help="Authority that the peers' certificates must come from.")] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="This client's certificate, for peers that ask for one.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Key of --tls-cert.")] = None,
    transfer: Annotated[
        bool, typer.Option("--transfer/--no-transfer", help="Move one verified block each way with each --peer.")
    ] = True,
    device: Annotated[str | None, typer.Option(help="RDMA device for that; default: chosen by its GID.")] = None,
    port: Port = None,
    gid_index: GidIndex = None,
    timeout: Annotated[float, typer.Option(min=0.1, max=600, help="Longest wait for a peer, in seconds.")] = 30.0,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show passed and inapplicable checks too.")] = False,
    output: Annotated[
        PreflightFormat,
        typer.Option("--format", "-f", help="text, json, junit for CI, or prometheus for the textfile collector."),
    ] = PreflightFormat.TEXT,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="Write there, whole or not at all; replaces an earlier one."),
    ] = None,
) -> int:
    """Check this host, its serving process and its peers for what breaks KV transfers, before traffic flows.

    Nothing is changed. The only traffic is what --peer makes: a few questions to each agent and, where both ends have
    RDMA, two blocks of 64 KiB. Exit codes: 0 nothing found, 1 warnings, 2 critical findings, 3 too little could be
    examined to say.

    Example: kvdiag preflight --peer decode-1:18580 --ignore CNT --fail-on critical
    """
    from kvdiag.cli._files import check_new, write_whole
    from kvdiag.cli._hosts import read_host, read_peers
    from kvdiag.sources import preflight_config

    if out is not None:
        given = (snapshot, config, token_file, tls_ca, tls_cert, tls_key)
        inputs = [*filter(None, given), *(log or ()), *(peer_snapshot or ())]
        check_new(out, "--out", inputs, marks=_MARKS)
    flag = _CONFIG_VARIABLE if os.environ.get(_CONFIG_VARIABLE) == str(config) else "--config"
    settings = preflight_config.PreflightConfig() if config is None else preflight_config.read(config, flag)
    selected = select or ([] if check else list(settings.select))
    chosen = _chosen(selected, check or [], ignore or list(settings.ignore))
    local = read_host(root, snapshot, pid, tuple(log or ()))
    peers = read_peers(peer_root or [], peer_snapshot or [])
    if peer:
        # Blocks move from this machine: between a copied host and a peer they would prove nothing.
        moves = transfer and root is None and snapshot is None
        peers += _meet(
            peer,
            token_file,
            tls_cert,
            tls_key,
            tls_ca,
            timeout_s=timeout,
            transfer=moves,
            device=device,
            port=port,
            gid_index=gid_index,
        )
    threshold = fail_on.value if fail_on else settings.fail_on or "warning"
    document = _judge(local, peers, chosen, settings, threshold)
    if out is not None:
        write_whole(out, _rendered(document, output, verbose), "--out")
    elif output is PreflightFormat.TEXT:
        from kvdiag.report.preflight_text import render

        stdout().print(render(document, verbose=verbose), end="")
    else:
        typer.echo(_rendered(document, output, verbose), nl=False)
    return document.exit_code


def _judge(
    local: "Snapshot", peers: "list[Snapshot]", chosen: "tuple[Check, ...]", settings: "PreflightConfig", fail_on: str
) -> "PreflightDocument":
    from datetime import UTC, datetime

    from kvdiag.checks import base as checks
    from kvdiag.checks import waivers
    from kvdiag.checks.verdict import shown, summarise
    from kvdiag.derive.engines import described
    from kvdiag.model.preflight import MissingPart, PreflightDocument, WaivedFinding
    from kvdiag.report.json import head

    judged = checks.run(checks.Hosts(local=local, peers=tuple(peers)), chosen)
    # A replayed snapshot is judged today: its waivers may have expired since it was taken.
    applied = waivers.apply(
        judged, settings.waiver, datetime.now(UTC).date(), {check.code for check in checks.discover()}
    )
    verdict, findings, results = summarise(applied.judged, applied.waived)
    titles = {item.check.code: item.check.title for item in judged}
    return PreflightDocument(
        **head("kvdiag.preflight/1", local.host, local.time_s),  # type: ignore[arg-type]
        verdict=verdict,
        peers=tuple(snapshot.host for snapshot in peers),
        findings=findings,
        checks=results,
        missing=tuple(
            MissingPart(host=snapshot.host, part=part, reason=why.missing)
            for snapshot in (local, *peers)
            for part, why in snapshot.missing()
        ),
        waived=tuple(
            WaivedFinding(
                finding=shown(item.finding, titles[item.finding.code], None),
                reason=item.waiver.reason,
                expires=item.waiver.expires.isoformat(),
            )
            for item in applied.waived
        ),
        notes=applied.notes,
        engines=described(local),
        fail_on=fail_on,  # type: ignore[arg-type]
    )


def _rendered(document: "PreflightDocument", output: PreflightFormat, verbose: bool) -> str:
    from kvdiag.report import preflight_junit, preflight_prometheus, preflight_text
    from kvdiag.report.json import encode

    match output:
        case PreflightFormat.JSON:
            return encode(document) + "\n"
        case PreflightFormat.JUNIT:
            return preflight_junit.render(document)
        case PreflightFormat.PROMETHEUS:
            return preflight_prometheus.render(document)
        case PreflightFormat.TEXT:
            return preflight_text.render(document, verbose=verbose).plain


def _chosen(selected: list[str], also: list[str], ignored: list[str]) -> "tuple[Check, ...]":
    from kvdiag.checks.base import discover
    from kvdiag.checks.selection import select

    given = [flag for flag, names in (("--select", selected), ("--check", also)) if names]
    return select(discover(), [*selected, *also], ignored, "/".join(given) or "--select")


def _meet(
    peers: list[str], token_file: Path | None, cert: Path | None, key: Path | None, ca: Path | None, **options: Any
) -> "list[Snapshot]":
    require("kvdiag_probes.control.client", "probes", "kvdiag preflight --peer")
    require("numpy", "probes", "kvdiag preflight --peer")
    from kvdiag_probes.control.address import parse_address
    from kvdiag_probes.control.credential import load_credential
    from kvdiag_probes.pair import PairOptions, meet

    loaded = load_credential(token_file, cert, key, ca)
    addresses = [parse_address(peer, "--peer") for peer in peers]
    return [meet(PairOptions(peer=address, credential=loaded, **options)) for address in addresses]

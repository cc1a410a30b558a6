"""`kvdiag preflight`: everything that can be known before traffic flows."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvdiag.cli._output import Format, FormatOption, require, stdout

if TYPE_CHECKING:
    from kvdiag.checks.base import Check
    from kvdiag.model.snapshot import Snapshot


def register(app: typer.Typer) -> None:
    app.command()(preflight)


def preflight(
    root: Annotated[
        Path | None,
        typer.Option(help="Judge a copied tree (its sys, proc, etc and commands folders) instead of this host."),
    ] = None,
    pid: Annotated[
        int | None, typer.Option(help="The serving process; found by its command line where not given.")
    ] = None,
    peer: Annotated[
        list[str] | None, typer.Option(metavar="HOST:PORT", help="Compare with the host of this running kvdiag agent.")
    ] = None,
    peer_root: Annotated[list[Path] | None, typer.Option(help="Compare with the host of this copied tree.")] = None,
    log: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Look for known errors in this engine log too.")
    ] = None,
    check: Annotated[
        list[str] | None, typer.Option(metavar="CODE", help="Run only this check; may be repeated.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="File with the peers' token (default: the variable KVDIAG_TOKEN).")
    ] = None,
    tls_ca: Annotated[Path | None, typer.Option(help="Authority that the peers' certificates must come from.")] = None,
    tls_cert: Annotated[
        Path | None, typer.Option(help="This client's certificate, for peers that ask for one.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Key of --tls-cert.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show passed and inapplicable checks too.")] = False,
    output: FormatOption = Format.TEXT,
) -> int:
    """Check this host, its serving process and its peers for what breaks KV transfers, before traffic flows.

    Nothing is changed and no traffic is made. Exit codes: 0 nothing found, 1 warnings, 2 critical findings, 3 nothing
    could be examined.

    Example: kvdiag preflight --peer decode-1:4791
    """
    from kvdiag.checks import base as checks
    from kvdiag.checks.verdict import summarise
    from kvdiag.errors import UsageError
    from kvdiag.model.missing import Missing
    from kvdiag.model.preflight import MissingPart, PreflightDocument
    from kvdiag.model.serving import ServingProcesses
    from kvdiag.report.json import encode, head
    from kvdiag.report.preflight_text import render
    from kvdiag.sources.base import Context, collect

    chosen = _chosen(check)
    for flag, folder in (("--root", root), *(("--peer-root", folder) for folder in peer_root or ())):
        if folder is not None and not (folder / "sys").is_dir():
            raise UsageError(f"{flag} {folder}: not a host's tree, it has no folder sys; give the folder that holds it")
    for file in log or ():
        if not file.is_file():
            raise UsageError(
                f"--log {file}: no such file; give an engine's log, such as the redirected output of its start"
            )
    logs = tuple(log or ())
    context = Context(pid=pid, logs=logs) if root is None else Context(root=root, live=False, pid=pid, logs=logs)
    local = collect(context)
    serving = local.part(ServingProcesses)
    if pid is not None and isinstance(serving, Missing):
        raise UsageError(f"--pid {pid}: {serving.missing}")
    peers = [collect(Context(root=folder, live=False)) for folder in peer_root or ()]
    if peer:
        peers += _fetch(peer, token_file, tls_cert, tls_key, tls_ca)
    verdict, findings, results = summarise(checks.run(checks.Hosts(local=local, peers=tuple(peers)), chosen))
    document = PreflightDocument(
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
    )
    if output is Format.JSON:
        typer.echo(encode(document))
    else:
        stdout().print(render(document, verbose=verbose), end="")
    return document.exit_code


def _chosen(codes: list[str] | None) -> "tuple[Check, ...] | None":
    from kvdiag.checks.base import discover
    from kvdiag.errors import UsageError

    if not codes:
        return None
    known = {item.code: item for item in discover()}
    for code in codes:
        if code.upper() not in known:
            raise UsageError(f"--check {code}: no check has this code; there are {', '.join(known)}")
    return tuple(known[code] for code in sorted({code.upper() for code in codes}))


def _fetch(
    peers: list[str], token_file: Path | None, cert: Path | None, key: Path | None, ca: Path | None
) -> "list[Snapshot]":
    require("kvdiag_probes.control.client", "probes", "kvdiag preflight --peer")
    from kvdiag_probes.control.client import fetch_snapshot
    from kvdiag_probes.control.credential import load_credential

    credential = load_credential(token_file, cert, key, ca)
    return [fetch_snapshot(peer, credential) for peer in peers]

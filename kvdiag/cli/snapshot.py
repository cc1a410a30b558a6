"""`kvdiag snapshot`: everything that preflight looks at, redacted, in one file."""

from pathlib import Path
from typing import Annotated

import typer

from kvdiag.cli._output import Format, FormatOption


def register(app: typer.Typer) -> None:
    app.command()(snapshot)


def snapshot(
    file: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="Where it is written; replaces an earlier one."),
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="Save a copied tree (its sys, proc, etc and commands folders) instead.")
    ] = None,
    pid: Annotated[int | None, typer.Option(help="The serving process; found where not given.")] = None,
    log: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="Keep the known errors of this engine log too.")
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(
            help="Secret under which names are replaced: the same file on several hosts lets them be compared."
        ),
    ] = None,
    output: FormatOption = Format.TEXT,
) -> int:
    """Save what preflight looks at, to be judged elsewhere: kvdiag preflight --snapshot FILE gives the same verdict.

    Addresses, GUIDs, host and user names, container ids and secrets are replaced, each always by the same, so that
    subnets, ranges and equal names can still be told. Device, interface and model names, paths, pids and counters stay.

    Example: kvdiag snapshot -o node1.json && kvdiag preflight --snapshot node1.json
    """
    import secrets

    from kvdiag.cli._files import check_new, write_whole
    from kvdiag.cli._hosts import read_host
    from kvdiag.derive.redact import redact
    from kvdiag.errors import UsageError
    from kvdiag.model.exit_code import ExitCode
    from kvdiag.report.json import encode
    from kvdiag.sources.snapshot_file import to_document

    if file is None and output is Format.TEXT:
        raise UsageError("--output: say where to write the snapshot: -o FILE, or --format json for standard output")
    if file is not None:
        check_new(file, "--output", [*filter(None, (key_file,)), *(log or ())], marks=(b'"kvdiag.snapshot/',))
    key = secrets.token_bytes(32) if key_file is None else _key(key_file)
    document = to_document(redact(read_host(root=root, pid=pid, logs=tuple(log or ())), key), redacted=True)
    text = encode(document) + "\n"
    if file is not None:
        write_whole(file, text, "--output")
    if output is Format.JSON:
        typer.echo(text, nl=False)
    else:
        typer.echo(f"{file}: {len(document.parts)} parts of {document.host}, {len(document.missing)} missing")
    return ExitCode.PASSED if document.parts else ExitCode.UNDETERMINED


def _key(path: Path) -> bytes:
    from kvdiag.errors import InputError

    try:
        with path.open("rb") as file:
            key = file.read(4096).strip()
    except OSError as error:
        raise InputError(f"--key-file {path}: {error.strerror or error}") from error
    if len(key) < 16:
        raise InputError(
            f"--key-file {path}: {len(key)} bytes; it needs at least 16: head -c 32 /dev/urandom | base64 > {path}"
        )
    return key

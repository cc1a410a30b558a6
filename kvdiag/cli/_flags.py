"""Flags that commands of several kinds share, with one meaning everywhere."""

from pathlib import Path
from typing import Annotated

import typer

Port = Annotated[int | None, typer.Option("--port", min=1, max=255, help="Port of the device.")]
GidIndex = Annotated[int | None, typer.Option("--gid-index", min=0, max=65535, help="GID table slot.")]
TlsKey = Annotated[Path | None, typer.Option("--tls-key", help="The certificate's private key (PEM).")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Of the bootstrap; the same seed gives the same numbers.")]

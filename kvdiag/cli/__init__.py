"""The command line: one file per command, each found by walking this folder and registered by its `register`."""

from kvdiag.cli._main import main

__all__ = ["main"]

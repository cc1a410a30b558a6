"""`kvdiag probe`: one file per probe, each with `register(app)`; a leading underscore marks shared parts."""

import importlib
import pkgutil

import typer


def register(app: typer.Typer) -> None:
    probes = typer.Typer(no_args_is_help=True, help="Measure transfers, registration and connections on purpose.")
    for module_info in sorted(pkgutil.iter_modules(__path__), key=lambda info: info.name):
        if not module_info.name.startswith("_"):
            importlib.import_module(f"{__name__}.{module_info.name}").register(probes)
    app.add_typer(probes, name="probe")

"""The JSON form of every document, and the published JSON Schemas generated from their types."""

import importlib
import json
import pkgutil
import socket
from datetime import UTC, datetime
from importlib import resources
from typing import Any

import msgspec

import kvdiag
import kvdiag.model
from kvdiag.model.document import Document


def head(schema: str, host: str | None = None, time_s: float | None = None) -> dict[str, str]:
    """Return the fields that every Document starts with; `time_s` is seconds since the epoch (default: now)."""
    when = datetime.now(UTC) if time_s is None else datetime.fromtimestamp(time_s, UTC)
    return {
        "schema": schema,
        "version": kvdiag.__version__,
        "host": socket.gethostname() if host is None else host,
        "time": when.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }


def encode(document: object) -> str:
    """Return the document as indented JSON text; NaN and infinity become null."""
    return json.dumps(json.loads(msgspec.json.encode(document)), indent=2)


def document_types() -> dict[str, type[Document]]:
    """Return every Document subclass of kvdiag.model by the name of its schema file, e.g. `kvdiag.preflight-1`."""
    found: dict[str, type[Document]] = {}
    for module_info in pkgutil.iter_modules(kvdiag.model.__path__):
        module = importlib.import_module(f"kvdiag.model.{module_info.name}")
        for value in vars(module).values():
            if isinstance(value, type) and issubclass(value, Document) and value is not Document:
                if value.__module__ != module.__name__:
                    continue
                found[schema_of(value).replace("/", "-")] = value
    return dict(sorted(found.items()))


def schema_of(document_type: type[Document]) -> str:
    """Return `kvdiag.<command>/<major>`, read off the Literal that the type gives its `schema` field."""
    (name,) = document_type.__annotations__["schema"].__args__
    return str(name)


def build_schema(document_type: type[Document]) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a document type; further fields may be added within a major version."""
    (reference,), components = msgspec.json.schema_components([document_type], ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": schema_of(document_type),
        **reference,
        "$defs": components,
    }


def published_schema(name: str) -> dict[str, Any]:
    """Return a checked-in schema by its file name without `.json`; FileNotFoundError where there is none."""
    text = resources.files("kvdiag.schemas").joinpath(f"{name}.json").read_text()
    schema: dict[str, Any] = json.loads(text)
    return schema

"""Documents and their published schemas."""

import jsonschema
import pytest

from kvdiag.report import json as report_json
from kvdiag.schemas.__main__ import main as schemas_main


def test_head_carries_the_time_given() -> None:
    head = report_json.head("kvdiag.x/1", host="node-a", time_s=1_700_000_000.25)
    assert head["time"] == "2023-11-14T22:13:20.250Z"
    assert head["host"] == "node-a"


def test_every_published_schema_is_current_and_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["schemas", "--check"])
    assert schemas_main() == 0
    for name in report_json.document_types():
        schema = report_json.published_schema(name)
        jsonschema.Draft202012Validator.check_schema(schema)
        assert schema["title"] == "/".join(name.rsplit("-", 1))

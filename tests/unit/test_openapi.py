"""`/openapi.json` says what is there: every route and error, nothing else, and each example is what its schema says."""

from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from starlette.routing import Route

from contract.errors import all_errors
from contract.principal import DEFAULT_PRINCIPAL
from gateway.http.doorway import Doorway
from gateway.http.examples import EXAMPLES
from gateway.http.openapi import build_document
from gateway.http.operations import OPERATIONS
from gateway.http.routes import build_app
from gateway.http.schemas import SCHEMAS
from gateway.settings import GatewaySettings
from tests.support.http_kit import EchoCore

DOCUMENT = build_document("1.2.3")
RESPONSES = DOCUMENT["components"]["responses"]


def routes() -> list[tuple[str, str]]:
    settings = GatewaySettings()
    app = build_app(Doorway(EchoCore(), lambda _: DEFAULT_PRINCIPAL, settings), settings)
    found = []
    for route in app.routes:
        assert isinstance(route, Route)
        found += [(method, route.path) for method in route.methods or () if method != "HEAD"]
    return sorted(found)


def media(part: Any) -> list[Any]:
    """Every media type object, wherever it is."""
    found = []
    if isinstance(part, dict):
        found += list(part["content"].values()) if isinstance(part.get("content"), dict) else []
        found += [m for value in part.values() for m in media(value)]
    elif isinstance(part, list):
        found += [m for value in part for m in media(value)]
    return found


def validator(schema: Any) -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(
        {"$schema": "https://json-schema.org/draft/2020-12/schema", "components": DOCUMENT["components"], **schema}
    )


def test_every_route_is_described_and_nothing_else_is() -> None:
    described = [(operation.method, operation.path) for operation in OPERATIONS]
    assert sorted(described) == routes()


def test_the_document_is_valid_openapi_3_1() -> None:
    assert DOCUMENT["openapi"].startswith("3.1")
    schemathesis.openapi.from_dict(DOCUMENT).validate()


def test_a_broken_document_is_not_valid() -> None:
    with pytest.raises(Exception, match="responses"):
        schemathesis.openapi.from_dict({**DOCUMENT, "paths": {"/x": {"get": {"responses": 7}}}}).validate()


def test_operation_ids_are_unique() -> None:
    names = [operation.name for operation in OPERATIONS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("kind", ["Error", "OpenAIError"])
@pytest.mark.parametrize("error", all_errors(), ids=lambda e: e.code)
def test_every_error_code_is_there_with_its_status(kind: str, error: Any) -> None:
    response = RESPONSES[f"{kind}{error.http_status}"]
    assert error.code in response["headers"]["headrace-error"]["schema"]["enum"]
    assert error.code in response["content"]["application/json"]["examples"]


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_schema_is_one_and_is_used(name: str) -> None:
    jsonschema_rs.meta.validate(SCHEMAS[name])
    text = str({**DOCUMENT["paths"], **RESPONSES, "schemas": SCHEMAS})
    assert f"#/components/schemas/{name}'" in text


def test_every_example_is_what_its_schema_says() -> None:
    seen = 0
    for found in media([DOCUMENT["paths"], RESPONSES]):
        for example in found.get("examples", {}).values():
            validator(found["schema"]).validate(example["value"])
            seen += 1
    assert seen > 50
    assert set(EXAMPLES) <= set(SCHEMAS)

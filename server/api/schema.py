"""Answers that are records: their bytes, and their schemas in the OpenAPI document.

FastAPI refuses a struct as a response model, so a route declares its answer with `answers` and returns `encoded`.
The docstring of a record is its description.
"""

from inspect import cleandoc
from typing import Any

import msgspec
from fastapi import Response

Responses = dict[int | str, dict[str, Any]]

_REF = "#/components/schemas/{name}"
_COMPONENTS: dict[str, Any] = {}
"""Schemas of the declared answers, by name."""


def encoded(record: object, code: int = 200) -> Response:
    """A record, or a list of records, as the answer of a route."""
    return Response(msgspec.json.encode(record), code, media_type="application/json")


def answers(*kinds: Any, code: int = 200) -> Responses:
    """The declaration of an answer, for `responses` of a route. Of several ``kinds`` it is one."""
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    for name, component in components.items():
        # Docstrings keep their indentation before Python 3.13.
        component |= {"description": cleandoc(component.get("description", ""))}
        if _COMPONENTS.setdefault(name, component) != component:
            raise TypeError(f"two records of the API are called {name}")
    schema = schemas[0] if len(schemas) == 1 else {"anyOf": list(schemas)}
    return {code: {"description": "Successful Response", "content": {"application/json": {"schema": schema}}}}


def add_components(document: dict[str, Any]) -> None:
    """Adds the schemas of the declared answers to an OpenAPI document."""
    components = document.setdefault("components", {})
    components["schemas"] = dict(sorted((components.get("schemas", {}) | _COMPONENTS).items()))

"""What OpenAPI says about answers: error bodies by status code, and how a client authenticates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI

from server.api.gate import COOKIE, HEARTBEAT_PATH, OPEN_PATHS
from server.api.schema import Responses, add_components


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An error; ``detail`` states the cause and what to change."""

    detail: str


@dataclass(frozen=True, slots=True)
class StatusMessage:
    """``status``: ``ok``, or the problem."""

    status: str


@dataclass(frozen=True, slots=True)
class RefusedLine:
    """A record that was not stored. ``line``: its number in the body, from 1."""

    line: int
    detail: str


@dataclass(frozen=True, slots=True)
class UploadAnswer:
    """``taken``: records stored. ``refused``: the first lines that were not stored, of ``refused_count``."""

    taken: int
    refused: list[RefusedLine]
    refused_count: int


_CAUSES: Mapping[int, str] = {
    400: "The request or its body is malformed.",
    401: "The token is missing or wrong.",
    403: "The request comes from another origin.",
    404: "There is no such run, or no such object in it.",
    409: "The request conflicts with the configuration or with another sender.",
    413: "The body is too large.",
    415: "The content type or encoding is not supported.",
    421: "The Host header is not in `[server] allowed_hosts`.",
    422: "A parameter is out of range.",
    429: "Too many requests; `retry-after` says when to try again.",
    503: "The store does not answer; `retry-after` says when to try again.",
}


def errors(*codes: int) -> Responses:
    """The declaration of error bodies, for `responses` of a route."""
    return {code: {"description": _CAUSES[code], "model": ErrorAnswer} for code in codes}


def json_file(description: str, schema: Mapping[str, Any], media_type: str = "application/json") -> Responses:
    """The declaration of a body that a route writes itself."""
    return {200: {"description": description, "content": {media_type: {"schema": dict(schema)}}}}


# Errors that the gate, which is in front of all routes, answers.
GATE_ERRORS: Responses = errors(400, 401, 403, 413, 421)


def invalid_parameters(problems: Sequence[Any]) -> str:
    """One sentence of pydantic's problems: each parameter with what is wrong, in the order of the request."""
    named = (".".join(str(part) for part in problem["loc"][1:]) or problem["loc"][0] for problem in problems)
    texts = (str(problem["msg"]).removeprefix("Input ") for problem in problems)
    return "; ".join(f"{name} {text}" for name, text in zip(named, texts, strict=True))


def declare_security(api: FastAPI) -> None:
    """Adds to the OpenAPI description what FastAPI does not know: schemas of answers that are records, and security.

    Security schemes: a bearer token, or the cookie of the login page.
    """
    generate = api.openapi

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is None:
            schema = generate()
            add_components(schema)
            schema.setdefault("components", {})["securitySchemes"] = {
                "token": {"type": "http", "scheme": "bearer", "description": "The server's token; none on loopback."},
                "session": {"type": "apiKey", "in": "cookie", "name": COOKIE, "description": "Set by the login page."},
            }
            # The empty entry: a server on loopback needs no token.
            schema["security"] = [{"token": []}, {"session": []}, {}]
            for path, operations in schema["paths"].items():
                if path in OPEN_PATHS or path.startswith(HEARTBEAT_PATH):
                    for operation in operations.values():
                        operation["security"] = []
                        del operation["responses"]["401"]
        return api.openapi_schema or schema

    api.openapi = openapi  # type: ignore[method-assign]

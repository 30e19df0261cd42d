"""The API's schema as a page of our own: no script, nothing fetched, the same look."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe
from drf_spectacular.generators import SchemaGenerator

METHODS = ("get", "post", "put", "patch", "delete")


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a body or one parameter."""

    name: str
    kind: str
    required: bool
    text: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one address."""

    method: str
    path: str
    text: str
    parameters: tuple[Field, ...]
    body: tuple[Field, ...]
    answer: tuple[Field, ...]
    answer_status: str
    open: bool

    @property
    def who(self) -> str:
        """Return who may call it, in words."""
        if self.open:
            return "open to everybody"
        key = "any key" if self.method == "GET" else "a key that may manage"
        owner = (
            "an administrator, signed in or by" if "/admin/" in self.path else "signed in, or by"
        )
        return f"{owner} {key}"

    @property
    def slug(self) -> str:
        """Return the id of its place on the page."""
        return f"{self.method}-{self.path.strip('/').replace('/', '-').strip('{}')}"


def operations(schema: Mapping[str, Any]) -> list[Operation]:
    """Return every operation of a schema, in its order."""
    return [
        _operation(schema, path, method, item[method])
        for path, item in schema["paths"].items()
        for method in METHODS
        if method in item
    ]


def _operation(
    schema: Mapping[str, Any], path: str, method: str, raw: Mapping[str, Any]
) -> Operation:
    body = raw.get("requestBody", {}).get("content", {}).get("application/json", {})
    nothing: tuple[str, Mapping[str, Any]] = ("", {})
    code, answer = next(
        ((code, one) for code, one in raw["responses"].items() if code.startswith("2")), nothing
    )
    shape: Mapping[str, Any] = (
        answer.get("content", {}).get("application/json", {}).get("schema", {})
    )
    return Operation(
        method=method.upper(),
        path=path,
        text=raw.get("description", ""),
        parameters=tuple(
            Field(p["name"], _kind(schema, p["schema"]), p.get("required", False),
                  p.get("description", ""))
            for p in raw.get("parameters", [])
        ),
        body=_fields(schema, body.get("schema", {})),
        answer=_fields(schema, shape),
        answer_status=code,
        open={} in raw.get("security", [{}]) or raw.get("security") == [],
    )  # fmt: skip


def _resolved(schema: Mapping[str, Any], shape: Mapping[str, Any]) -> Mapping[str, Any]:
    """Follow references and single-element combinations to the shape itself."""
    while True:
        if "$ref" in shape:
            shape = schema["components"]["schemas"][shape["$ref"].rsplit("/", 1)[1]]
        elif len(shape.get("allOf", [])) == 1:
            shape = shape["allOf"][0]
        elif shape.get("type") == "array":
            shape = shape["items"]
        else:
            return shape


def _fields(schema: Mapping[str, Any], shape: Mapping[str, Any]) -> tuple[Field, ...]:
    found = _resolved(schema, shape) if shape else {}
    required = set(found.get("required", []))
    return tuple(
        Field(name, _kind(schema, one), name in required, one.get("description", ""))
        for name, one in found.get("properties", {}).items()
    )


def _kind(schema: Mapping[str, Any], shape: Mapping[str, Any]) -> str:
    if shape.get("type") == "array":
        return f"list of {_kind(schema, shape['items'])}"
    found = _resolved(schema, shape)
    if "enum" in found:
        return " | ".join(str(one) for one in found["enum"])
    kind = str(found.get("format") or found.get("type") or "object")
    return f"{kind} or null" if found.get("nullable") else kind


@lru_cache(maxsize=1)
def _schema() -> dict[str, Any]:
    generator: Any = SchemaGenerator
    schema: dict[str, Any] = generator().get_schema(request=None, public=True)
    return schema


@require_safe
def page(request: HttpRequest) -> HttpResponse:
    """Show the API to people who write programs."""
    context = {"section": "docs", "operations": operations(_schema())}
    return render(request, "docs/rest.html", context)

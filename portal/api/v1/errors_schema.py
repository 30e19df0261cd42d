"""Puts the one shape of errors into the OpenAPI schema, for every operation alike."""

from __future__ import annotations

from typing import Any

TEXT = {"type": "string"}
ERROR = {
    "type": "object",
    "required": ["type", "errors"],
    "properties": {
        "type": {"type": "string", "enum": ["validation_error", "client_error", "server_error"]},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["code", "detail", "attr"],
                "properties": {
                    "code": {**TEXT, "description": "Stable; programs may rely on it."},
                    "detail": {**TEXT, "description": "For people."},
                    "attr": {**TEXT, "nullable": True, "description": "The field it is about."},
                },
            },
        },
    },
}
MEANINGS = {
    "400": "The body or a parameter is wrong.",
    "401": "No session and no live key.",
    "403": "Signed in, but without the right; or a key that tries to write.",
    "404": "Not there, or somebody else's.",
    "405": "The address has no such method.",
    "406": "Only JSON is answered.",
    "415": "Only JSON is read.",
    "429": "Too many; see Retry-After.",
    "503": "A store is away; see Retry-After.",
}


def add_errors(result: dict[str, Any], **_rest: object) -> dict[str, Any]:
    """Add the error component and every status that uses it."""
    result.setdefault("components", {}).setdefault("schemas", {})["Error"] = ERROR
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    for item in result.get("paths", {}).values():
        for operation in item.values():
            if isinstance(operation, dict) and "responses" in operation:
                for code, meaning in MEANINGS.items():
                    operation["responses"].setdefault(
                        code, {"description": meaning, "content": content}
                    )
    return result

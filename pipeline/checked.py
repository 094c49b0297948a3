"""Values of a configuration as what they should be, or one line that names the key and what is allowed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from pipeline.bounds import check_bounds
from pipeline.compose import Tree, without_credentials
from pipeline.records.failure import InputError

T = TypeVar("T")

_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "a string",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "dataclass_type": "a mapping",
}


def mapping(value: object, key: str) -> Tree:
    if not isinstance(value, dict):
        raise InputError(f"{key}: must be a mapping, not {shown(value)}")
    return dict(value)


def value_of(kind: type[T], value: object, key: str) -> T:
    """``value`` as a ``kind``, without conversions such as "3" or true to a number."""
    try:
        # Through JSON because only there a strict check takes a list for a tuple.
        return TypeAdapter(kind).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        raise InputError(_said(error.errors(include_url=False)[0], key)) from None


def record_of(kind: type[T], value: object, key: str, *, name: str | None = None, beside: Iterable[str] = ()) -> T:
    """``value`` as a record; ``name`` is its key in the tree; ``beside`` are keys that belong there too."""
    body = mapping(value, key)
    allowed = [field.name for field in fields(kind) if name is None or field.name != "name"]  # type: ignore[arg-type]
    for unknown in body:
        if unknown not in allowed:
            raise InputError(f"{key}.{unknown}: unknown key; known: {', '.join([*allowed, *beside])}")
    record = value_of(kind, body if name is None else {**body, "name": name}, key)
    check_bounds(record, key)
    return record


def _said(error: ErrorDetails, key: str) -> str:
    """One of pydantic's errors as ``key: message``."""
    path = list(error["loc"])
    wanted = _WANTED.get(error["type"])
    if wanted and path and path[-1] in ("bool", "int", "float", "str"):  # a union of scalars: pydantic tried each
        path.pop()
        wanted = "a number, a string, or true or false"
    for step in path:
        key += f"[{step}]" if isinstance(step, int) else f".{step}"
    if error["type"] == "missing":
        return f"{key}: must be set"
    if error["type"] == "literal_error":
        wanted = f"one of {error['ctx']['expected'].replace(' or ', ', ')}"
    hint = ""
    if isinstance(error["input"], bool) and error["type"] in ("string_type", "literal_error"):
        hint = " (YAML reads bare off and no as false, on and yes as true: quote it)"
    message = f"must be {wanted}, not {shown(error['input'])}" if wanted else error["msg"]
    return f"{key}: {message}{hint}"


def shown(value: object) -> str:
    return without_credentials(json.dumps(value, ensure_ascii=False))[:80]

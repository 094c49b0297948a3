"""One entry of a prompt file and the checks every format makes of it; each failure is one line that says where."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pipeline.records.failure import InputError
from pipeline.workloads.prompt import Prompt


@dataclass(frozen=True, slots=True)
class Found:
    """A prompt and where it stands: ``path:LINE``, or ``path: entry N``."""

    where: str
    prompt: Prompt


def numbered_lines(label: str, stream: Iterable[bytes]) -> Iterator[tuple[int, str]]:
    """Lines of UTF-8 text, numbered from 1, without their ends or a byte order mark."""
    for number, raw in enumerate(stream, start=1):
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise InputError(f"{label}:{number}: not UTF-8 text ({error.reason})") from None
        yield number, line.rstrip("\r\n")


def json_lines(label: str, stream: Iterable[bytes]) -> Iterator[tuple[str, Mapping[str, object]]]:
    """The JSON object of each line that is not blank, with where it stands."""
    for number, line in numbered_lines(label, stream):
        if not line.strip():
            continue
        where = f"{label}:{number}"
        yield where, mapping(where, "the line", parsed(where, line))


def parsed(where: str, text: str) -> object:
    """The value of a JSON text."""
    try:
        value: object = json.loads(text)
    except json.JSONDecodeError as error:
        place = f"column {error.colno}" if error.lineno == 1 else f"line {error.lineno} column {error.colno}"
        raise InputError(f"{where}: not valid JSON: {error.msg} at {place}") from None
    except (ValueError, RecursionError) as error:  # integers of thousands of digits; nesting without end
        raise InputError(f"{where}: JSON that cannot be read: {type(error).__name__}") from None
    return value


def value_of(where: str, entry: Mapping[str, object], key: str) -> object:
    """``entry[key]``, which must be there."""
    if key not in entry:
        raise InputError(f"{where}: key {key!r} is missing; found: {', '.join(map(repr, list(entry)[:8])) or 'none'}")
    return entry[key]


def mapping(where: str, what: str, value: object) -> Mapping[str, object]:
    """``value`` as a JSON object."""
    if not isinstance(value, dict):
        raise InputError(f"{where}: {what} must be a JSON object, not {kind(value)}")
    return value


def items(where: str, what: str, value: object) -> list[object]:
    """``value`` as a JSON list."""
    if not isinstance(value, list):
        raise InputError(f"{where}: {what} must be a list, not {kind(value)}")
    return value


def text(where: str, what: str, value: object, *, empty: bool = False) -> str:
    """``value`` as text that can be encoded; blank text only where ``empty`` says so."""
    if not isinstance(value, str):
        raise InputError(f"{where}: {what} must be a string, not {kind(value)}")
    if not empty and not value.strip():
        raise InputError(f"{where}: {what} is empty")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InputError(f"{where}: {what} holds half of a surrogate pair, which is no character") from None
    return value


def identifier(where: str, what: str, value: object) -> str:
    """``value`` as an id: text or a whole number."""
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if not isinstance(value, str):
        raise InputError(f"{where}: {what} must be a string or a whole number, not {kind(value)}")
    return text(where, what, value)


def kind(value: object) -> str:
    """The JSON name of a value's type."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")

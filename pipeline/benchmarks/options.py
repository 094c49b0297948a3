"""``key=value`` arguments as the options of one benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TypeVar, get_args, get_type_hints

from pipeline.records.failure import InputError

T = TypeVar("T")


def split(arguments: Sequence[str]) -> dict[str, str]:
    """Raises InputError for an argument without ``=`` and for a key given twice."""
    given: dict[str, str] = {}
    for argument in arguments:
        key, equals, value = argument.partition("=")
        if not equals or not key:
            raise InputError(f"{argument}: arguments are KEY=VALUE")
        if key in given:
            raise InputError(f"{key}: given twice")
        given[key] = value
    return given


def parse(kind: type[T], given: Mapping[str, str]) -> T:
    """The dataclass ``kind`` from ``given``. Its fields are strings or whole numbers of at least 1; some may be None.

    Raises InputError for a key that it lacks and for a value that is no whole number where one is needed.
    """
    hints = get_type_hints(kind)
    allowed = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    values: dict[str, str | int] = {}
    for key, value in given.items():
        if key not in allowed:
            raise InputError(f"{key}: unknown; allowed are {', '.join([*allowed, 'output_dir'])}")
        if int in (hints[key], *get_args(hints[key])):
            if not (value.isascii() and value.isdigit() and int(value) >= 1):
                raise InputError(f"{key}={value}: must be a whole number of at least 1")
            values[key] = int(value)
        else:
            values[key] = value
    return kind(**values)

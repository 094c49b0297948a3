"""Records to JSON and back, checked: the driver's only use of pydantic on records."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import Field, TypeAdapter, ValidationError
from pydantic_core import from_json, to_json

from pipeline.records.failure import Failure
from pipeline.records.forecast import CellForecast
from pipeline.records.measurement import Baseline, Measurement

T = TypeVar("T")

Record = Measurement | Baseline | CellForecast
"""What a sweep's truth consists of, told apart by ``kind``."""

SCHEMA_VERSION = 2
"""The ``schema_version`` of the records this program writes, and the only one it reads."""

_RECORD: TypeAdapter[Record] = TypeAdapter(Annotated[Record, Field(discriminator="kind")])
_FAILURE: TypeAdapter[Failure] = TypeAdapter(Failure)


class UnreadableError(ValueError):
    """A file that holds no record this program knows; one line says why."""


def encode(record: Record | Failure) -> bytes:
    """JSON that any reader takes: a number that is not finite is the string ``"NaN"`` or ``"Infinity"``."""
    return to_json(record, inf_nan_mode="strings")


def decode(content: bytes) -> Record:
    """The measurement, baseline or forecast in ``content``. Raises UnreadableError."""
    try:
        record = _validated(_RECORD, content)
    except UnreadableError as error:
        version = _version(content)  # what another program wrote may well lack a field of ours: that is not the news
        raise error if version in (None, SCHEMA_VERSION) else _other(version) from None
    if record.schema_version != SCHEMA_VERSION:
        raise _other(record.schema_version)
    return record


def decode_failure(content: bytes) -> Failure:
    """The failure in ``content``. Raises UnreadableError."""
    return _validated(_FAILURE, content)


def _version(content: bytes) -> int | None:
    """The ``schema_version`` that ``content`` states, if it is JSON and states one."""
    try:
        document = from_json(content)
    except ValueError:
        return None
    version = document.get("schema_version") if isinstance(document, dict) else None
    return version if isinstance(version, int) else None


def _other(version: int | None) -> UnreadableError:
    return UnreadableError(f"schema_version {version}, this program reads {SCHEMA_VERSION}")


def _validated(adapter: TypeAdapter[T], content: bytes) -> T:
    try:
        return adapter.validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise UnreadableError(f"{where}: {first['msg']}" if where else first["msg"]) from None

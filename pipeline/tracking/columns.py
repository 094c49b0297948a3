"""Columns of a table from the fields of a record, so that a new field is a new column and nothing is named twice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

import pyarrow as pa


def columns(record: type, *, prefix: str = "", leave_out: Iterable[str] = ()) -> list[pa.Field]:
    """An Arrow field per field of a dataclass. Raises TypeError for a type that has no column."""
    hints = get_type_hints(record)
    skipped = frozenset(leave_out)
    return [pa.field(prefix + f.name, arrow_type(hints[f.name])) for f in fields(record) if f.name not in skipped]


def arrow_type(hint: object) -> pa.DataType:
    """int, float, bool, str, their Literals, ``X | None``, ``tuple[X, ...]``, records; seeds are 64 bits wide."""
    simple = {bool: pa.bool_(), int: pa.int64(), float: pa.float64(), str: pa.string()}
    if isinstance(hint, type) and hint in simple:
        return simple[hint]
    if isinstance(hint, type) and is_dataclass(hint):
        return pa.struct(columns(hint))
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return arrow_type(type(arguments[0]))
    if origin in (Union, UnionType):
        (inner,) = (argument for argument in arguments if argument is not type(None))
        return arrow_type(inner)
    if origin is tuple and arguments[1:] == (...,):
        return pa.list_(arrow_type(arguments[0]))
    raise TypeError(f"no column for {hint}")

"""How records are checked when they are read from a file: keys nobody declared are refused."""

from __future__ import annotations

from collections.abc import Mapping

STRICT: Mapping[str, str] = {"extra": "forbid"}
"""A record's ``__pydantic_config__``. Plain data, so that records need no pydantic."""

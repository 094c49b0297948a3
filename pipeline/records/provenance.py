"""Where and with what a measurement was made."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Enough to know whether two measurements may be compared."""

    created: str
    host: str
    device: str
    accelerator: str
    threads: int
    dtype: str
    engine: str
    python: str
    torch: str
    transformers: str
    driver: str
    target_revision: str
    draft_revision: str

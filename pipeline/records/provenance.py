"""Where and with what a measurement was made."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Provenance:
    """Enough to know whether two measurements may be compared. ``device_id`` tells apart a machine's accelerators.

    ``graphs``: the target's forwards were replayed CUDA graphs.
    """

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
    device_id: str = ""
    graphs: bool = False

    def same_conditions(self, other: Provenance) -> bool:
        """Whether target, device and software are the same: only then may two measurements share a test."""
        return replace(self, created="", draft_revision="") == replace(other, created="", draft_revision="")

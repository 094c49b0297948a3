"""The machine, the versions and the load that a benchmark's figures hold for."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime

from pipeline.engines.contract import EngineFacts


def conditions(facts: EngineFacts, load_before: float) -> dict[str, str | int | float]:
    """``load_before``: the machine's load average before the benchmark added to it (``load``)."""
    return {
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": facts.device,
        "accelerator": facts.accelerator,
        "cpus": cpus(),
        "threads": facts.threads,
        "dtype": facts.dtype,
        "engine": facts.engine,
        "target_revision": facts.target_revision,
        "python": platform.python_version(),
        "torch": facts.torch,
        "transformers": facts.transformers,
        "driver": facts.driver,
        "load_before": load_before,
        "load_after": load(),
    }


def cpus() -> int:
    """The CPUs that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load() -> float:
    """The load average of the last minute; 0 where the system has none."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else 0.0

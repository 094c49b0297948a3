"""How much more memory this process may take: the machine's, or less where a container has its own limit."""

from __future__ import annotations

from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUPS = (
    (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")),
    (Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"), Path("/sys/fs/cgroup/memory/memory.usage_in_bytes")),
)
"""(limit, usage) of control groups, version 2 and 1, as a container sees its own (kernel.org, admin-guide)."""


def free_bytes() -> int:
    """Bytes that can be had without swapping; 0 where the system does not tell them."""
    free = _available()
    for limit, usage in CGROUPS:
        if limit.is_file() and usage.is_file():
            most, used = limit.read_text().strip(), usage.read_text().strip()
            if most.isdigit() and used.isdigit():  # no limit reads "max"
                free = min(free, max(0, int(most) - int(used)))
    return free


def _available() -> int:
    if MEMINFO.is_file():
        for line in MEMINFO.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 0

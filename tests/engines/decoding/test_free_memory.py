"""Free memory is the machine's, or less where a container has a limit."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.engines.decoding import free_memory

MEMINFO = "MemTotal: 16 kB\nMemFree: 1 kB\nMemAvailable:       8 kB\n"


@pytest.mark.parametrize(
    ("meminfo", "limit", "usage", "free"),
    [
        (MEMINFO, None, None, 8 * 1024),
        (MEMINFO, "max\n", "100\n", 8 * 1024),
        (MEMINFO, "9000\n", "100\n", 8 * 1024),
        (MEMINFO, "5000\n", "100\n", 4900),
        (MEMINFO, "5000\n", "5100\n", 0),
        ("MemTotal: 16 kB\n", "5000\n", "100\n", 0),
        (None, "5000\n", "100\n", 0),
    ],
    ids=["machine", "no limit", "wide limit", "limit", "over the limit", "old kernel", "no meminfo"],
)
def test_free_memory_is_what_the_system_and_the_container_leave(
    tmp_path: Path, monkeypatch, meminfo, limit, usage, free
):
    files = {"meminfo": meminfo, "limit": limit, "usage": usage}
    for name, text in files.items():
        if text is not None:
            (tmp_path / name).write_text(text)
    monkeypatch.setattr(free_memory, "MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(free_memory, "CGROUPS", ((tmp_path / "limit", tmp_path / "usage"),))
    assert free_memory.free_bytes() == free

"""Files that are there whole or not at all: written beside their place, flushed to disk, then renamed into it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TEMPORARY_SUFFIX = ".tmp"
"""What a file is called until it is whole. Anything with this suffix is left over from a crash."""


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yields a temporary path in ``path``'s folder; on a clean exit what was written there becomes ``path``.

    The folder is created where it is missing. On an error the temporary file is removed and ``path`` stays as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{os.getpid()}{TEMPORARY_SUFFIX}")
    try:
        yield temporary
        _flush(temporary)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
    _flush_folder(path.parent)


def write_atomically(path: Path, content: bytes) -> None:
    """Replace ``path`` by a file with ``content``. Raises OSError when the disk does not take it."""
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def remove_leftovers(folder: Path) -> int:
    """Remove the temporary files a crash left in ``folder``; their number."""
    leftovers = list(folder.glob(f"*{TEMPORARY_SUFFIX}"))
    for leftover in leftovers:
        leftover.unlink(missing_ok=True)
    return len(leftovers)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _flush_folder(folder: Path) -> None:
    """The rename itself must survive a power cut; some network file systems cannot flush a folder."""
    with suppress(OSError):
        _flush(folder)

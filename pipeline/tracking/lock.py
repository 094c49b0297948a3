"""One driver at a time may write a sweep."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.records.failure import InputError

_NAME = "driver.lock"
_TRIES = 3
_UNSUPPORTED = frozenset({errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP})


class FolderLock:
    """Held from construction to ``release``; the operating system lets it go when the process dies, however it dies.

    Raises InputError that names the process which holds it. Where the file system knows no locks, one line to
    ``warn`` says so and nothing is held.
    """

    def __init__(self, folder: Path, warn: Callable[[str], None]) -> None:
        path = folder / _NAME
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise InputError(f"{folder}: the sweep cannot be written there: {error.strerror}") from None
        try:
            _take(handle)
        except OSError as error:
            holder = os.pread(handle, 200, 0).decode(errors="replace").strip()
            os.close(handle)
            if error.errno not in _UNSUPPORTED:
                raise InputError(
                    f"{folder}: {holder or 'another process'} is writing this sweep; wait for it or stop it"
                ) from None
            warn(f"{folder}: the file system has no locks, so two drivers could write this sweep at once")
            self._handle: int | None = None
            return
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)
        self._handle = handle

    def release(self) -> None:
        """Let go; a second call does nothing. The file stays: removing it would let two drivers in."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


def _take(handle: int) -> None:
    """Tried a few times: ``is_held`` of another process holds the lock for an instant."""
    for attempt in range(_TRIES):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if attempt == _TRIES - 1:
                raise
            time.sleep(0.05)


def is_held(folder: Path) -> bool:
    """Whether some driver is writing the sweep in ``folder`` now. False where there is no such folder."""
    try:
        handle = os.open(folder / _NAME, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(handle)
    return False


@contextmanager
def waiting_for(path: Path) -> Iterator[None]:
    """Wait for the lock file ``path`` and hold it meanwhile. Where the file system knows no locks, go on without."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)

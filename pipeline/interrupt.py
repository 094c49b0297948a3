"""SIGTERM and SIGINT ask a sweep to end in order; a second SIGINT ends it at once."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Self


class Interrupt:
    """Notes the signal; the sweep's loop looks at ``requested`` at least once a second.

    Install it after Ray has started: Ray installs handlers of its own. While ``closing``, a second SIGINT is only
    noted too: the views are being brought up to date, which takes seconds.
    """

    def __init__(self) -> None:
        self.signal: int | None = None
        self.closing = False
        self._before: dict[int, object] = {}

    @property
    def requested(self) -> bool:
        return self.signal is not None

    @property
    def exit_code(self) -> int:
        """128 + the signal's number, as a shell would report it; 0 without one."""
        return 0 if self.signal is None else 128 + self.signal

    def __enter__(self) -> Self:
        self.install()
        return self

    def install(self) -> None:
        """Take both signals over; calling it again takes them back from whoever installed handlers since."""
        for number in (signal.SIGTERM, signal.SIGINT):
            before = signal.signal(number, self._note)
            self._before.setdefault(number, before)

    def __exit__(self, *_: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal == signal.SIGINT and number == signal.SIGINT and not self.closing:
            raise KeyboardInterrupt
        self.signal = number

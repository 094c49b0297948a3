"""Who is told how far a head has come, and how it is ended early."""

from __future__ import annotations

from typing import Protocol


class Stopped(Exception):  # noqa: N818 (nothing went wrong)
    """A signal asked to end; what was made so far is kept."""


class TrainingProgress(Protocol):
    """Shows what happens. Never raises for what it is told."""

    def note(self, text: str) -> None:
        """What is being done now; may come often."""

    def say(self, text: str) -> None:
        """What has been done, to be kept on the screen."""

    def warn(self, text: str) -> None:
        """Something the user should know, in one line."""

"""A prompt: the messages of a conversation up to a user's turn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

Role = Literal["system", "user", "assistant"]
ROLES: tuple[Role, ...] = get_args(Role)


@dataclass(frozen=True, slots=True)
class Message:
    """One turn. ``content`` is plain text."""

    role: Role
    content: str


@dataclass(frozen=True, slots=True)
class Prompt:
    """A conversation whose last message is the user's.

    ``awaits`` are the ascending indices of assistant messages in ``messages`` whose content is unknown ("") until the
    target itself has answered what precedes them; empty: ready to render.
    """

    id: str
    messages: tuple[Message, ...]
    awaits: tuple[int, ...] = ()

"""Chat JSONL, the form of the bundled prompts: one conversation a line, up to the user's turn to be answered.

``{"id": "chat-001", "messages": [{"role": "user", "content": "..."}]}``. Roles are system, user and assistant; the
last message is the user's. Each line is one prompt, so ``turns`` has nothing to choose; other keys are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pipeline.records.failure import InputError
from pipeline.workloads.entry import Found, identifier, items, json_lines, mapping, text, value_of
from pipeline.workloads.prompt import ROLES, Message, Prompt


def chat_prompts(label: str, stream: Iterable[bytes]) -> Iterator[Found]:
    """The prompts of a file in order. Raises InputError with the line number."""
    for where, entry in json_lines(label, stream):
        name = identifier(where, "'id'", value_of(where, entry, "id"))
        turns = items(where, "'messages'", value_of(where, entry, "messages"))
        messages = tuple(_message(where, index, turn) for index, turn in enumerate(turns))
        if not messages:
            raise InputError(f"{where}: 'messages' is empty")
        if messages[-1].role != "user":
            raise InputError(f"{where}: the last message must be from the user, not the {messages[-1].role}")
        yield Found(where, Prompt(name, messages))


def _message(where: str, index: int, value: object) -> Message:
    what = f"messages[{index}]"
    turn = mapping(where, what, value)
    role = value_of(f"{where}: {what}", turn, "role")
    for known in ROLES:
        if role == known:
            return Message(known, text(where, f"{what}.content", value_of(f"{where}: {what}", turn, "content")))
    raise InputError(f"{where}: {what}.role must be one of {', '.join(ROLES)}, not {repr(role)[:60]}")

"""ShareGPT JSON: one list of recorded conversations.

``[{"id": "abc", "conversations": [{"from": "human", "value": "..."}, {"from": "gpt", "value": "..."}]}]``. Each user
turn becomes a prompt after the recorded answers: ``abc``, then ``abc/2`` and so on. Answers that come before the first
user turn (the file's long conversations were cut into parts) are dropped, and an entry without a user turn gives no
prompt. Other keys are ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO

from pipeline.records.failure import InputError
from pipeline.workloads.entry import Found, identifier, items, mapping, parsed, text, value_of
from pipeline.workloads.prompt import Message, Prompt, Role

_ROLES: dict[str, Role] = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "assistant": "assistant",
    "system": "system",
}


def sharegpt_prompts(label: str, stream: IO[bytes], *, first_turn_only: bool) -> Iterator[Found]:
    """The prompts of a file in order. Raises InputError with the entry's index, counted from 0."""
    try:
        content = stream.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{label}: not UTF-8 text ({error.reason} at byte {error.start})") from None
    for index, value in enumerate(items(label, "the file", parsed(label, content))):
        where = f"{label}: entry {index}"
        entry = mapping(where, "the entry", value)
        name = identifier(where, "'id'", value_of(where, entry, "id"))
        turns = items(where, "'conversations'", value_of(where, entry, "conversations"))
        messages = _from_first_question([_message(where, place, turn) for place, turn in enumerate(turns)])
        asked = [place for place, message in enumerate(messages) if message.role == "user"]
        for turn, place in enumerate(asked[:1] if first_turn_only else asked, start=1):
            yield Found(where, Prompt(name if turn == 1 else f"{name}/{turn}", tuple(messages[: place + 1])))


def _from_first_question(messages: list[Message]) -> list[Message]:
    first = next((place for place, message in enumerate(messages) if message.role == "user"), len(messages))
    return [message for message in messages[:first] if message.role == "system"] + messages[first:]


def _message(where: str, place: int, value: object) -> Message:
    what = f"conversations[{place}]"
    turn = mapping(where, what, value)
    speaker = value_of(f"{where}: {what}", turn, "from")
    if not isinstance(speaker, str) or speaker not in _ROLES:
        raise InputError(f"{where}: {what}.from must be one of {', '.join(_ROLES)}, not {repr(speaker)[:60]}")
    # Recorded answers are sometimes empty; a question is not.
    role = _ROLES[speaker]
    said = text(where, f"{what}.value", value_of(f"{where}: {what}", turn, "value"), empty=role != "user")
    return Message(role, said)

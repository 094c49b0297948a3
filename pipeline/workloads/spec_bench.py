"""Spec-Bench JSONL (github.com/hemingkx/Spec-Bench): one question of one or more user turns a line.

``{"question_id": 81, "category": "writing", "turns": ["...", "..."]}``; other keys (``reference``) are ignored. The
first turn is prompt ``81``. The second is prompt ``81/2``: the file has no answers, so the assistant's earlier turns
are awaited.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from pipeline.records.failure import InputError
from pipeline.workloads.entry import Found, identifier, items, json_lines, text, value_of
from pipeline.workloads.prompt import Message, Prompt


def spec_bench_prompts(
    label: str, stream: Iterable[bytes], categories: Sequence[str], *, first_turn_only: bool
) -> Iterator[Found]:
    """The prompts of ``categories`` (empty: all) in order.

    Raises InputError with the line number, and, at the end of the file, for a category that it does not have.
    """
    seen: dict[str, None] = {}
    for where, entry in json_lines(label, stream):
        name = identifier(where, "'question_id'", value_of(where, entry, "question_id"))
        category = text(where, "'category'", value_of(where, entry, "category"))
        turns = items(where, "'turns'", value_of(where, entry, "turns"))
        asked = [text(where, f"turns[{index}]", turn) for index, turn in enumerate(turns)]
        if not asked:
            raise InputError(f"{where}: 'turns' is empty")
        seen[category] = None
        if categories and category not in categories:
            continue
        for turn in range(1 if first_turn_only else len(asked)):
            yield Found(where, _prompt(name, asked[: turn + 1]))
    unknown = [category for category in categories if category not in seen]
    if unknown and seen:
        raise InputError(f"{label}: no category {unknown[0]!r}; available: {', '.join(map(repr, sorted(seen)))}")


def _prompt(name: str, asked: Sequence[str]) -> Prompt:
    messages = [Message("user", asked[0])]
    for question in asked[1:]:
        messages += [Message("assistant", ""), Message("user", question)]
    awaits = tuple(range(1, len(messages), 2))
    return Prompt(name if len(asked) == 1 else f"{name}/{len(asked)}", tuple(messages), awaits)

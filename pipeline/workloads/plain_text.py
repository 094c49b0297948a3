"""Plain text: each paragraph is one prompt, sent as a single user message.

Blank lines (or lines of only spaces) separate paragraphs; lines within one are kept as they are. Prompts are named
by the line their paragraph begins on: ``line-1``, ``line-7``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from pipeline.workloads.entry import Found, numbered_lines
from pipeline.workloads.prompt import Message, Prompt


def text_prompts(label: str, stream: Iterable[bytes]) -> Iterator[Found]:
    """The prompts of a file in order. Raises InputError with the line number of what is not UTF-8."""
    paragraph: list[str] = []
    first = 0
    for number, line in numbered_lines(label, stream):
        if line.strip():
            first = first if paragraph else number
            paragraph.append(line)
        elif paragraph:
            yield _found(label, first, paragraph)
            paragraph = []
    if paragraph:
        yield _found(label, first, paragraph)


def _found(label: str, first: int, paragraph: list[str]) -> Found:
    return Found(f"{label}:{first}", Prompt(f"line-{first}", (Message("user", "\n".join(paragraph)),)))

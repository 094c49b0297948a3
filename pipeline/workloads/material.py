"""Real text that prompts are lengthened with: what requests with long contexts carry along."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.records.cell import Workload
from pipeline.records.failure import InputError
from pipeline.workloads.load import load_prompts
from pipeline.workloads.prompt import Prompt

_SETS = ("summarize", "translate", "code_edit", "chat", "creative", "math")
"""The order in which bundled sets are drawn on; the first three carry texts enough to begin with."""
_LEADING = 3
_GOLDEN = 0.6180339887498949
_NEAR = 200
"""Characters within which a text's beginning is moved to where a paragraph or a word begins."""
_BREAK = re.compile(r"\n\s*\n")
_SPACE = re.compile(r"\s+")


@dataclass(frozen=True)
class Material:
    """``circles``: each a text in pieces, read round from anywhere; together they are all there is, none twice."""

    circles: tuple[tuple[str, ...], ...]

    @property
    def content_hash(self) -> str:
        return hashlib.sha256(json.dumps(self.circles, ensure_ascii=False).encode()).hexdigest()

    def for_prompt(self, prompt: Prompt, place: int) -> str:
        """All of it for the prompt at ``place`` of its set: each place begins elsewhere.

        Places spread evenly however many there are (multiples of the golden ratio, modulo 1). Pieces that the prompt
        itself holds are left out.
        """
        said = "\n\n".join(message.content for message in prompt.messages)
        share = place * _GOLDEN % 1.0
        read = (part for circle in self.circles for part in _from(share, circle))
        return "\n\n".join(text for piece, text in read if text and piece not in said)


def read_material(workload: Workload) -> Material:
    """What ``workload``'s prompts are lengthened with: its ``context_path``, else texts of the bundled sets.

    Of a bundled prompt that is the first message's text without its first paragraph, which says what to do with it.
    Code and translations are lengthened with their like first. Raises InputError for a file that cannot be used.
    """
    if workload.context_path is not None:
        return Material(((_read(workload.context_path, workload.name),),))
    own = workload.path or workload.name
    leads = own if workload.format == "bundled" and own in _SETS[:_LEADING] else _SETS[0]
    circles = []
    for name in (leads, *(each for each in _SETS if each != leads)):
        prompts = load_prompts(Workload(name=name)).prompts
        texts = [prompt.messages[0].content.partition("\n\n")[2].strip() for prompt in prompts]
        circles.append(tuple(dict.fromkeys(text for text in texts if text)))
    return Material(tuple(circle for circle in circles if circle))


def _read(path: str, workload: str) -> str:
    try:
        text = Path(path).expanduser().read_text(encoding="utf-8-sig")
    except (
        OSError,
        ValueError,
        RuntimeError,
    ) as error:  # a NUL in the path; an unknown ~user
        reason = error.strerror if isinstance(error, OSError) else str(error)
        if isinstance(error, UnicodeDecodeError):
            reason = "not UTF-8 text"
        raise InputError(f"{path}: cannot be read ({reason}); workload {workload} lengthens prompts with it") from None
    if not text.strip():
        raise InputError(f"{path}: holds no text; workload {workload} lengthens prompts with it")
    return text.strip()


def _from(share: float, pieces: Sequence[str]) -> list[tuple[str, str]]:
    """All of ``pieces``, read round from ``share`` of their length on, as (piece, what is read of it).

    It begins where a paragraph does, or else a word, if one does nearby.
    """
    at = int(share * sum(map(len, pieces)))
    first = 0
    while at >= len(pieces[first]):
        at -= len(pieces[first])
        first += 1
    piece = pieces[first]
    if at:
        found = _BREAK.search(piece, at, at + _NEAR) or _SPACE.search(piece, at, at + _NEAR)
        at = found.end() if found else at
    rest = [(other, other) for other in (*pieces[first + 1 :], *pieces[:first])]
    return [(piece, piece[at:]), *rest, (piece, piece[:at].rstrip())]

"""What is learned from: answers to the workload's prompts and to prompts that the target writes itself."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pipeline.engines.contract import Request
from pipeline.records.cell import Sampling, Workload
from pipeline.records.failure import InputError
from pipeline.records.head_training import HeadTraining
from pipeline.training.prompts import Novelty, Opening, cleaned
from pipeline.training.teacher import Lesson, Teacher
from pipeline.workloads.arrange import arrange
from pipeline.workloads.load import load_prompts
from pipeline.workloads.prompt import Message, Prompt
from pipeline.workloads.render import render

GREEDY = Sampling(name="greedy")
WARM = Sampling(name="warm", temperature=1.0, min_p=0.02)
LONGEST_PROMPT = 1024
"""Tokens. Longer prompts take long to read, and the head looks at no more of them than of others."""
MOST = 64
"""Prompts of a workload that are held out, and that are watched, at most."""
TEXT_TOKENS = 512
_MOST_WORDS = 3


def read_text(path: Path) -> str:
    """Raises InputError for a file that cannot be read as text."""
    try:
        return path.expanduser().read_text(encoding="utf-8")
    except (OSError, ValueError, RuntimeError) as error:
        raise InputError(f"collect.text: {path}: cannot be read ({error})") from None


@dataclass(frozen=True)
class Asked:
    """A prompt ready to answer. ``said`` is what the user says last."""

    id: str
    tokens: tuple[int, ...]
    said: str


@dataclass(frozen=True)
class Split:
    """A workload's prompts, by what they are for; all different. ``left_out``: too long, or awaiting answers."""

    workload: Workload
    held_out: tuple[Asked, ...]
    watched: tuple[Asked, ...]
    learned: tuple[Asked, ...]
    left_out: int


def split(workload: Workload, settings: HeadTraining, teacher: Teacher) -> Split:
    """The first of the arranged prompts are held out, the next watched. Raises InputError if one share is empty."""
    limit = min(workload.max_prompt_tokens or LONGEST_PROMPT, teacher.max_context - workload.output_tokens - 16)
    asked = []
    prompts = arrange(load_prompts(workload).prompts, settings.seed)
    for prompt in prompts:
        if not prompt.awaits:
            tokens = render(prompt, settings.target, teacher.tokenizer)
            if len(tokens) <= limit:
                asked.append(Asked(f"{workload.name}/{prompt.id}", tokens, prompt.messages[-1].content))
    unique = tuple({each.tokens: each for each in asked}.values())
    held = min(MOST, round(len(unique) * settings.collect.held_out))
    watched = min(MOST, round(len(unique) * settings.collect.watched))
    if held < 1 or watched < 1 or held + watched > len(unique):
        raise InputError(
            f"workloads.{workload.name}: {len(unique)} usable prompts cannot be shared out as collect.held_out="
            f"{settings.collect.held_out} and collect.watched={settings.collect.watched}: each needs one at least"
        )
    rest = unique[held + watched :]
    return Split(workload, unique[:held], unique[held : held + watched], rest, len(prompts) - len(unique))


def requests_for(asked: Sequence[Asked], most: int, seed: int) -> list[Request]:
    """To be answered in up to ``most`` tokens."""
    return [_request(each.id, each.tokens, most, seed + number) for number, each in enumerate(asked)]


def _request(name: str, tokens: Sequence[int], most: int, seed: int) -> Request:
    return Request(request_id=name, prompt_id=name, tokens=tuple(tokens), max_new_tokens=most, seed=seed % 2**32)


class Writer:
    """Makes the target write prompts, and answer them, batch by batch; what a batch holds depends on its number."""

    def __init__(
        self, settings: HeadTraining, teacher: Teacher, splits: Sequence[Split], states: tuple[int, ...]
    ) -> None:
        self._settings = settings
        self._teacher = teacher
        self._opening = Opening(settings.target, teacher.tokenizer)
        self._special = [t for t in getattr(teacher.tokenizer, "all_special_tokens", []) if t.strip()]
        self._novelty = Novelty([asked.said for each in splits for asked in (*each.held_out, *each.watched)])
        self._beginnings = [asked.said.split() for each in splits for asked in each.learned]
        self._states = states
        self._answer_tokens = max(each.workload.output_tokens for each in splits)
        self._needs_words = not self._opening.tokens("")
        if self._needs_words and not self._beginnings:
            raise InputError(
                f"target {settings.target.name}: without a chat template, and with no prompt left to learn from, "
                "there is nothing that a prompt could begin with; lower collect.held_out or collect.watched"
            )

    def prompts(self, index: int, look: Callable[[int], None]) -> list[str]:
        """Prompts of batch ``index``, new ones only. Half of them begin as one of the workload's own does."""
        draw = random.Random(f"{self._settings.seed}:{index}")
        begun, requests = [], []
        for number in range(self._settings.collect.requests):
            begun.append(self._beginning(draw, self._needs_words or number % 2 == 1))
            tokens = self._opening.tokens(begun[-1])
            request = _request(str(number), tokens, self._settings.collect.prompt_tokens, draw.getrandbits(32))
            requests.append(replace(request, stop_token_ids=self._opening.stops))
        rows = self._teacher.write(requests, WARM, self._settings.collect.slots, look)
        texts = []
        for words, row in zip(begun, rows, strict=True):
            ended = row.finish in ("eos", "stop")
            said = self._teacher.tokenizer.decode(row.output[:-1] if ended else row.output)
            # Without a template nobody ends the turn: what was written is the beginning of a text to go on with.
            text = cleaned(words + said, self._special) if ended or not self._opening.stops else None
            if text is not None and self._novelty.admit(text):
                texts.append(text)
        return texts

    def known(self, texts: Sequence[str]) -> None:
        """These were written by an earlier start."""
        for text in texts:
            self._novelty.admit(text)

    def asked(self, texts: Sequence[str]) -> list[Asked]:
        """Prompts of one turn, ready to answer; those that are one as tokens only once."""
        target, tokenizer = self._settings.target, self._teacher.tokenizer
        found = {render(Prompt("written", (Message("user", text),)), target, tokenizer): text for text in texts}
        return [Asked(f"written/{number}", tokens, text) for number, (tokens, text) in enumerate(found.items())]

    def answers(self, asked: Sequence[Asked], greedy: bool, seed: int, look: Callable[[int], None]) -> list[Lesson]:
        if not asked:
            return []
        requests = requests_for(asked, self._answer_tokens, seed)
        return self._teacher.teach(
            requests, GREEDY if greedy else WARM, self._states, self._settings.collect.slots, look
        )

    def read(self, path: Path, look: Callable[[int], None]) -> list[Lesson]:
        """A text file, cut into pieces. Raises InputError for one that cannot be read."""
        tokens = self._teacher.tokenizer.encode(read_text(path), add_special_tokens=False)
        length = min(TEXT_TOKENS, self._teacher.max_context)
        lessons = []
        for first in range(0, len(tokens) - 2, length):
            piece = tokens[first : first + length]
            if len(piece) > 2:
                lessons.append(self._teacher.read(piece, self._states))
                look(1)
        return lessons

    def _beginning(self, draw: random.Random, wanted: bool) -> str:
        if not wanted or not self._beginnings:
            return ""
        words = draw.choice(self._beginnings)
        return " ".join(words[: draw.randint(1, _MOST_WORDS)])

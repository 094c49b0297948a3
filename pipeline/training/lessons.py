"""Lessons on disk, a file for each batch that the target wrote, and lessons as batches to learn from."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from pipeline.records.failure import InputError
from pipeline.tracking.atomic import remove_leftovers, replacing
from pipeline.training.recorder import Choices
from pipeline.training.teacher import Lesson


class LessonStore:
    """Files ``KIND-NNNNN.safetensors`` of a folder, each whole or not there.

    Kept because reading a text anew costs the target's whole forward; 2 bytes a number, 3.5 kB a token for three
    states of 576. They are mapped, not read: memory holds what is in use.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        remove_leftovers(folder)

    def add(self, kind: str, lessons: Sequence[Lesson], seconds: float, prompts: Sequence[str] = ()) -> None:
        """Keep a batch, what it took and the prompts written for it. Raises OSError when the disk does not take it."""
        tensors = {
            "lengths": torch.tensor([len(lesson.tokens) for lesson in lessons], dtype=torch.int32),
            "starts": torch.tensor([lesson.start for lesson in lessons], dtype=torch.int32),
            "tokens": torch.cat([lesson.tokens for lesson in lessons]),
            "states": torch.cat([lesson.states for lesson in lessons]),
            "ids": torch.cat([lesson.choices.ids for lesson in lessons]),
            "logits": torch.cat([lesson.choices.logits for lesson in lessons]),
        }
        about = {"seconds": str(seconds), "prompts": json.dumps(list(prompts))}
        with replacing(self._folder / f"{kind}-{self.count(kind):05}.safetensors") as path:
            save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, path, metadata=about)

    def count(self, kind: str) -> int:
        """Batches of ``kind``, which are numbered from 0 without a gap."""
        return len(self._files(kind))

    def load(self, kind: str) -> list[Lesson]:
        """All lessons of ``kind`` in order. Raises InputError for a file that cannot be read."""
        return [lesson for path in self._files(kind) for lesson in _read(path)]

    def prompts(self, kind: str) -> list[str]:
        """What was written for the batches of ``kind``."""
        return [text for path in self._files(kind) for text in json.loads(_about(path)["prompts"])]

    @property
    def seconds(self) -> float:
        """What all batches took."""
        return sum(float(_about(path)["seconds"]) for path in self._folder.glob("*.safetensors"))

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self._folder.glob("*.safetensors"))

    def _files(self, kind: str) -> list[Path]:
        return sorted(self._folder.glob(f"{kind}-*.safetensors"))


def _about(path: Path) -> dict[str, str]:
    try:
        with safe_open(path, "pt") as held:
            about: dict[str, str] = held.metadata()
        return about
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from None


def _read(path: Path) -> Iterator[Lesson]:
    try:
        held = load_file(path)
        lengths, starts = held["lengths"].tolist(), held["starts"].tolist()
        token = state = choice = 0
        for length, start in zip(lengths, starts, strict=True):
            seen, taught = length - 1, length - 1 - start
            yield Lesson(
                held["tokens"][token : token + length],
                start,
                held["states"][state : state + seen],
                Choices(held["ids"][choice : choice + taught], held["logits"][choice : choice + taught]),
            )
            token, state, choice = token + length, state + seen, choice + taught
    except (OSError, SafetensorError, KeyError) as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: Exception) -> InputError:
    return InputError(f"{path}: cannot be read ({error}); fresh=true sets aside all that was collected")


@dataclass(frozen=True)
class Batch:
    """B texts side by side, padded at their end to T entries.

    Entry i of a text is the state of its token i, in ``states`` [B, T, S · H], beside its token i + 1, in ``tokens``
    [B, T]. ``rows`` and ``columns`` [M] say which entries are learned from, in order of the texts; ``choices`` are
    what the target thought should follow token i + 1 of each.
    """

    tokens: Tensor
    states: Tensor
    rows: Tensor
    columns: Tensor
    choices: Choices


def collate(lessons: Sequence[Lesson]) -> Batch:
    """``lessons`` as one batch. The last choice of a text is about its last token, the first about ``start`` + 1."""
    longest = max(len(lesson.tokens) for lesson in lessons) - 1
    tokens = torch.zeros(len(lessons), longest, dtype=torch.int64)
    states = torch.zeros(len(lessons), longest, lessons[0].states.shape[1], dtype=lessons[0].states.dtype)
    rows, columns, ids, logits = [], [], [], []
    for row, lesson in enumerate(lessons):
        entries = len(lesson.tokens) - 1
        tokens[row, :entries] = lesson.tokens[1:]
        states[row, :entries] = lesson.states
        first = max(lesson.start - 1, 0)  # entry i is asked about what follows token i + 1
        columns.append(torch.arange(first, entries - 1))
        rows.append(torch.full_like(columns[-1], row))
        skipped = first + 1 - lesson.start
        ids.append(lesson.choices.ids[skipped:])
        logits.append(lesson.choices.logits[skipped:])
    return Batch(tokens, states, torch.cat(rows), torch.cat(columns), Choices(torch.cat(ids), torch.cat(logits)))


def epoch(lessons: Sequence[Lesson], tokens: int, seed: int) -> list[list[int]]:
    """Every lesson once, in batches of about ``tokens`` entries, padding included, of texts of like length.

    The order depends on ``seed`` alone.
    """
    draw = random.Random(seed)
    order = list(range(len(lessons)))
    draw.shuffle(order)
    order.sort(key=lambda index: len(lessons[index].tokens) + draw.randrange(16))
    batches: list[list[int]] = [[]]
    longest = 0
    for index in order:
        longest = max(longest, len(lessons[index].tokens))
        if batches[-1] and (len(batches[-1]) + 1) * longest > tokens:
            batches.append([])
            longest = len(lessons[index].tokens)
        batches[-1].append(index)
    draw.shuffle(batches)
    return batches

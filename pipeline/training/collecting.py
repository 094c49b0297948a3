"""Collecting, stage by stage, every batch on disk before the next is begun."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pipeline.records.head_training import HeadTraining
from pipeline.training.collect import Asked, Split, Writer
from pipeline.training.lessons import LessonStore
from pipeline.training.progress import Stopped, TrainingProgress
from pipeline.training.teacher import Lesson, Teacher

WRITTEN = "written"
_TEXT = "text"
_HELD, _WATCHED, _LEARNED = "held", "watched", "learned"


@dataclass(frozen=True)
class Collected:
    """``held_out`` by workload; ``watched`` and ``learned`` of all workloads together."""

    held_out: dict[str, list[Lesson]]
    watched: list[Lesson]
    learned: list[Lesson]


class Collecting:
    """Everything that ``store`` lacks is made, nothing twice. ``stop``: whether a signal asked to end."""

    def __init__(
        self,
        settings: HeadTraining,
        teacher: Teacher,
        states: tuple[int, ...],
        store: LessonStore,
        splits: Sequence[Split],
        progress: TrainingProgress,
        stop: Callable[[], bool],
    ) -> None:
        self._settings = settings
        self._store = store
        self._splits = splits
        self._progress = progress
        self._stop = stop
        self._writer = Writer(settings, teacher, splits, states)

    def workloads(self) -> None:
        """The target's answers to the workloads' prompts, and the files of text."""
        for each in self._splits:
            name = each.workload.name
            for share, asked in ((_HELD, each.held_out), (_WATCHED, each.watched), (_LEARNED, each.learned)):
                kind = f"{share}-{name}"
                if asked and not self._store.count(kind):
                    self._keep(kind, partial(self._answers, asked, 0), f"{name}: {share} prompts")
        for number, path in enumerate(self._settings.collect.text):
            kind = f"{_TEXT}-{number}"
            if not self._store.count(kind):
                self._keep(kind, partial(self._writer.read, Path(path), self._look("text")), f"reading {path}")

    def written(self, is_enough: Callable[[float], bool]) -> None:
        """Batches of prompts that the target writes and answers, until ``is_enough``, told what the last one took."""
        texts = self._store.prompts(WRITTEN)
        self._writer.known(texts)
        batch_s = 0.0
        while not is_enough(batch_s):
            began = time.monotonic()
            number = self._store.count(WRITTEN)
            prompts = self._writer.prompts(number, self._look(f"batch {number + 1}: writing prompts"))
            asked = self._writer.asked(prompts)
            lessons = self._answers(asked, number + 1)
            if not lessons:
                self._progress.warn(
                    f"{self._settings.target.name} wrote no prompts that are new and clean: no more are asked of it"
                )
                return
            batch_s = time.monotonic() - began
            self._store.add(WRITTEN, lessons, batch_s, prompts)
            tokens = sum(len(lesson.choices.ids) for lesson in lessons)
            rate = tokens / batch_s
            self._progress.say(
                f"collected batch {number + 1}: {len(lessons)} texts, {tokens} tokens, {rate:.0f} tokens/s"
            )

    def close(self) -> None:
        """Let go of the target."""
        del self._writer

    def load(self) -> Collected:
        """Everything that is on disk."""
        names = [each.workload.name for each in self._splits]
        return Collected(
            held_out={name: self._store.load(f"{_HELD}-{name}") for name in names},
            watched=[lesson for name in names for lesson in self._store.load(f"{_WATCHED}-{name}")],
            learned=[
                lesson
                for kind in (*(f"{_LEARNED}-{name}" for name in names), *self._texts(), WRITTEN)
                for lesson in self._store.load(kind)
            ],
        )

    def _texts(self) -> list[str]:
        return [f"{_TEXT}-{number}" for number in range(len(self._settings.collect.text))]

    def _answers(self, asked: Sequence[Asked], number: int) -> list[Lesson]:
        """Of batch ``number``; the workloads' own prompts, 0, are answered greedily, as they are measured."""
        sampled = round(len(asked) * self._settings.collect.sampled) if number else 0
        seed = (self._settings.seed + number) * 10007
        look = self._look(f"batch {number}: answering {len(asked)} prompts" if number else f"{len(asked)} prompts")
        greedy = self._writer.answers(asked[sampled:], True, seed, look)
        return greedy + self._writer.answers(asked[:sampled], False, seed + len(asked), look)

    def _keep(self, kind: str, make: Callable[[], list[Lesson]], what: str) -> None:
        began = time.monotonic()
        self._progress.note(what)
        self._store.add(kind, make(), time.monotonic() - began)
        self._progress.say(f"collected {what}")

    def _look(self, what: str) -> Callable[[int], None]:
        """What the teacher calls at each step of its: shows progress, and ends it when a signal asked to."""
        tokens = 0
        began = time.monotonic()

        def look(rows: int) -> None:
            nonlocal tokens
            tokens += rows
            self._progress.note(f"{what} · {tokens / max(1e-9, time.monotonic() - began):.0f} tokens/s")
            if self._stop():
                raise Stopped

        return look

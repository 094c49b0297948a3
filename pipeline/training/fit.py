"""Learning: soft labels over the tokens that the head knows, for as many draft steps as it will draft."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor

from pipeline.records.head_training import FitSettings, Look
from pipeline.tracking.atomic import replacing
from pipeline.training.divergence import Vocabulary, Wanted, divergence
from pipeline.training.lessons import Batch, collate, epoch
from pipeline.training.student import Student
from pipeline.training.teacher import Lesson

_FLOOR = 0.02
"""Of the learning rate, where the cosine ends."""
_WATCH_TOKENS = 8192


@dataclass(frozen=True)
class StepLoss:
    """Of one draft step over the M places of a batch: ``loss`` is their mean, ``right`` bool [M] where the head's
    likeliest token is the target's."""

    loss: Tensor
    right: Tensor


def step_losses(student: Student, batch: Batch, vocabulary: Vocabulary, steps: int) -> list[StepLoss]:
    """One for each draft step; its places are those of the batch whose chain begins within the text."""
    wanted = Wanted.of(batch.choices, vocabulary)
    found = []
    for step, out in enumerate(student.unroll(batch.tokens, batch.states, steps)):
        places = batch.columns >= step
        normed = student.weights.norm(out[batch.rows[places], batch.columns[places]])
        asked = Wanted(wanted.own[places], wanted.shares[places], wanted.taught[places])
        found.append(StepLoss(*divergence(normed, student.weights.lm_head, asked)))
    return found


@torch.no_grad()
def watch(student: Student, lessons: Sequence[Lesson], vocabulary: Vocabulary, steps: int) -> tuple[float, list[float]]:
    """Over ``lessons``: the first draft step's loss, and each step's share of places where the head agrees."""
    loss = places = 0.0
    right = [0] * steps
    counted = [0] * steps
    for indices in epoch(lessons, _WATCH_TOKENS, seed=0):
        found = step_losses(student, collate([lessons[i] for i in indices]), vocabulary, steps)
        loss += float(found[0].loss) * len(found[0].right)
        places += len(found[0].right)
        for step, each in enumerate(found):
            right[step] += int(each.right.sum())
            counted[step] += len(each.right)
    return loss / max(places, 1.0), [r / max(c, 1) for r, c in zip(right, counted, strict=True)]


def learning_rate(progress: float, settings: FitSettings) -> float:
    """Linear warm-up, then a cosine; ``progress`` from 0 to 1."""
    if progress < settings.warmup:
        return settings.learning_rate * max(progress / settings.warmup, 0.01)
    along = min(1.0, (progress - settings.warmup) / max(1e-9, 1 - settings.warmup))
    return settings.learning_rate * (_FLOOR + (1 - _FLOOR) * 0.5 * (1 + math.cos(math.pi * along)))


class Fit:
    """A head that is learning, from wherever an earlier start left it in ``path``.

    ``identity`` says what it learns from and how: a checkpoint of another one is not taken up.
    """

    def __init__(
        self, student: Student, vocabulary: Vocabulary, settings: FitSettings, path: Path, identity: str
    ) -> None:
        self.looks: list[Look] = []
        self.spent_s = 0.0
        self.steps = 0
        self.finished = False
        self._student = student
        self._vocabulary = vocabulary
        self._settings = settings
        self._path = path
        self._identity = identity
        self._best: dict[str, Tensor] = {}
        self._losses: list[float] = []
        weights = student.weights
        matrices = [weight for weight in weights.parameters() if weight.dim() > 1 and weight.requires_grad]
        vectors = [weight for weight in weights.parameters() if weight.dim() == 1 and weight.requires_grad]
        self._optimizer = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
            lr=settings.learning_rate,
            betas=(0.9, 0.95),
        )
        self._resume()

    def run(
        self,
        lessons: Sequence[Lesson],
        watched: Sequence[Lesson],
        budget_s: float,
        seed: int,
        look: Callable[[Fit], None],
        stop: Callable[[], bool],
    ) -> bool:
        """Learn until the budget is spent, the epochs are through or nothing is gained any more.

        ``look`` is called after each look at ``watched``. False when ``stop`` ended it early; what was learned is
        kept either way.
        """
        if self.finished:
            return True
        per_epoch = len(epoch(lessons, self._settings.batch_tokens, seed))
        total = self._settings.steps or math.ceil(per_epoch * self._settings.epochs)
        before, began = self.spent_s, time.monotonic()
        batches = self._batches(lessons, per_epoch, seed)
        while True:
            self.spent_s = before + time.monotonic() - began
            progress = min(1.0, max(self.steps / total, self.spent_s / budget_s if budget_s > 0 else 1.0))
            if progress >= len(self.looks) / self._settings.looks or progress >= 1.0:
                self._look_at(watched, progress)
                self.finished = progress >= 1.0 or self._gains_nothing()
                self.save()
                look(self)
                if self.finished:
                    return True
            if stop():
                self.save()
                return False
            self._step(next(batches), learning_rate(progress, self._settings))

    @property
    def best(self) -> dict[str, Tensor]:
        """The weights that agreed most with the target on the watched prompts."""
        return self._best

    @property
    def best_look(self) -> Look:
        """The look at which ``best`` was kept."""
        return max(self.looks, key=lambda each: each.watched_agreement[0])

    def probe(self, lessons: Sequence[Lesson], steps: int = 3) -> float:
        """Entries learned from a second, by learning for a moment; the weights are as before."""
        kept = {name: weight.clone() for name, weight in self._student.weights.state_dict().items()}
        batches = epoch(lessons, self._settings.batch_tokens, seed=0)
        entries, began = 0, time.monotonic()
        for number in range(steps + 1):
            if number == 1:
                entries, began = 0, time.monotonic()  # the first warms up
            batch = collate([lessons[index] for index in batches[number % len(batches)]])
            self._step(batch, 0.0)
            entries += len(batch.rows)
        self._student.weights.load_state_dict(kept)
        self._optimizer.state.clear()
        self.steps = 0
        return entries / (time.monotonic() - began)

    def save(self) -> None:
        """All that is needed to go on. Raises OSError when the disk does not take it."""
        with replacing(self._path) as path:
            torch.save(
                {
                    "identity": self._identity,
                    "weights": self._student.weights.state_dict(),
                    "best": self._best,
                    "optimizer": self._optimizer.state_dict(),
                    "looks": [asdict(look) for look in self.looks],
                    "spent_s": self.spent_s,
                    "steps": self.steps,
                    "finished": self.finished,
                },
                path,
            )

    def _resume(self) -> None:
        if not self._path.exists():
            return
        held = torch.load(self._path, weights_only=True)
        if held["identity"] != self._identity:
            return
        self._student.weights.load_state_dict(held["weights"])
        self._optimizer.load_state_dict(held["optimizer"])
        self._best = held["best"]
        self.looks = [Look(**look) for look in held["looks"]]
        self.spent_s, self.steps, self.finished = held["spent_s"], held["steps"], held["finished"]

    def _batches(self, lessons: Sequence[Lesson], per_epoch: int, seed: int) -> Iterator[Batch]:
        """From the step on at which an earlier start ended."""
        number, skip = divmod(self.steps, per_epoch)
        while True:
            for indices in epoch(lessons, self._settings.batch_tokens, seed + number)[skip:]:
                yield collate([lessons[index] for index in indices])
            number, skip = number + 1, 0

    def _step(self, batch: Batch, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast("cpu", torch.bfloat16, enabled=self._student.low_precision):
            found = step_losses(self._student, batch, self._vocabulary, self._settings.draft_steps)
        weights = [self._settings.later_weight**step for step in range(len(found))]
        loss = sum(w * each.loss for w, each in zip(weights, found, strict=True)) / sum(weights)
        assert isinstance(loss, Tensor)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(self._student.weights.parameters(), 1.0)
        self._optimizer.step()
        self.steps += 1
        self._losses.append(float(found[0].loss.detach()))

    def _look_at(self, watched: Sequence[Lesson], progress: float) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=self._student.low_precision):
            loss, agreement = watch(self._student, watched, self._vocabulary, self._settings.draft_steps)
        learned = sum(self._losses) / len(self._losses) if self._losses else loss
        self._losses.clear()
        self.looks.append(
            Look(
                step=self.steps,
                spent_s=self.spent_s,
                progress=progress,
                learning_rate=learning_rate(progress, self._settings),
                loss=learned,
                watched_loss=loss,
                watched_agreement=tuple(agreement),
            )
        )
        if self.best_look is self.looks[-1]:
            self._best = {name: weight.clone() for name, weight in self._student.weights.state_dict().items()}

    def _gains_nothing(self) -> bool:
        values = [each.watched_agreement[0] for each in self.looks]
        return len(values) - 1 - values.index(max(values)) >= self._settings.patience

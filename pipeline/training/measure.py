"""A trained head beside n-gram on held-out prompts: where each is right, and what the engine makes of it."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
import numpy.typing as npt
import torch

from pipeline.engines.contract import Limits, Request, Schedule
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.engines.prompt_lookup import lookup
from pipeline.measurement.acceptance import acceptance
from pipeline.measurement.student import t_quantile
from pipeline.records.head_training import Agreement, Drafted, HeadOnWorkload, HeadTraining
from pipeline.records.settings import EngineSettings
from pipeline.records.target import Draft, Eagle3, Ngram, Target
from pipeline.training.collect import GREEDY, Split, requests_for
from pipeline.training.divergence import Vocabulary
from pipeline.training.fit import step_losses
from pipeline.training.lessons import collate
from pipeline.training.student import Student
from pipeline.training.teacher import Lesson, Teacher

SLOTS = 8

Rights = npt.NDArray[np.bool_]


def measure(
    settings: HeadTraining,
    splits: Sequence[Split],
    student: Student,
    states: tuple[int, ...],
    vocabulary: Vocabulary,
    draft: Eagle3,
    device: str,
) -> tuple[list[HeadOnWorkload], float]:
    """On each workload's held-out prompts, and the share of all places whose token the head knows.

    The target is read in its own dtype here, whatever it was when it taught.
    """
    student.low_precision = False
    steps = settings.fit.draft_steps
    teacher = Teacher(settings.target, settings.target.dtype, device)
    taught = {}
    for each in splits:
        requests = requests_for(each.held_out, each.workload.output_tokens, settings.seed)
        taught[each.workload.name] = teacher.teach(requests, GREEDY, states, SLOTS, lambda rows: None)
    del teacher
    results, known, places = [], 0, 0
    for each in splits:
        lessons = taught[each.workload.name]
        head = right_of_head(student, lessons, vocabulary, steps)
        ngram = right_of_ngram(settings.ngram, lessons)
        first = [rights[0] for rights in head]
        by_step = [agreement([rights[step] for rights in head]).share for step in range(steps)]
        for lesson in lessons:
            following = lesson.tokens[lesson.start + 2 :]
            known += int((vocabulary.own(following) >= 0).sum())
            places += len(following)
        requests = requests_for(each.held_out, each.workload.output_tokens, settings.seed)
        seen = drafted(settings.target, [draft, settings.ngram], steps, requests, device)
        results.append(
            HeadOnWorkload(
                workload=each.workload.name,
                prompts=tuple(asked.id for asked in each.held_out),
                places=sum(len(rights) for rights in first),
                head=agreement(first),
                head_by_step=tuple(by_step),
                ngram=agreement(ngram),
                ahead=agreement([a.astype(np.int64) - b for a, b in zip(first, ngram, strict=True)]),
                head_drafted=seen[0],
                ngram_drafted=seen[1],
            )
        )
    return results, known / max(places, 1)


def right_of_head(
    student: Student, lessons: Sequence[Lesson], vocabulary: Vocabulary, steps: int
) -> list[list[Rights]]:
    """For each text and draft step, bool [places]: whether the head's likeliest token is the one that follows."""
    found = []
    with torch.no_grad():
        for lesson in lessons:
            batch = collate([lesson])
            # Entry i proposes token i + 2. The first token after the prompt comes from reading it, and is not drafted.
            drafted = batch.columns >= lesson.start
            rights = []
            for step, each in enumerate(step_losses(student, batch, vocabulary, steps)):
                places = batch.columns >= step
                rights.append(each.right[drafted[places]].numpy())
            found.append(rights)
    return found


def right_of_ngram(ngram: Ngram, lessons: Sequence[Lesson]) -> list[Rights]:
    """The same places for prompt lookup: whether its first proposal is the token that follows; none is wrong."""
    found = []
    for lesson in lessons:
        tokens = lesson.tokens.numpy().astype(np.int64)
        n = np.arange(lesson.start + 2, len(tokens))
        rows = np.broadcast_to(tokens, (len(n), len(tokens)))
        proposals, proposed = lookup(rows, n, np.ones_like(n), ngram)
        found.append((proposed > 0) & (proposals[:, 0] == tokens[n]))
    return found


def agreement(rights: Sequence[Rights | npt.NDArray[np.int64]]) -> Agreement:
    """The share over all places of all texts; values may be differences, from −1 to 1."""
    sums = np.array([right.sum() for right in rights], dtype=np.float64)
    counts = np.array([len(right) for right in rights], dtype=np.float64)
    share = float(sums.sum() / counts.sum())
    if len(rights) < 2:
        return Agreement(share=share, low=share, high=share)
    without = (sums.sum() - sums) / (counts.sum() - counts)
    size = len(rights)
    half = t_quantile(0.975, size - 1) * sqrt((size - 1) / size * float(((without - without.mean()) ** 2).sum()))
    return Agreement(share=share, low=share - half, high=share + half)


def drafted(
    target: Target, drafts: Sequence[Draft], gamma: int, requests: Sequence[Request], device: str
) -> list[Drafted]:
    """What the engine sees of each draft in ``target``'s own dtype."""
    engine = DecodingEngine(EngineSettings(device=device))  # type: ignore[arg-type]
    limits = Limits(concurrency=min(SLOTS, len(requests)), max_gamma=gamma)
    found = []
    try:
        engine.open(target, drafts, limits)
        for draft in drafts:
            trace = engine.run(requests, GREEDY, draft, Schedule.constant(gamma))
            seen = acceptance(trace.requests, gamma)
            found.append(
                Drafted(
                    gamma=gamma,
                    acceptance_rate=seen.acceptance_rate,
                    emitted_per_verification=seen.emitted_per_verification,
                    acceptance_by_position=seen.marginal,
                )
            )
    finally:
        engine.close()
    return found

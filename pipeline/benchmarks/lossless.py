"""The engine's losslessness, combination by combination: drafts change no distribution, and a wrong engine is caught.

Where proposals are sampled, the joint distribution of the first tokens is tested against exact enumeration. Where they
are not, the text must be plain decoding's token for token, whose distribution is tested in its own rows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel

from pipeline.benchmarks.conditions import conditions, cpus, load
from pipeline.benchmarks.exact import Joint, count_sequences, joint_distribution, p_value, penalized_plainly
from pipeline.benchmarks.mutants import MUTANTS, PENALIZED, shown_by
from pipeline.benchmarks.rows import EQUAL_UNIT, Better, Report, Row, Wanted
from pipeline.benchmarks.tiny import VOCABULARY, write_tiny
from pipeline.benchmarks.tiny_writer import GAMMA, PROMPT, TOKENS, Arm, Done, Job, Texts, TinyWriter, request, write_all
from pipeline.records.cell import Sampling
from pipeline.records.failure import InputError

GREEDY = Sampling(name="greedy")
SAMPLINGS = (
    Sampling(name="t1", temperature=1.0),
    Sampling(name="t07_k5", temperature=0.7, top_k=5),
    Sampling(name="t1_p85", temperature=1.0, top_p=0.85),
    Sampling(name="t1_minp10", temperature=1.0, min_p=0.1),
)
PENALIZED_GREEDY = replace(PENALIZED, name="greedy_penalized", temperature=0.0)
DRAWN = ("draft_model", "early_exit", "medusa", "eagle3")
ONE_HOT = ("ngram", *(f"{name}_greedy" for name in DRAWN))
CONCURRENCY = (1, 6)
PENALIZED_DRAFTS = (None, *DRAWN, "ngram", "draft_model_greedy")

SAME = Wanted("ours", ">", 1e-4)
CAUGHT = Wanted("ours", "<", 1e-6)
EQUAL = Wanted("ours", "<=", 0)
PLACES = ((0, 1, 2), (1, 2, 3), (3, 4, 5))
"""Tokens tested together: three at a time, for all six would leave most cells with too few samples.

The first block is at 1, 2, 3; after a full accept the token that follows it is at 3 and the next block at 4, 5.
"""
TIE = 1e-5
"""Texts may differ from a choice on that was this near to a tie: rounding depends on a batch's shape."""
CHUNK = 2000


@dataclass(frozen=True, kw_only=True)
class Options:
    """``samples`` for each test of a distribution, ``texts`` for each comparison of texts.

    ``only`` keeps the rows whose name contains it; ``processes`` None: one a CPU.
    """

    samples: int = 20_000
    texts: int = 1_500
    only: str = ""
    processes: int | None = None


def run(options: Options, say: Callable[[str], None]) -> Report:
    """Raises InputError when ``only`` keeps no row."""
    load_before = load()
    arms = [arm for arm in _arms() if options.only in arm.name]
    if not arms:
        raise InputError(f"only={options.only}: no row has that in its name, such as {Arm('ngram', GREEDY, 6).name}")
    plain = [Arm(None, arm.sampling, 1) for arm in arms if not _tests_distribution(arm)]
    wanted = list(dict.fromkeys([*arms, *plain]))
    processes = options.processes or cpus()
    with tempfile.TemporaryDirectory() as folder:
        tiny = write_tiny(Path(folder))
        writer = TinyWriter(tiny)
        jobs = [job for arm in wanted for job in _jobs(arm, options)]
        written = _collect(write_all(tiny, writer, jobs, processes), len(jobs), say)
        judge = _Judge(tiny.reference(), writer, written)
        rows = tuple(judge.row(arm) for arm in arms)
        settings = asdict(options) | {
            "processes": processes,
            "tokens": TOKENS,
            "gamma": GAMMA,
            "vocabulary": VOCABULARY,
        }
        return Report(
            benchmark="lossless",
            settings=settings,
            conditions=conditions(writer.facts, load_before),
            rows=rows,
        )


def _arms() -> list[Arm]:
    """Every combination, some with penalties, then the mutants."""
    return [
        *(Arm(draft, s, c) for draft in (None, *DRAWN, *ONE_HOT) for s in (GREEDY, *SAMPLINGS) for c in CONCURRENCY),
        *(Arm(draft, s, CONCURRENCY[-1]) for draft in PENALIZED_DRAFTS for s in (PENALIZED_GREEDY, PENALIZED)),
        *(Arm("draft_model", shown_by(mutant), CONCURRENCY[-1], mutant) for mutant in MUTANTS),
    ]


def _tests_distribution(arm: Arm) -> bool:
    return not arm.sampling.greedy and (arm.draft is None or arm.draft in DRAWN)


def _jobs(arm: Arm, options: Options) -> list[Job]:
    """Plain text is also what one-hot text is compared with, of the same seeds."""
    count = options.samples if _tests_distribution(arm) else options.texts
    if arm.draft is None:
        count = max(count, options.texts)
    return [Job(arm, first, min(CHUNK, count - first)) for first in range(0, count, CHUNK)]


def _collect(done: Iterable[Done], count: int, say: Callable[[str], None]) -> dict[Arm, Texts]:
    """The texts of each arm by seed. Raises RuntimeError for a sampled draft that tests nothing."""
    parts: dict[Arm, list[Done]] = {}
    for index, part in enumerate(done):
        parts.setdefault(part.job.arm, []).append(part)
        say(f"{index + 1} of {count}: {part.job.arm.name}, seeds {part.job.first} to {part.job.first + part.job.count}")
    for arm, found in parts.items():
        tested, accepted = sum(part.tested for part in found), sum(part.accepted for part in found)
        if _tests_distribution(arm) and arm.draft and not 0.02 * tested < accepted < 0.98 * tested:
            raise RuntimeError(f"{arm.name}: {accepted} of {tested} proposals accepted, which tests nothing")
    return {
        arm: np.concatenate([part.texts for part in sorted(found, key=lambda part: part.job.first)])
        for arm, found in parts.items()
    }


class _Judge:
    """From texts to rows."""

    def __init__(self, reference: PreTrainedModel, writer: TinyWriter, written: Mapping[Arm, Texts]) -> None:
        self._reference = reference
        self._writer = writer
        self._written = written
        self._exact: dict[Sampling, Joint] = {}

    def row(self, arm: Arm) -> Row:
        if _tests_distribution(arm):
            return self._distribution(arm)
        return self._equality(arm)

    def _distribution(self, arm: Arm) -> Row:
        texts, sampling = self._written[arm], arm.sampling
        if sampling not in self._exact:
            self._exact[sampling] = joint_distribution(self._reference, PROMPT, TOKENS, sampling, VOCABULARY)
        counts = count_sequences(texts, VOCABULARY)
        ps = [p_value(counts, self._exact[sampling], places) for places in PLACES]
        better: Better = "less" if arm.mutant else "more"
        return _row(arm, min(ps), max(ps), "p", better, CAUGHT if arm.mutant else SAME)

    def _equality(self, arm: Arm) -> Row:
        """Against plain decoding at C = 1, and that, where it is greedy, against transformers' own argmax."""
        texts, plain = self._written[arm], Arm(None, arm.sampling, 1)
        against = self._argmax(len(texts), arm.sampling) if arm.draft is None else self._written[plain][: len(texts)]
        differ = 0
        for seed in np.flatnonzero((texts != against).any(axis=1)).tolist():
            at = int((texts[seed] != against[seed]).argmax())
            differ += self._writer.tie_margin(seed, arm.sampling, against[seed, :at].tolist()) > TIE
        return _row(arm, differ, differ, EQUAL_UNIT, "less", EQUAL)

    def _argmax(self, count: int, sampling: Sampling) -> Texts:
        rows = torch.tensor([request(seed, sampling).tokens for seed in range(count)])
        for _ in range(TOKENS):
            with torch.inference_mode():
                logits = self._reference(input_ids=rows, use_cache=False).logits[:, -1]
            logits = penalized_plainly(logits, rows, len(PROMPT), sampling)
            rows = torch.cat((rows, logits.argmax(dim=-1, keepdim=True)), dim=1)
        texts: Texts = rows[:, -TOKENS:].numpy().astype(np.int8)
        return texts


def _row(arm: Arm, least: float, greatest: float, unit: str, better: Better, wanted: Wanted) -> Row:
    """``least`` and ``greatest``: the p of its tests, of which the least must hold, or a count twice."""
    return Row(
        metric=arm.name,
        ours=least,
        unit=unit,
        better=better,
        peer="",
        peer_value=None,
        ratio=None,
        low=least,
        high=greatest,
        wanted=str(wanted),
        holds=wanted.met(least),
    )

"""The whole engine draws from the target's own distribution, whatever drafts: chi-square against exact enumeration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
from transformers import PreTrainedModel

from pipeline.benchmarks.exact import Joint, count_sequences, joint_distribution, p_value
from pipeline.benchmarks.lossless import PLACES, SAMPLINGS
from pipeline.benchmarks.mutants import MUTANTS, PENALIZED, SHARP, broken, shown_by
from pipeline.benchmarks.tiny import VOCABULARY, Tiny, write_tiny
from pipeline.benchmarks.tiny_writer import GAMMA, PROMPT, TOKENS
from pipeline.engines.contract import Limits, Request, Schedule
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.records.cell import Sampling
from pipeline.records.settings import EngineSettings

CONCURRENCY = 64
SAMPLES = 2500


@dataclass(frozen=True)
class Bench:
    """An engine over the tiny target and its drafts, and the target itself as transformers runs it."""

    engine: DecodingEngine
    tiny: Tiny
    reference: PreTrainedModel

    def counts(self, draft: str | None, sampling: Sampling, samples: int) -> Joint:
        """How often each sequence of ``TOKENS`` tokens was written by requests with seeds 0 … ``samples`` − 1."""
        requests = [
            Request(
                request_id=str(seed),
                prompt_id="p",
                tokens=PROMPT,
                max_new_tokens=TOKENS,
                seed=seed,
                ignore_eos=True,
            )
            for seed in range(samples)
        ]
        schedule = Schedule.constant(GAMMA if draft else 0)
        trace = self.engine.run(requests, sampling, self.tiny.drafts[draft] if draft else None, schedule)
        if draft:
            tested = sum(sum(request.tested) for request in trace.requests)
            accepted = sum(sum(request.accepted) for request in trace.requests)
            assert 0.02 * tested < accepted < 0.98 * tested, "a draft that never differs tests nothing"
        return count_sequences(np.array([request.output for request in trace.requests]), VOCABULARY)

    def exact(self, sampling: Sampling) -> Joint:
        return joint_distribution(self.reference, PROMPT, TOKENS, sampling, VOCABULARY)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    tiny = write_tiny(tmp_path_factory.mktemp("tiny"))
    engine = DecodingEngine(EngineSettings(device="cpu"), threads=1)
    engine.open(tiny.target, list(tiny.drafts.values()), Limits(concurrency=CONCURRENCY, max_gamma=GAMMA))
    yield Bench(engine, tiny, tiny.reference())
    engine.close()


def p_values(bench: Bench, draft: str | None, sampling: Sampling, samples: int) -> list[float]:
    counts, exact = bench.counts(draft, sampling, samples), bench.exact(sampling)
    return [p_value(counts, exact, places) for places in PLACES]


@pytest.mark.parametrize(
    ("draft", "sampling"),
    [
        (None, SAMPLINGS[0]),
        *((draft, SHARP) for draft in ("draft_model", "draft_model_padded", "medusa", "eagle3")),
    ],
)
def test_plain_decoding_and_sampled_drafts_have_the_targets_distribution(
    bench: Bench, draft: str | None, sampling: Sampling
) -> None:
    assert min(p_values(bench, draft, sampling, samples=1000)) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [*SAMPLINGS, PENALIZED], ids=lambda sampling: sampling.name)
@pytest.mark.parametrize(
    "draft",
    [
        None,
        "draft_model",
        "draft_model_greedy",
        "early_exit",
        "ngram",
        "medusa",
        "medusa_greedy",
        "eagle3",
        "eagle3_greedy",
    ],
)
def test_no_draft_changes_any_distribution(bench: Bench, draft: str | None, sampling: Sampling) -> None:
    assert min(p_values(bench, draft, sampling, samples=SAMPLES)) > 1e-4


# What the tests above would not notice, they do not show.


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_an_engine_that_is_not_lossless_is_noticed(bench: Bench, mutant: str) -> None:
    sampling = shown_by(mutant)
    with broken(mutant, sampling):
        found = p_values(bench, "draft_model", sampling, samples=1500)
    assert min(found) < 1e-6

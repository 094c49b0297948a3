"""The whole engine draws from the target's own distribution, whatever drafts: chi-square against exact enumeration."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from tiny_heads import SPECULATORS, eagle3_entries, eagle3_tensors, write_eagle3, write_medusa
from tokenizers import Tokenizer, models
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from pipeline.engines.contract import Limits, Request, Schedule
from pipeline.engines.decoding import sampler
from pipeline.engines.decoding.accept import Accepted, accept_probabilistic
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.engines.decoding.proposers import chain
from pipeline.engines.decoding.transform import draw, probabilities
from pipeline.records.cell import Sampling
from pipeline.records.settings import EngineSettings
from pipeline.records.target import Draft, DraftModel, Eagle3, EarlyExit, Medusa, Ngram, Target

V = 8
PROMPT = (3, 5, 1, 3, 5, 6, 1)
TOKENS = 5
GAMMA = 3
CONCURRENCY = 64
SAMPLES = 2500

Joint = NDArray[np.float64]

SAMPLINGS = [
    Sampling(name="t1", temperature=1.0),
    Sampling(name="t07_k5", temperature=0.7, top_k=5),
    Sampling(name="t1_p85", temperature=1.0, top_p=0.85),
]
SHARP = Sampling(name="t05_k4", temperature=0.5, top_k=4)
"""Raw and transformed distributions differ most here: what uses the wrong one shows in few samples."""


def write_model(folder: Path, seed: int, layers: int, rows: int = V) -> Path:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=rows,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.5,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    words = {f"w{i}": i for i in range(V)}
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="w0"))).save_pretrained(folder)
    return folder


def write_heads(folder: Path) -> tuple[str, str]:
    """Medusa heads and an EAGLE-3 head that knows only some of the target's tokens."""
    medusa = write_medusa(folder / "medusa", heads=GAMMA, hidden=16, vocabulary=V, seed=2)
    known = [1, 2, 3, 5, 6]
    layer = {"hidden_size": 16, "intermediate_size": 16, "vocab_size": V}
    states = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    entries = eagle3_entries(SPECULATORS, layer, draft_vocab_size=len(known), **states)
    tensors = eagle3_tensors(entries, ids=known, embeddings=False, target_hidden=16)
    return str(medusa), str(write_eagle3(folder / "eagle3", entries, tensors, SPECULATORS))


@dataclass(frozen=True)
class Bench:
    """An engine over a tiny target, the drafts for it, and the target itself as transformers runs it."""

    engine: DecodingEngine
    drafts: dict[str, Draft]
    reference: PreTrainedModel

    def counts(self, draft: str | None, sampling: Sampling, samples: int) -> Joint:
        """How often each sequence of ``TOKENS`` tokens was written by requests with seeds 0 … ``samples`` − 1."""
        requests = [
            Request(
                request_id=str(seed),
                prompt_id="p",
                tokens=PROMPT,
                max_new_tokens=TOKENS + 2,
                seed=seed,
                ignore_eos=True,
            )
            for seed in range(samples)
        ]
        schedule = Schedule.constant(GAMMA if draft else 0)
        trace = self.engine.run(requests, sampling, self.drafts[draft] if draft else None, schedule)
        if draft:
            tested = sum(sum(request.tested) for request in trace.requests)
            accepted = sum(sum(request.accepted) for request in trace.requests)
            assert 0.05 * tested < accepted < 0.95 * tested, "a draft that never differs tests nothing"
        counts = np.zeros([V] * TOKENS)
        np.add.at(counts, tuple(np.array([request.output[:TOKENS] for request in trace.requests]).T), 1)
        return counts

    def exact(self, sampling: Sampling) -> Joint:
        """The probability of each sequence of ``TOKENS`` tokens, from the target's logits after every prefix."""
        rows, joint = torch.tensor([PROMPT]), torch.ones(1, dtype=torch.float64)
        for _ in range(TOKENS):
            with torch.inference_mode():
                logits = self.reference(input_ids=rows, use_cache=False).logits[:, -1]
            joint = (joint[:, None] * probabilities(logits, sampling).double()).flatten()
            rows = torch.cat((rows.repeat_interleave(V, dim=0), torch.arange(V).repeat(len(rows))[:, None]), dim=1)
        assert float(joint.sum()) == pytest.approx(1.0, abs=1e-5)
        return (joint / joint.sum()).reshape([V] * TOKENS).numpy()


def p_value(counts: Joint, exact: Joint, places: tuple[int, ...]) -> float:
    """Of the joint distribution of the tokens at ``places``; cells that expect less than 5 are tested together."""
    others = tuple(place for place in range(TOKENS) if place not in places)
    observed, expected = counts.sum(axis=others).ravel(), exact.sum(axis=others).ravel() * counts.sum()
    if observed[expected == 0].any():
        return 0.0
    few = expected < 5
    observed = np.append(observed[~few], observed[few].sum())
    expected = np.append(expected[~few], expected[few].sum())
    if expected[-1] < 5:
        observed, expected = observed[:-1], expected[:-1] * observed[:-1].sum() / expected[:-1].sum()
    return float(stats.chisquare(observed, expected).pvalue)


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = write_model(tmp_path_factory.mktemp("target"), seed=0, layers=2)
    small = str(write_model(tmp_path_factory.mktemp("draft"), seed=5, layers=1))
    padded = str(write_model(tmp_path_factory.mktemp("padded"), seed=6, layers=1, rows=12))
    medusa, eagle3 = write_heads(tmp_path_factory.mktemp("heads"))
    drafts: list[Draft] = [
        DraftModel(name="draft_model", source=small),
        DraftModel(name="draft_model_greedy", source=small, draft_sampling="greedy"),
        DraftModel(name="draft_model_padded", source=padded),
        EarlyExit(name="early_exit", layers=1),
        Medusa(name="medusa", source=medusa),
        Medusa(name="medusa_greedy", source=medusa, draft_sampling="greedy"),
        Eagle3(name="eagle3", source=eagle3),
        Eagle3(name="eagle3_greedy", source=eagle3, draft_sampling="greedy"),
        Ngram(name="ngram"),
    ]
    engine = DecodingEngine(EngineSettings(device="cpu"), threads=1)
    target = Target(name="tiny", source=str(folder), dtype="float32")
    engine.open(target, drafts, Limits(concurrency=CONCURRENCY, max_gamma=GAMMA))
    reference = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    yield Bench(engine, {draft.name: draft for draft in drafts}, reference)
    engine.close()


def check(bench: Bench, draft: str | None, sampling: Sampling, samples: int) -> None:
    counts, exact = bench.counts(draft, sampling, samples), bench.exact(sampling)
    assert p_value(counts, exact, (0, 1, 2)) > 1e-4
    assert p_value(counts, exact, (2, 3, 4)) > 1e-4


@pytest.mark.parametrize("draft", ["draft_model", "draft_model_padded", "medusa", "eagle3"])
def test_a_draft_that_is_sampled_changes_no_distribution(bench: Bench, draft: str) -> None:
    check(bench, draft, SHARP, samples=1000)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=lambda sampling: sampling.name)
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
    check(bench, draft, sampling, samples=SAMPLES)


# What the tests above would not notice, they do not show. Each of these engines is wrong in one place.


def subtract_only_at_the_draft(
    p: Tensor, q: Tensor, drafted: Tensor, dlen: Tensor, u_accept: Tensor, u_residual: Tensor, u_plain: Tensor
) -> Accepted:
    right = accept_probabilistic(p, q, drafted, dlen, u_accept, u_residual, u_plain)
    only = torch.zeros_like(q).scatter(-1, drafted[..., None], q.gather(-1, drafted[..., None]))
    wrong = accept_probabilistic(p, only, drafted, dlen, u_accept, u_residual, u_plain)
    return Accepted(count=right.count, next_token=wrong.next_token)


def draw_from_p_after_a_rejection(
    p: Tensor, q: Tensor, drafted: Tensor, dlen: Tensor, u_accept: Tensor, u_residual: Tensor, u_plain: Tensor
) -> Accepted:
    count = accept_probabilistic(p, q, drafted, dlen, u_accept, u_residual, u_plain).count
    row = torch.arange(len(p))
    return Accepted(count=count, next_token=draw(p[row, count], u_plain[row, count]))


def use_untransformed_q(monkeypatch: pytest.MonkeyPatch, sampling: Sampling) -> None:
    """Proposals are drawn from the transformed distribution, and q is the softmax of the raw logits."""
    monkeypatch.setattr(chain, "probabilities", lambda logits, _: torch.softmax(logits, dim=-1))
    monkeypatch.setattr(chain, "draw", lambda raw, u: draw(probabilities(raw.log(), sampling), u))


def replace_acceptance(accept: Callable[..., Accepted]) -> Callable[[pytest.MonkeyPatch, Sampling], None]:
    return lambda monkeypatch, _: monkeypatch.setattr(sampler, "accept_probabilistic", accept)


MUTANTS = {
    "residual subtracts q only at the drafted token": replace_acceptance(subtract_only_at_the_draft),
    "final token from p after a rejection": replace_acceptance(draw_from_p_after_a_rejection),
    "untransformed q": use_untransformed_q,
}


@pytest.mark.slow
@pytest.mark.parametrize("mutant", MUTANTS)
def test_an_engine_that_is_not_lossless_is_noticed(bench: Bench, monkeypatch: pytest.MonkeyPatch, mutant: str) -> None:
    MUTANTS[mutant](monkeypatch, SHARP)
    assert p_value(bench.counts("draft_model", SHARP, samples=1500), bench.exact(SHARP), (0, 1, 2)) < 1e-6

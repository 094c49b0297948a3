"""Failures of other engines, each kind of it impossible here: what is accepted, emitted and counted.

Every check passes on the engine as it is, and is shown to fail on one that is broken in just that way. The rest is in
``test_field_cases_batch`` (rows beside each other), ``test_field_cases_sampling`` (what is drawn), ``test_loading`` and
``test_supported`` (what is refused) and ``tests/workloads/test_render`` (the token a prompt begins with).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from scripted import NGRAM, REQUESTS, Texts, noticed, scripted, written, wrong_at
from tiny_models import EOS, GREEDY, VOCABULARY, assert_counts_hold, generated, save, tiny_llama
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.engines.contract import Limits, Request, Schedule
from pipeline.engines.decoding import accept
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.engines.decoding.slots import Committed, Ints, Slots
from pipeline.measurement.acceptance import acceptance
from pipeline.measurement.gates import GateError, check_trace
from pipeline.records.settings import EngineSettings
from pipeline.records.target import DraftModel, Target
from pipeline.records.trace import FinishReason, Trace

OpenEngine = Callable[..., DecodingEngine]
Patch = pytest.MonkeyPatch
right_commit = Slots.commit


# Accepted proposals are a prefix.


def check_that_nothing_counts_past_a_rejection(engine: DecodingEngine, texts: Texts) -> None:
    trace = scripted(engine, REQUESTS, lambda i, done, most: wrong_at(texts[i][done : done + most], 1), gamma=3)
    for request in trace.requests:
        for proposed, *counts in zip(request.proposed, request.tested, request.accepted, request.emitted, strict=True):
            expected = {0: [0, 0, 1], 1: [1, 1, 2]}.get(proposed, [2, 1, 2])
            assert counts == expected, "counted past the first rejection"
    assert any(3 in request.proposed for request in trace.requests)
    assert written(trace) == texts


def check_that_every_acceptance_stops_at_a_rejection() -> None:
    p = torch.eye(4)[None]  # the target wants 0, 1, 2, 3
    drafted = torch.tensor([[0, 3, 2]])
    u = torch.zeros(1, 4, dtype=torch.float64)
    q = torch.eye(4)[drafted]
    dlen = torch.tensor([3])
    for result in (
        accept.accept_greedy(p, drafted, dlen),
        accept.accept_one_hot(p, drafted, dlen, u),
        accept.accept_probabilistic(p, q, drafted, dlen, u[:, :3], u, u),
    ):
        assert result.count.tolist() == [1], "counted past the first rejection"
        assert result.next_token.tolist() == [1]


def test_accept_reject_accept_counts_one(engine: DecodingEngine, texts: Texts, monkeypatch: Patch) -> None:
    """Case 1. Broken: all accepted proposals are counted, not those before the first rejection."""
    check_that_every_acceptance_stops_at_a_rejection()
    check_that_nothing_counts_past_a_rejection(engine, texts)

    def all_that_are_right(ok: Tensor, dlen: Tensor) -> Tensor:
        return (ok & (torch.arange(ok.shape[1]) < dlen[:, None])).sum(dim=1)

    monkeypatch.setattr(accept, "_prefix_length", all_that_are_right)
    with noticed("past the first rejection"):
        check_that_every_acceptance_stops_at_a_rejection()
    with noticed("past the first rejection"):
        check_that_nothing_counts_past_a_rejection(engine, texts)


# The length of what was proposed stands beside every acceptance rate.


def check_that_one_token_drafts_are_seen(engine: DecodingEngine, texts: Texts) -> None:
    trace = scripted(engine, REQUESTS, lambda i, done, most: texts[i][done : done + min(most, 1)], gamma=4)
    found = acceptance(trace.requests, gamma=4)
    assert found.acceptance_rate == 1.0
    assert found.proposed_per_iteration <= 1.0, "one-token drafts look longer than they are"
    assert (found.draft_acceptance_rate, found.emitted_per_verification) == (1.0, 2.0)
    assert found.marginal == (1.0, 0.0, 0.0, 0.0)


def test_drafts_of_one_token_are_seen_beside_a_perfect_rate(
    engine: DecodingEngine, texts: Texts, monkeypatch: Patch
) -> None:
    """Case 2. Broken: γ proposals are counted whatever was proposed."""
    check_that_one_token_drafts_are_seen(engine, texts)

    def four_proposed(self: Slots, *block: Ints) -> Committed:
        done = right_commit(self, *block)
        return replace(done, proposed=np.minimum(4, done.room))

    monkeypatch.setattr(Slots, "commit", four_proposed)
    with noticed("look longer than they are"):
        check_that_one_token_drafts_are_seen(engine, texts)


# What was cut is not counted, and text, ids and counts end at an EOS wherever it stands.


def stopping(texts: Texts) -> list[Request]:
    """``REQUESTS`` with a stop inside their first block of five, of which the third token is the earliest."""
    places = [next(at for at in range(2, 5) if text[at] not in text[:at]) for text in texts]
    return [replace(r, stop_token_ids=(text[at],)) for r, text, at in zip(REQUESTS, texts, places, strict=True)]


def run_stopping(engine: DecodingEngine, texts: Texts) -> tuple[list[Request], Trace]:
    requests = stopping(texts)
    return requests, scripted(engine, requests, lambda i, done, most: texts[i][done : done + most], gamma=4)


def check_that_only_delivered_tokens_count(engine: DecodingEngine, texts: Texts) -> None:
    requests, trace = run_stopping(engine, texts)
    assert [request.finish for request in trace.requests] == ["stop"] * 3
    for request in trace.requests:
        assert 1 + sum(request.emitted) == len(request.output), "tokens count that were never delivered"
        assert request.accepted == request.tested == request.emitted, "proposals count that a stop cut off"
    assert_counts_hold(trace, requests)


def test_usage_is_what_was_delivered(engine: DecodingEngine, texts: Texts, monkeypatch: Patch) -> None:
    """Case 3. Broken: a block's counts are not cut where its text was; the gate sees it too."""
    check_that_only_delivered_tokens_count(engine, texts)

    def uncut(self: Slots, drafted: Ints, proposed: Ints, count: Ints, next_token: Ints) -> Committed:
        done = right_commit(self, drafted, proposed, count, next_token)
        return replace(done, tested=np.minimum(count + 1, proposed), accepted=count, emitted=count + 1)

    monkeypatch.setattr(Slots, "commit", uncut)
    with noticed("never delivered"):
        check_that_only_delivered_tokens_count(engine, texts)
    requests, trace = run_stopping(engine, texts)
    with pytest.raises(GateError, match="tokens of output"):
        check_trace(trace, requests, Schedule.constant(4))


@pytest.fixture(scope="module")
def orbit(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[DecodingEngine, list[int]]]:
    """An engine whose target looks at the last token alone, and the tokens it writes one after the other.

    Each is new, and the fifth is one of the target's two EOS.
    """
    model = tiny_llama()
    for layer in model.model.layers:
        torch.nn.init.zeros_(layer.self_attn.o_proj.weight)
    with torch.inference_mode():
        after = model(torch.arange(VOCABULARY)[:, None]).logits[:, -1].argmax(dim=-1).tolist()
    orbits = []
    for first in range(VOCABULARY):
        tokens = [first]
        while after[tokens[-1]] not in tokens:
            tokens.append(after[tokens[-1]])
        orbits.append(tokens)
    longest = max(orbits, key=len)
    assert len(longest) >= 8
    assert EOS not in longest[:7]
    model.generation_config.eos_token_id = [EOS, longest[4]]
    engine = DecodingEngine(EngineSettings(device="cpu"), threads=1)
    target = Target(name="orbit", source=save(model, tmp_path_factory.mktemp("orbit")), dtype="float32")
    engine.open(target, [NGRAM], Limits(concurrency=1, max_gamma=4))
    yield engine, longest
    engine.close()


def check_that_text_ends_inside_a_block(engine: DecodingEngine, orbit: list[int], finish: FinishReason) -> None:
    """The prompt holds the whole text, so that lookup proposes four right tokens, the third of which ends it."""
    request = Request(
        request_id="r",
        prompt_id="p",
        tokens=(*orbit[:7], orbit[0]),
        max_new_tokens=20,
        seed=0,
        ignore_eos=finish == "stop",
        stop_token_ids=(orbit[4],) if finish == "stop" else (),
    )
    trace = engine.run([request], GREEDY, NGRAM, Schedule.constant(4))
    (row,) = trace.requests
    assert row.output == tuple(orbit[1:5]), "the text goes on past its end"
    assert row.finish == finish
    assert (row.proposed, row.tested, row.accepted, row.emitted) == ((4,), (3,), (3,), (3,))
    (only,) = trace.iterations
    assert (only.emitted, only.stopped) == (3, 1)


def check_that_text_ends_at_every_place_of_a_block(
    open_engine: OpenEngine, target_model: PreTrainedModel, draft: DraftModel
) -> None:
    """With a draft that is always right, a stop at each place of a block is met by some γ."""
    endless = replace(REQUESTS[0], max_new_tokens=40)
    text = generated(target_model, endless)
    place = next(i for i in range(8, len(text)) if text[i] not in text[:i])
    request = replace(endless, stop_token_ids=(text[place],))
    for gamma in range(1, 8):
        trace = open_engine(draft, concurrency=1).run([request], GREEDY, draft, Schedule.constant(gamma))
        (row,) = trace.requests
        assert row.output == text[: place + 1], "the text goes on past its end"
        assert row.finish == "stop"
        assert_counts_hold(trace, [request])
        inside = place % (gamma + 1) != 0  # prefill gave the first token, so block k ends at token k (γ + 1)
        assert trace.iterations[-1].stopped == int(inside)
        assert sum(row.accepted) == sum(row.tested) == place - len(row.emitted) + int(inside)


def test_an_eos_inside_an_accepted_block_ends_everything(
    orbit: tuple[DecodingEngine, list[int]],
    open_engine: OpenEngine,
    target_model: PreTrainedModel,
    same_draft: DraftModel,
    monkeypatch: Patch,
) -> None:
    """Case 4. Broken: only the last token of a block is looked at, which plain decoding never notices."""
    check_that_text_ends_inside_a_block(*orbit, "eos")
    check_that_text_ends_inside_a_block(*orbit, "stop")
    check_that_text_ends_at_every_place_of_a_block(open_engine, target_model, same_draft)

    def blind(self: Slots, drafted: Ints, proposed: Ints, count: Ints, next_token: Ints) -> Committed:
        start = self.n[: self.active].copy()
        done = right_commit(self, np.zeros_like(drafted), proposed, count, next_token)  # 0 ends no text
        for row, taken in enumerate(count.tolist()):
            self.tokens[row, start[row] : start[row] + taken] = drafted[row, :taken]
        return done

    monkeypatch.setattr(Slots, "commit", blind)
    for finish in ("eos", "stop"):
        with noticed("past its end"):
            check_that_text_ends_inside_a_block(*orbit, finish)
    with noticed("past its end"):
        check_that_text_ends_at_every_place_of_a_block(open_engine, target_model, same_draft)


# As many tokens as were allowed.


def check_that_the_limit_is_met(engine: DecodingEngine, texts: Texts) -> None:
    for allowed in range(1, 8):
        requests = [replace(request, max_new_tokens=allowed) for request in REQUESTS]
        trace = scripted(engine, requests, lambda i, done, most: texts[i][done : done + most], gamma=3)
        for request, text in zip(trace.requests, texts, strict=True):
            assert len(request.output) <= allowed, "a block overshot"
            assert (request.finish, len(request.output)) == ("length", allowed), "said to be full and is not"
            assert request.output == text[:allowed]


def test_a_full_text_has_exactly_the_tokens_allowed(engine: DecodingEngine, texts: Texts, monkeypatch: Patch) -> None:
    """Case 5. Broken: room for one proposal too many; a limit that is met one token early."""
    check_that_the_limit_is_met(engine, texts)
    room, seat = Slots.room, Slots.seat
    monkeypatch.setattr(Slots, "room", lambda self: room(self) + 1)
    with noticed("overshot"):
        check_that_the_limit_is_met(engine, texts)
    monkeypatch.setattr(Slots, "room", room)

    def one_short(self: Slots, row: int, index: int, request: Request) -> None:
        seat(self, row, index, request)
        self.end[row] -= 1

    monkeypatch.setattr(Slots, "seat", one_short)
    with noticed("said to be full"):
        check_that_the_limit_is_met(engine, texts)

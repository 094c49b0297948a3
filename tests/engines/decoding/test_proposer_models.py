"""Draft models and early exits: their state, and what they draft from."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from tiny_models import GREEDY, VOCABULARY, WARM, mixed_requests, outputs, tiny_llama
from torch import Tensor

from pipeline.engines.contract import OFF, Request, Schedule
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.engines.decoding.forward import CachedModel
from pipeline.engines.decoding.hidden import FINAL
from pipeline.engines.decoding.loop import DecodingLoop
from pipeline.engines.decoding.proposers.contract import Proposal
from pipeline.engines.decoding.proposers.draft_model import DraftModelProposer
from pipeline.engines.decoding.proposers.early_exit import EarlyExitProposer
from pipeline.engines.decoding.slots import Ints, Slots
from pipeline.engines.decoding.transform import probabilities

OpenEngine = Callable[..., DecodingEngine]
CPU = torch.device("cpu")


def seated(prompts: list[list[int]], first: list[int]) -> Slots:
    slots = Slots(len(prompts), 64, VOCABULARY, ())
    slots.active = len(prompts)
    for row, (prompt, token) in enumerate(zip(prompts, first, strict=True)):
        request = Request(request_id=str(row), prompt_id="p", tokens=tuple(prompt), max_new_tokens=30, seed=row)
        slots.seat(row, row, request)
        slots.commit_first(row, token)
    return slots


def committed(slots: Slots, blocks: list[list[int]]) -> None:
    """Append ``blocks`` without drafting, as plain steps would."""
    for row, block in enumerate(blocks):
        slots.tokens[row, slots.n[row] : slots.n[row] + len(block)] = block
        slots.n[row] += len(block)


@pytest.mark.parametrize("behind", [0, 1, 2, 6])
def test_a_draft_that_fell_behind_proposes_what_a_fresh_one_would(behind: int) -> None:
    model = tiny_llama(seed=5)
    slots = seated([[7, 8, 9, 10], [20, 21]], [11, 22])
    with torch.inference_mode():
        proposer = DraftModelProposer(CachedModel(model, CPU), 2, 64, VOCABULARY, None)
        for row in range(2):
            proposer.prefill(row, slots.tokens[row, : slots.n[row] - 1], None)
        committed(slots, [[30 + i for i in range(behind)], [40 + 2 * i for i in range(behind // 2)]])
        proposal = proposer.propose(slots, np.array([4, 3]))
        assert (slots.n[:2] - proposer.valid).max() <= 2, (
            "far behind, a row catches up alone: no other repeats its tokens"
        )
        assert proposal.q is None
        assert proposal.proposed.tolist() == [4, 3]
        for row in range(2):
            text = slots.tokens[row, : slots.n[row]].tolist()
            for token in proposal.tokens[row].tolist():
                logits = tiny_llama(seed=5)(torch.tensor([text])).logits[0, -1]
                assert token == int(logits.argmax())
                text.append(token)


def test_keys_are_right_up_to_the_last_proposal_that_stands() -> None:
    """A full accept leaves the draft one token short, a rejection leaves it right."""
    slots = seated([[7, 8, 9, 10], [20, 21]], [11, 22])
    with torch.inference_mode():
        proposer = DraftModelProposer(CachedModel(tiny_llama(seed=5), CPU), 2, 64, VOCABULARY, None)
        for row in range(2):
            proposer.prefill(row, slots.tokens[row, : slots.n[row] - 1], None)
        drafted = proposer.propose(slots, np.array([3, 3])).tokens.numpy()
        slots.commit(drafted, np.array([3, 3]), np.array([3, 1]), np.array([50, 51]))
        proposer.after_verify(None, np.array([3, 1]))
        assert (slots.n[:2] - proposer.valid).tolist() == [2, 1]
        proposer.after_verify(None, np.array([0, 0]))  # a plain step drafted nothing
        assert (slots.n[:2] - proposer.valid).tolist() == [2, 1]
        proposer.move(1, 0, int(slots.n[1]))
        slots.move(1, 0)
        slots.active = 1
        moved = proposer.propose(slots, np.array([2])).tokens[0, 0]
        fresh = tiny_llama(seed=5)(torch.tensor([slots.tokens[0, : slots.n[0]].tolist()])).logits[0, -1]
        assert int(moved) == int(fresh.argmax())


@pytest.mark.parametrize("vocabulary", [VOCABULARY - 5, VOCABULARY + 7])
def test_a_draft_padded_to_another_size_gives_the_targets_vocabulary(vocabulary: int) -> None:
    slots = seated([[7, 8, 9, 10]], [11])
    with torch.inference_mode():
        draft = CachedModel(tiny_llama(seed=5, vocabulary=vocabulary), CPU)
        proposer = DraftModelProposer(draft, 1, 64, VOCABULARY, WARM)
        proposer.prefill(0, slots.tokens[0, :4], None)
        proposal = proposer.propose(slots, np.array([3]))
    assert proposal.q is not None
    assert proposal.q.shape == (1, 3, VOCABULARY)
    assert not proposal.q[..., min(vocabulary, VOCABULARY) :].any()
    torch.testing.assert_close(proposal.q.sum(dim=-1), torch.ones(1, 3))


def test_q_is_the_transformed_distribution_that_was_drawn_from() -> None:
    """Cases 7 and 8."""
    slots = seated([[7, 8, 9, 10], [20, 21]], [11, 22])
    with torch.inference_mode():
        proposer = DraftModelProposer(CachedModel(tiny_llama(seed=5), CPU), 2, 64, VOCABULARY, WARM)
        for row in range(2):
            proposer.prefill(row, slots.tokens[row, : slots.n[row] - 1], None)
        proposal = proposer.propose(slots, np.array([3, 3]))
        assert proposal.q is not None
        for row in range(2):
            text = slots.tokens[row, : slots.n[row]].tolist()
            for j, token in enumerate(proposal.tokens[row].tolist()):
                logits = tiny_llama(seed=5)(torch.tensor([text])).logits[0, -1]
                torch.testing.assert_close(proposal.q[row, j], probabilities(logits, WARM), rtol=1e-4, atol=1e-5)
                assert proposal.q[row, j, token] > 0
                text.append(token)


@pytest.mark.parametrize("layers", [1, 3])
def test_an_early_exit_is_the_target_cut_after_its_first_layers(layers: int) -> None:
    slots = seated([[7, 8, 9, 10], [20, 21]], [11, 22])
    cut = tiny_llama(layers=4)
    cut.model.layers = cut.model.layers[:layers]
    with torch.inference_mode():
        target = CachedModel(tiny_llama(layers=4), CPU)
        target.reserve(2, 64)
        for row in range(2):
            target.prefill(row, slots.tokens[row, : slots.n[row] - 1])
        proposal = EarlyExitProposer(target, layers, None).propose(slots, np.array([3, 3]))
        for row in range(2):
            text = slots.tokens[row, : slots.n[row]].tolist()
            for token in proposal.tokens[row].tolist():
                assert token == int(cut(torch.tensor([text]), use_cache=False).logits[0, -1].argmax())
                text.append(token)
    assert target.config.num_hidden_layers == 4


class Listener:
    """Proposes the token 5 where there is room, in every other iteration it is asked; keeps all it is told."""

    needs_hidden = (0, 2, 4, FINAL)
    kv_bytes = 0

    def __init__(self) -> None:
        self.prompts: dict[int, Tensor] = {}
        self.verified: list[tuple[Tensor, Ints]] = []
        self.asked = 0

    def prefill(self, row: int, tokens: Ints, hidden: Tensor | None) -> None:
        assert hidden is not None
        self.prompts[row] = hidden

    def propose(self, slots: Slots, dlen: Ints) -> Proposal:
        self.asked += 1
        tokens = torch.full((slots.active, int(dlen.max())), 5)
        return Proposal(tokens, None, dlen * (self.asked % 2))

    def after_verify(self, hidden: Tensor | None, accepted: Ints) -> None:
        assert hidden is not None
        self.verified.append((hidden, accepted))

    def move(self, source: int, target: int, length: int) -> None:
        self.prompts[target] = self.prompts[source]


def test_a_proposer_hears_of_every_iteration_with_the_hidden_states_it_asked_for() -> None:
    model = CachedModel(tiny_llama(), CPU)
    model.reserve(1, 64)
    request = Request(request_id="r", prompt_id="p", tokens=(7, 8, 9, 10), max_new_tokens=9, seed=0, ignore_eos=True)
    listener = Listener()
    loop = DecodingLoop(model, Slots(1, 64, VOCABULARY, ()), listener, GREEDY, Schedule.constant(2), [request])
    trace = loop.run()
    (row,) = trace.requests
    assert [it.width for it in trace.iterations] == [1 + it.proposed for it in trace.iterations]
    assert {it.width for it in trace.iterations} >= {1, 3}
    assert [h.shape[1] for h, _ in listener.verified] == [it.width for it in trace.iterations]
    text = torch.tensor([[*request.tokens, *row.output]])
    with torch.inference_mode():
        plain = tiny_llama()
        states = plain(text, output_hidden_states=True).hidden_states
        plain.model.norm = torch.nn.Identity()
        last = plain(text, output_hidden_states=True).hidden_states[-1]
    # states[0] is the embedding; states[-1] is normed, which the state after as many layers as there are is not here
    expected = torch.cat((states[0], states[2], last, states[-1]), dim=-1)
    assert listener.prompts[0].shape == (1, 4, 128)
    torch.testing.assert_close(listener.prompts[0], expected[:, :4], rtol=1e-4, atol=1e-4)
    at = 4
    for (hidden, taken), emitted in zip(listener.verified, row.emitted, strict=True):
        assert taken[0] == emitted - 1
        torch.testing.assert_close(hidden[:, :emitted], expected[:, at : at + emitted], rtol=1e-4, atol=1e-4)
        at += emitted
    layers = model.model.model.layers
    assert not layers[1]._forward_hooks, "nothing is left listening"
    assert not layers[0]._forward_pre_hooks


def test_draft_weights_are_shared_by_drafts_that_sample_differently(
    open_engine: OpenEngine, draft: object, greedy_draft: object
) -> None:
    engine = open_engine(draft, greedy_draft, concurrency=3)
    assert engine._drafts[draft] is engine._drafts[greedy_draft]
    plain = engine.run(mixed_requests(), GREEDY, None, OFF)
    for one in (draft, greedy_draft, draft):
        assert outputs(engine.run(mixed_requests(), GREEDY, one, Schedule.constant(3))) == outputs(plain)

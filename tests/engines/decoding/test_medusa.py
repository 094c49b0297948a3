"""Medusa heads: proposal i is head i's guess from the newest final hidden state there is."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny_heads import medusa_logits, write_medusa
from tiny_models import GREEDY, WARM, mixed_requests, outputs
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.engines.contract import OFF, Limits, Schedule
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.engines.decoding.proposers.contract import Proposal
from pipeline.engines.decoding.proposers.medusa import MedusaProposer
from pipeline.engines.decoding.slots import Ints, Slots
from pipeline.engines.decoding.transform import probabilities
from pipeline.records.failure import InputError
from pipeline.records.settings import EngineSettings
from pipeline.records.target import Medusa, Target

SCHEDULE = Schedule(((1, 2), (2, 0), (3, 4)))


def opened(target: Target, draft: Medusa, concurrency: int = 3) -> DecodingEngine:
    engine = DecodingEngine(EngineSettings(device="cpu"), threads=1)
    engine.open(target, [draft], Limits(concurrency=concurrency, max_gamma=6))
    return engine


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[int], list[int], Tensor | None]]:
    """What each row had committed, its proposals and their q, for every proposal made."""
    kept: list[tuple[list[int], list[int], Tensor | None]] = []
    real = MedusaProposer.propose

    def propose(proposer: MedusaProposer, slots: Slots, dlen: Ints) -> Proposal:
        proposal = real(proposer, slots, dlen)
        for row in range(slots.active):
            count = int(proposal.proposed[row])
            text = slots.tokens[row, : slots.n[row]].tolist()
            q = None if proposal.q is None else proposal.q[row, :count]
            kept.append((text, proposal.tokens[row, :count].tolist(), q))
        return proposal

    monkeypatch.setattr(MedusaProposer, "propose", propose)
    return kept


def logits_of(folder: Path, model: PreTrainedModel, text: list[int], count: int, layers: int = 1) -> list[Tensor]:
    """The heads' logits from the state at n − 2: the final one of the newest token that was read."""
    tensors = load_file(folder / "medusa_lm_head.safetensors")
    with torch.no_grad():
        hidden = model(torch.tensor([text]), output_hidden_states=True, use_cache=False).hidden_states[-1][0, -2]
    return [medusa_logits(tensors, hidden, head, layers) for head in range(count)]


@pytest.mark.parametrize("layers", [1, 2])
def test_proposals_are_the_heads_guesses_from_the_newest_state(
    tmp_path: Path,
    target: Target,
    target_model: PreTrainedModel,
    made: list[tuple[list[int], list[int], Tensor | None]],
    layers: int,
) -> None:
    draft = Medusa(name="m", source=str(write_medusa(tmp_path, layers=layers)), draft_sampling="greedy")
    engine = opened(target, draft)
    trace = engine.run(mixed_requests(7), GREEDY, draft, SCHEDULE)
    assert outputs(trace) == outputs(engine.run(mixed_requests(7), GREEDY, None, OFF))
    assert len(made) > 30
    for text, proposed, q in made:
        assert q is None
        logits = logits_of(tmp_path, target_model, text, len(proposed), layers)
        assert proposed == [int(each.argmax()) for each in logits]


def test_q_is_each_heads_own_transformed_distribution(
    tmp_path: Path,
    target: Target,
    target_model: PreTrainedModel,
    made: list[tuple[list[int], list[int], Tensor | None]],
) -> None:
    draft = Medusa(name="m", source=str(write_medusa(tmp_path)))
    opened(target, draft).run(mixed_requests(5), WARM, draft, Schedule.constant(3))
    assert len(made) > 10
    for text, proposed, q in made:
        assert q is not None
        for logits, token, each in zip(
            logits_of(tmp_path, target_model, text, len(proposed)), proposed, q, strict=True
        ):
            torch.testing.assert_close(each, probabilities(logits, WARM), rtol=1e-3, atol=1e-5)
            assert each[token] > 0


def test_heads_that_share_the_targets_output_layer_have_none_of_their_own(
    tmp_path: Path,
    target: Target,
    target_model: PreTrainedModel,
    made: list[tuple[list[int], list[int], Tensor | None]],
) -> None:
    draft = Medusa(name="m", source=str(write_medusa(tmp_path / "shared", shares=True)), draft_sampling="greedy")
    engine = opened(target, draft)
    engine.run(mixed_requests(3), GREEDY, draft, Schedule.constant(2))
    assert engine.draft_facts(draft).weight_bytes == 4 * (32 * 32 + 32) * 4
    tensors = load_file(tmp_path / "shared" / "medusa_lm_head.safetensors")
    tensors |= {f"{head}.1.weight": target_model.lm_head.weight.detach() for head in range(4)}
    for text, proposed, _ in made:
        with torch.no_grad():
            out = target_model(torch.tensor([text]), output_hidden_states=True, use_cache=False).hidden_states[-1]
        assert proposed == [int(medusa_logits(tensors, out[0, -2], j).argmax()) for j in range(len(proposed))]


def test_each_head_is_good_for_one_proposal(tmp_path: Path, target: Target) -> None:
    draft = Medusa(name="m", source=str(write_medusa(tmp_path, heads=3)))
    engine = opened(target, draft)
    engine.run(mixed_requests(1), GREEDY, draft, Schedule.constant(3))
    with pytest.raises(InputError, match=r"^drafts\.m: gamma 4 is more than its 3 heads$"):
        engine.run(mixed_requests(1), GREEDY, draft, Schedule.constant(4))

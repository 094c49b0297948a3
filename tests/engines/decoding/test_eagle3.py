"""EAGLE-3 heads: each proposal is what the equations give, whatever was verified, skipped, refilled or moved before."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
from tiny_heads import FLAT, SPECULATORS, Eagle3Equations, eagle3_entries, eagle3_tensors, write_eagle3
from tiny_models import (
    GREEDY,
    VOCABULARY,
    WARM,
    accepted,
    assert_counts_hold,
    mixed_requests,
    outputs,
)
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.engines.contract import OFF, Limits, Request, Schedule
from pipeline.engines.decoding import sampler
from pipeline.engines.decoding.accept import Accepted
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.engines.decoding.heads import eagle3_loading
from pipeline.engines.decoding.heads.eagle3_config import Eagle3Config
from pipeline.engines.decoding.proposers import eagle3 as proposer_module
from pipeline.engines.decoding.proposers.contract import Proposal
from pipeline.engines.decoding.proposers.eagle3 import Eagle3Proposer
from pipeline.engines.decoding.ragged import Ragged
from pipeline.engines.decoding.slots import Ints, Slots
from pipeline.engines.decoding.transform import probabilities
from pipeline.records.settings import EngineSettings
from pipeline.records.target import Eagle3, Target

KNOWN = [*range(2, 40), *range(41, 60, 2)]
"""A draft vocabulary: some of the target's tokens."""


@dataclasses.dataclass(frozen=True)
class Case:
    """A head's config.json, what the equations need to know of it, and the change that forgets it."""

    layout: str = SPECULATORS
    top: Mapping[str, object] = dataclasses.field(default_factory=dict)
    layer: Mapping[str, object] = dataclasses.field(default_factory=dict)
    states: tuple[int, ...] = (2, 2, 1)
    ids: list[int] | None = None
    embeddings: bool = True
    forgotten: Mapping[str, object] = dataclasses.field(default_factory=dict)

    @property
    def flags(self) -> dict[str, bool]:
        names = ("norm_before_residual", "norm_before_fc", "norm_output", "fc_norm")
        nested = self.top.get("eagle_config", {})
        return {name: bool(self.top.get(name) or nested.get(name)) for name in names}  # type: ignore[attr-defined]

    def write(self, folder: Path) -> Eagle3:
        entries = eagle3_entries(self.layout, self.layer, **self.top)
        if self.ids:
            entries["draft_vocab_size"] = len(self.ids)
        tensors = eagle3_tensors(entries, ids=self.ids, embeddings=self.embeddings, states=len(self.states))
        write_eagle3(folder, entries, tensors, self.layout)
        return Eagle3(name="head", source=str(folder), draft_sampling="greedy")


CASES = {
    "flat": Case(FLAT),
    "speculators": Case(),
    "norm before residual": Case(top={"norm_before_residual": True}, forgotten={"norm_before_residual": False}),
    "norm before residual, flat": Case(
        FLAT, top={"norm_before_residual": True}, forgotten={"norm_before_residual": False}
    ),
    "norm before fc": Case(top={"norm_before_fc": True}, forgotten={"norm_before_fc": False}),
    "norm before fc, nested": Case(
        FLAT, top={"eagle_config": {"norm_before_fc": True}}, forgotten={"norm_before_fc": False}
    ),
    "norms before fc": Case(top={"fc_norm": True}, forgotten={"fc_norm": False}),
    "norm output": Case(top={"norm_output": True}, forgotten={"norm_output": False}),
    "rope base": Case(layer={"rope_theta": 50.0}, forgotten={"rope": {"rope_type": "default", "rope_theta": 10000.0}}),
    "rope base, new spelling": Case(
        layer={"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}},
        forgotten={"rope": {"rope_type": "default", "rope_theta": 10000.0}},
    ),
    "layers of its own": Case(
        top={"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}, states=(0, 1, 3), forgotten={"states": None}
    ),
    "layers in the flat layout": Case(
        FLAT, top={"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}, states=(0, 1, 3), forgotten={"states": None}
    ),
    "two states": Case(top={"eagle_aux_hidden_state_layer_ids": [1, 3]}, states=(1, 3)),
    "layers left null": Case(
        top={"eagle_aux_hidden_state_layer_ids": None}, states=(2, 2, 1), forgotten={"states": (1, 2, 3)}
    ),
    "layers that count outputs": Case(
        FLAT,
        top={"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 0, 2], "use_aux_hidden_state": True}},
        states=(2, 1, 3),
        forgotten={"states": (1, 0, 2)},
    ),
    "missing embeddings": Case(embeddings=False),
    "a vocabulary of its own": Case(ids=KNOWN),
    "a vocabulary of its own, flat": Case(FLAT, ids=KNOWN, embeddings=False),
    "head dim": Case(layer={"head_dim": 16}),
    "biases": Case(layer={"attention_bias": True, "mlp_bias": True}),
    "a qwen3 layer": Case(layer={"model_type": "qwen3", "head_dim": 8}),
    "a window": Case(
        layer={"layer_types": ["sliding_attention"], "sliding_window": 3, "use_sliding_window": True},
        forgotten={"window": None},
    ),
    "norms of eagle 3.1": Case(
        top={"norm_before_residual": True, "norm_before_fc": True, "norm_output": True, "fc_norm": False},
        ids=KNOWN,
        embeddings=False,
    ),
}


class Recorder:
    """What each row had committed when its proposals were made."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: list[tuple[list[int], list[int]]] = []
        self.qs: list[Tensor] = []
        real = Eagle3Proposer.propose

        def propose(proposer: Eagle3Proposer, slots: Slots, dlen: Ints) -> Proposal:
            proposal = real(proposer, slots, dlen)
            for row in range(slots.active):
                count = int(proposal.proposed[row])
                text = slots.tokens[row, : slots.n[row]].tolist()
                self.made.append((text, proposal.tokens[row, :count].tolist()))
                if proposal.q is not None:
                    self.qs.append(proposal.q[row, :count])
            return proposal

        monkeypatch.setattr(Eagle3Proposer, "propose", propose)


def opened(target: Target, draft: Eagle3, concurrency: int = 3, max_gamma: int = 4) -> DecodingEngine:
    engine = DecodingEngine(EngineSettings(device="cpu"), threads=1)
    engine.open(target, [draft], Limits(concurrency=concurrency, max_gamma=max_gamma))
    return engine


def accept_freely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of proposals stands, right or not: a random head's hardly ever would."""

    def accept(logits: Tensor, drafted: Tensor, dlen: Tensor, ragged: Ragged | None = None) -> Accepted:
        logits = logits if ragged is None else ragged.spread(logits)
        count = (3 * drafted.sum(dim=1) + drafted[:, 0]) % (dlen + 1)
        return Accepted(count=count, next_token=logits[torch.arange(len(count)), count].argmax(dim=-1))

    monkeypatch.setattr(sampler, "accept_greedy", accept)


def agreement(recorder: Recorder, equations: Eagle3Equations) -> float:
    """The share of proposals made that are those of the equations."""
    same = [made == equations.proposals(text, len(made))[0] for text, made in recorder.made if made]
    assert len(same) > 20
    return sum(same) / len(same)


REQUESTS = [
    dataclasses.replace(request, max_new_tokens=min(request.max_new_tokens, 18)) for request in mixed_requests(7)
]


@pytest.mark.parametrize("name", CASES)
def test_proposals_are_those_of_the_equations(
    name: str, tmp_path: Path, target: Target, target_model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    draft = case.write(tmp_path)
    recorder = Recorder(monkeypatch)
    engine = opened(target, draft)
    # at 2 active nothing is drafted, so that the head has to catch up with some plain steps
    trace = engine.run(REQUESTS, GREEDY, draft, Schedule(((1, 2), (2, 0), (3, 4))))
    assert outputs(trace) == outputs(engine.run(REQUESTS, GREEDY, None, OFF))
    accept_freely(monkeypatch)
    trace = engine.run(REQUESTS, GREEDY, draft, Schedule(((1, 2), (2, 0), (3, 4))))
    assert 0.1 < accepted(trace) / sum(it.proposed for it in trace.iterations) < 0.9
    assert agreement(recorder, Eagle3Equations(tmp_path, target_model, case.states, **case.flags)) == 1.0


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.forgotten])
def test_a_head_whose_setting_is_overlooked_does_not_agree(
    name: str, tmp_path: Path, target: Target, target_model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    draft = case.write(tmp_path)
    real = eagle3_loading.eagle3_config

    def forgetful(*args: object) -> Eagle3Config:
        return dataclasses.replace(real(*args), **case.forgotten)  # type: ignore[arg-type]

    monkeypatch.setattr(eagle3_loading, "eagle3_config", forgetful)
    # a checkpoint's norm that the mutant has no place for must not be what stops it
    monkeypatch.setattr(eagle3_loading, "assign", _assign_what_fits)
    recorder = Recorder(monkeypatch)
    engine = opened(target, draft)
    engine.run(REQUESTS, GREEDY, draft, Schedule.constant(4))
    assert agreement(recorder, Eagle3Equations(tmp_path, target_model, case.states, **case.flags)) < 0.9


def _assign_what_fits(module: torch.nn.Module, tensors: Mapping[str, Tensor], *_: object) -> None:
    module.load_state_dict({n: t for n, t in tensors.items() if n in module.state_dict()}, assign=True)
    module.eval().requires_grad_(False)


def unrewritten(self: Eagle3Proposer, hidden: Tensor | None, accepted: Ints) -> None:
    """Keeps the entries that a proposal made of the head's own outputs when its tokens were accepted."""
    assert hidden is not None
    self.real_after_verify(hidden, accepted)  # type: ignore[attr-defined]
    for row, kept in enumerate(accepted.tolist()):
        if kept and self.waiting[row] == kept + 1:
            self._states[row] = self._states[row].roll(-kept, 0)
            self.valid[row] += kept
            self.waiting[row] -= kept


def late(self: Eagle3Proposer, hidden: Tensor | None, accepted: Ints) -> None:
    """Takes each token's state for that of the token after it."""
    assert hidden is not None
    self.real_after_verify(hidden.roll(1, dims=1), accepted)  # type: ignore[attr-defined]


@pytest.mark.parametrize("mutant", [unrewritten, late])
def test_a_head_that_reads_the_wrong_states_does_not_agree(
    mutant: object, tmp_path: Path, target: Target, target_model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = CASES["speculators"].write(tmp_path)
    accept_freely(monkeypatch)
    monkeypatch.setattr(Eagle3Proposer, "real_after_verify", Eagle3Proposer.after_verify, raising=False)
    monkeypatch.setattr(Eagle3Proposer, "after_verify", mutant)
    recorder = Recorder(monkeypatch)
    opened(target, draft).run(REQUESTS, GREEDY, draft, Schedule.constant(4))
    assert agreement(recorder, Eagle3Equations(tmp_path, target_model, (2, 2, 1))) < 0.9


def test_q_is_spread_over_the_targets_vocabulary_and_is_what_was_drawn_from(
    tmp_path: Path, target: Target, target_model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES["a vocabulary of its own"]
    draft = dataclasses.replace(case.write(tmp_path), draft_sampling="probabilistic")
    recorder = Recorder(monkeypatch)
    opened(target, draft).run(REQUESTS[:4], WARM, draft, Schedule.constant(3))
    equations = Eagle3Equations(tmp_path, target_model, case.states)
    assert len(recorder.qs) == len(recorder.made) > 5
    unknown = [token for token in range(VOCABULARY) if token not in KNOWN]
    for (text, made), q in zip(recorder.made, recorder.qs, strict=True):
        assert q.shape == (len(made), VOCABULARY)
        assert not q[:, unknown].any()
        torch.testing.assert_close(q.sum(dim=-1), torch.ones(len(made)))
        assert all(q[j, token] > 0 for j, token in enumerate(made))
        if made:
            _, (logits,) = equations.proposals(text, 1)
            torch.testing.assert_close(q[0, KNOWN], probabilities(logits, WARM), rtol=1e-3, atol=1e-5)


def test_long_prompts_are_read_in_chunks(
    tmp_path: Path, target: Target, target_model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(proposer_module, "PREFILL_CHUNK", 3)
    draft = CASES["speculators"].write(tmp_path)
    recorder = Recorder(monkeypatch)
    opened(target, draft).run(REQUESTS, GREEDY, draft, Schedule.constant(3))
    assert agreement(recorder, Eagle3Equations(tmp_path, target_model, (2, 2, 1))) == 1.0


def test_after_many_plain_steps_a_row_alone_catches_up(
    tmp_path: Path, target: Target, target_model: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than a verification is wide, beside rows that are not behind."""
    draft = CASES["speculators"].write(tmp_path)
    requests = [
        Request(request_id=str(i), prompt_id="p", tokens=(7, 8, 9 + i), max_new_tokens=m, seed=i, ignore_eos=True)
        for i, m in enumerate((14, 14, 30, 1, 12))
    ]
    recorder = Recorder(monkeypatch)
    engine = opened(target, draft, concurrency=3, max_gamma=2)
    schedule = Schedule(((1, 2), (2, 1), (3, 0)))
    trace = engine.run(requests, GREEDY, draft, schedule)
    assert outputs(trace) == outputs(engine.run(requests, GREEDY, None, OFF))
    accept_freely(monkeypatch)
    engine.run(requests, GREEDY, draft, schedule)
    assert agreement(recorder, Eagle3Equations(tmp_path, target_model, (2, 2, 1))) == 1.0


def test_a_head_decodes_in_low_precision_too(target: Target, eagle3: Eagle3) -> None:
    low = dataclasses.replace(target, dtype="bfloat16")
    engine = opened(low, eagle3)
    for sampling in (GREEDY, WARM):
        trace = engine.run(REQUESTS, sampling, eagle3, Schedule.constant(3))
        assert_counts_hold(trace, REQUESTS)
        assert accepted(trace) > 0


def test_a_head_says_what_it_costs_and_is_shared_by_drafts_that_sample_differently(
    tmp_path: Path, target: Target
) -> None:
    draft = CASES["a vocabulary of its own, flat"].write(tmp_path)
    other = dataclasses.replace(draft, name="drawn", draft_sampling="probabilistic")
    engine = opened(target, draft)
    engine.open(target, [other], Limits(concurrency=3, max_gamma=4))
    assert len(engine._heads) == 1
    trace = engine.run(REQUESTS, WARM, other, Schedule.constant(2))
    assert sum(it.proposed for it in trace.iterations) > 0
    facts = engine.draft_facts(other)
    own = eagle3_tensors(eagle3_entries(FLAT), ids=KNOWN, embeddings=False)
    assert facts.weight_bytes == sum(t.numel() * 4 for name, t in own.items() if name not in ("d2t", "t2d"))
    assert facts.kv_bytes == 2 * 3 * 2 * 64 * 8 * 4
    assert facts.revision.startswith("content-")

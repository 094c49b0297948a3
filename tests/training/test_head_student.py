"""What is trained is what drafts: each unrolled step equals the engine's head on the same text, and gradients flow."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from pipeline.engines.decoding.heads.eagle3 import Eagle3Head, Eagle3Weights
from pipeline.engines.decoding.heads.eagle3_config import Eagle3Config, eagle3_config
from pipeline.engines.decoding.heads.settings import Settings
from pipeline.training.student import Student

HIDDEN, VOCABULARY, KNOWN, STATES = 32, 50, 20, 3
VARIANTS = (
    {},
    {"norm_before_residual": True},
    {"norm_output": True},
    {"norm_before_fc": True, "fc_norm": True},
    {"num_key_value_heads": 4},
)


def config(**changes: object) -> Eagle3Config:
    entries = {
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": VOCABULARY,
        "draft_vocab_size": KNOWN,
        **changes,
    }
    return eagle3_config(Settings(entries, "test"), HIDDEN, VOCABULARY, "test")


def weights_of(config: Eagle3Config) -> Eagle3Weights:
    torch.manual_seed(1)
    weights = Eagle3Weights(config, STATES, own_embeddings=False)
    with torch.no_grad():
        for weight in weights.parameters():
            weight.add_(torch.randn_like(weight) * 0.2)
    return weights


@pytest.mark.parametrize("changes", VARIANTS, ids=[str(list(c)) for c in VARIANTS])
@torch.no_grad()
def test_each_step_is_what_the_engine_s_head_drafts(changes: dict[str, object]) -> None:
    this = config(**changes)
    embeddings = torch.randn(VOCABULARY, HIDDEN)
    tokens = torch.randint(0, VOCABULARY, (2, 12))
    states = torch.randn(2, 12, STATES * HIDDEN)
    steps = 4
    outputs = Student(this, weights_of(this), embeddings).unroll(tokens, states, steps)
    table = nn.Embedding.from_pretrained(embeddings)
    head = Eagle3Head(this, weights_of(this).eval(), table, (1, 2, 3), None, "")
    head.reserve(2, 16)
    fused = head.fuse(states)
    for known in range(1, 12 - steps + 1):  # so many entries have true states; the rest is a chain
        out = head.run(tokens[:, :known], fused[:, :known], np.zeros(2, dtype=np.int64))
        torch.testing.assert_close(outputs[0][:, known - 1], out[:, -1], atol=1e-4, rtol=1e-4)
        _, state = head.predict(out[:, -1])
        for step in range(1, steps):
            entry = known - 1 + step
            first = np.full(2, entry, dtype=np.int64)
            out = head.run(tokens[:, entry : entry + 1], state[:, None], first)
            torch.testing.assert_close(outputs[step][:, entry], out[:, 0], atol=1e-4, rtol=1e-4)
            _, state = head.predict(out[:, 0])


@given(length=st.integers(2, 9), cut=st.integers(1, 8), step=st.integers(0, 3))
@settings(max_examples=30)
def test_no_entry_sees_what_follows_it(length: int, cut: int, step: int) -> None:
    cut = min(cut, length - 1)
    this = config()
    student = Student(this, weights_of(this), torch.randn(VOCABULARY, HIDDEN))
    tokens, states = torch.randint(0, VOCABULARY, (1, length)), torch.randn(1, length, STATES * HIDDEN)
    changed, others = tokens.clone(), states.clone()
    changed[:, cut:] = (tokens[:, cut:] + 1) % VOCABULARY
    others[:, cut:] += 1
    with torch.no_grad():
        before = student.unroll(tokens, states, step + 1)[step]
        after = student.unroll(changed, others, step + 1)[step]
    torch.testing.assert_close(before[:, :cut], after[:, :cut], atol=1e-4, rtol=1e-4)
    assert not torch.allclose(before[:, cut:], after[:, cut:])


def test_a_later_step_does_not_read_the_states_that_would_give_its_answer_away() -> None:
    this = config()
    student = Student(this, weights_of(this), torch.randn(VOCABULARY, HIDDEN))
    tokens, states = torch.randint(0, VOCABULARY, (1, 8)), torch.randn(1, 8, STATES * HIDDEN)
    for step in (1, 2):
        others = states.clone()
        others[:, 6 - step + 1 :] += 1  # entry 6 of this step has true states up to 6 − step
        with torch.no_grad():
            before = student.unroll(tokens, states, 3)[step][:, 6]
            after = student.unroll(tokens, others, 3)[step][:, 6]
        torch.testing.assert_close(before, after)


def test_every_weight_of_the_layer_learns_from_every_step() -> None:
    this = config()
    weights = weights_of(this)
    student = Student(this, weights, torch.randn(VOCABULARY, HIDDEN))
    tokens, states = torch.randint(0, VOCABULARY, (2, 7)), torch.randn(2, 7, STATES * HIDDEN)
    for out in student.unroll(tokens, states, 3):
        logits, _ = weights.predict(out[:, 3:])
        grads = torch.autograd.grad(logits.logsumexp(-1).sum(), list(weights.parameters()), retain_graph=True)
        assert all(torch.isfinite(grad).all() and grad.abs().sum() > 0 for grad in grads)

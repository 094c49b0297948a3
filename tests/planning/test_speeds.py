"""Speedups on a roofline at an assumed α: the equations' own numbers, and where a candidate breaks even."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engines.devices import DEVICES
from pipeline.planning.speeds import ALPHAS, Scene, break_even
from pipeline.records.shape import ModelShape
from pipeline.records.target import Candidate, DraftModel, Ngram
from pipeline.speedup import expected_tokens

TARGET = ModelShape(
    num_hidden_layers=36,
    hidden_size=4096,
    intermediate_size=12288,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    vocab_size=151936,
)
SCENE = Scene(target=TARGET, device=DEVICES["h100"], dtype="bfloat16", rows=1, context=500, overhead=0.02)
SMALL = DraftModel(name="small", source="small")


@given(gamma=st.integers(1, 16), steps=st.floats(0.5, 20))
def test_at_the_break_even_a_candidate_emits_what_it_takes_and_below_it_less(gamma, steps):
    alpha = break_even(gamma, steps)
    if alpha is None:
        assert gamma + 1 < steps
    elif steps <= 1:
        assert alpha == 0
    else:
        assert expected_tokens(alpha, gamma) == pytest.approx(steps, rel=1e-6)
        assert expected_tokens(alpha * 0.9, gamma) < steps


@given(alpha=st.floats(0, 1), gamma=st.integers(1, 12))
def test_a_candidate_gains_exactly_above_its_break_even(alpha, gamma):
    planned = SCENE.weigh(Candidate(draft=SMALL, gamma=gamma), TARGET, alpha)  # as dear as the target itself
    assert planned.break_even > 0.9
    assert planned.speedup < 1.02  # the loop's own time is shared by more tokens
    free = SCENE.weigh(Candidate(draft=Ngram(name="ngram"), gamma=gamma), None, alpha)
    assert free.break_even is not None
    assert (free.speedup > 1) == (alpha > free.break_even) or free.speedup == pytest.approx(1)


def test_times_add_up_and_speedups_rise_with_alpha():
    planned = SCENE.weigh(Candidate(draft=Ngram(name="ngram"), gamma=4), None, 0.8)
    assert planned.emitted_per_verification == pytest.approx(3.3616)
    assert planned.speedup == pytest.approx(3.3616 * SCENE.tau0_ms / planned.tau_spec_ms)
    loop = SCENE.tau0_ms * 0.02 / 1.02
    assert planned.tau_spec_ms == pytest.approx(planned.tau_draft_ms + planned.tau_verify_ms + loop)
    assert tuple(planned.by_alpha) == ALPHAS
    assert list(planned.by_alpha.values()) == sorted(planned.by_alpha.values())

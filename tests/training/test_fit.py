"""Learning goes down, ends when it should, and goes on after a stop as if there had been none."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from test_head_student import HIDDEN, KNOWN, STATES, VOCABULARY, config, weights_of

from pipeline.records.head_training import FitSettings
from pipeline.training.divergence import Vocabulary
from pipeline.training.fit import Fit, learning_rate, watch
from pipeline.training.recorder import Choices
from pipeline.training.student import Student
from pipeline.training.teacher import Lesson

SETTINGS = FitSettings(epochs=50, draft_steps=2, batch_tokens=64, looks=4, steps=12, learning_rate=5e-3)
IDS = torch.arange(0, 2 * KNOWN, 2)


def lessons(count: int, seed: int = 0) -> list[Lesson]:
    """Texts that go up by two: easy to learn."""
    draw = torch.Generator().manual_seed(seed)
    found = []
    for i in range(count):
        tokens = (torch.randint(0, KNOWN, (1,), generator=draw) * 2 + 2 * torch.arange(9 + i % 4)) % (2 * KNOWN)
        states = torch.randn(len(tokens) - 1, STATES * HIDDEN, generator=draw).to(torch.bfloat16)
        ids = torch.stack((tokens[3:], (tokens[3:] + 2) % VOCABULARY), dim=1).to(torch.int32)
        choices = Choices(ids, torch.tensor([[3.0, 0.0]]).expand(len(ids), 2))
        found.append(Lesson(tokens.to(torch.int32), 2, states, choices))
    return found


def fit(path: Path, settings: FitSettings = SETTINGS, identity: str = "one") -> Fit:
    torch.manual_seed(3)
    this = config()
    student = Student(this, weights_of(this), torch.randn(VOCABULARY, HIDDEN))
    return Fit(student, Vocabulary(IDS, VOCABULARY), settings, path, identity)


def run(fit: Fit, stop_after: int | None = None) -> bool:
    return fit.run(lessons(20), lessons(6, seed=1), 3600.0, 0, lambda look: None, lambda: fit.steps == stop_after)


def test_it_learns_and_keeps_the_weights_that_agreed_most(tmp_path: Path) -> None:
    this = fit(tmp_path / "c.pt", dataclasses.replace(SETTINGS, steps=60))
    assert run(this)
    assert this.looks[-1].watched_loss < 0.8 * this.looks[0].watched_loss
    assert this.looks[-1].loss < 0.3 * this.looks[0].loss
    best = fit(tmp_path / "none.pt")
    best._student.weights.load_state_dict(this.best)
    _, agreement = watch(best._student, lessons(6, seed=1), Vocabulary(IDS, VOCABULARY), 2)
    assert agreement[0] == max(look.watched_agreement[0] for look in this.looks) == this.best_look.watched_agreement[0]


@pytest.mark.parametrize("steps", [1, 5, 11])
def test_a_stop_changes_nothing_but_the_time(tmp_path: Path, steps: int) -> None:
    whole = fit(tmp_path / "whole.pt")
    assert run(whole)
    assert not run(fit(tmp_path / "parts.pt"), stop_after=steps)
    rest = fit(tmp_path / "parts.pt")
    assert rest.steps == steps
    assert run(rest)
    assert rest.steps == whole.steps == SETTINGS.steps
    for name, weight in whole.best.items():
        torch.testing.assert_close(rest.best[name], weight)
    assert [look.step for look in rest.looks] == [look.step for look in whole.looks]
    assert run(fit(tmp_path / "parts.pt"))  # finished: nothing is left to do


def test_a_checkpoint_of_another_head_is_not_taken_up(tmp_path: Path) -> None:
    run(fit(tmp_path / "c.pt"))
    assert fit(tmp_path / "c.pt", identity="another").steps == 0


def test_time_ends_it(tmp_path: Path) -> None:
    this = fit(tmp_path / "c.pt")
    assert this.run(lessons(4), lessons(2), 0.0, 0, lambda look: None, lambda: False)
    assert this.steps == 0
    assert this.best


def test_it_ends_when_nothing_is_gained(tmp_path: Path) -> None:
    still = dataclasses.replace(SETTINGS, learning_rate=1e-12, looks=10, steps=40, patience=3)
    this = fit(tmp_path / "c.pt", still)
    assert run(this)
    assert len(this.looks) == 4
    assert this.best_look is this.looks[0]


def test_trying_the_rate_leaves_no_trace(tmp_path: Path) -> None:
    this = fit(tmp_path / "c.pt")
    before = {name: weight.clone() for name, weight in this._student.weights.state_dict().items()}
    assert this.probe(lessons(20)) > 0
    assert this.steps == 0
    for name, weight in this._student.weights.state_dict().items():
        assert torch.equal(weight, before[name])
    whole = fit(tmp_path / "d.pt")
    run(whole)
    run(this)
    for name, weight in whole.best.items():
        torch.testing.assert_close(this.best[name], weight)


@given(st.floats(0, 1), st.floats(0, 0.9))
def test_the_rate_rises_then_falls(progress: float, warmup: float) -> None:
    settings = FitSettings(warmup=warmup, learning_rate=1.0)
    rate = learning_rate(progress, settings)
    assert 0 < rate <= 1
    if progress > warmup:
        assert learning_rate(min(1.0, progress + 0.05), settings) <= rate
    elif progress < warmup:
        assert learning_rate(progress / 2, settings) <= rate

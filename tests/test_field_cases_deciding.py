"""Failures of other tuners in what they decide, each kind of it impossible here: whole sweeps of simulated cells.

Every check passes on the product as it is, and is shown to fail on one that is broken in just that way.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import pipeline.course
from pipeline.engines.machine import shape_text
from pipeline.interrupt import Interrupt
from pipeline.policy.decide import decide
from pipeline.records.cell import Sampling, Workload
from pipeline.records.decision import Decision
from pipeline.records.measurement import Measurement
from pipeline.records.settings import (
    ClusterSettings,
    DraftChoice,
    EngineSettings,
    SearchSettings,
    SweepSettings,
    TargetChoice,
    TrackingSettings,
)
from pipeline.records.shape import ModelShape
from pipeline.records.target import Draft, DraftModel, Ngram, Target
from pipeline.sweep import run_sweep
from pipeline.tracking.store import Store

pytestmark = pytest.mark.usefixtures("ray_cluster")

NGRAM, SMALL = Ngram(name="ngram"), DraftModel(name="small", source="simulated:")
Patch = pytest.MonkeyPatch
right_decide = decide

JUST_AT_THE_MARGIN = "alpha=.6&alpha_spread=.1&draft_ms=5.05&block_noise=.05"
"""On the prompts of its confirmation."""

_TARGET = ModelShape(
    num_hidden_layers=36,
    hidden_size=4096,
    intermediate_size=12288,
    num_attention_heads=32,
    num_key_value_heads=32,
    head_dim=128,
    vocab_size=151936,
)
_FEW_KEYS = replace(_TARGET, num_hidden_layers=30, num_key_value_heads=1)
KEYS_AND_VALUES = (
    f"alpha=.5&alpha_spread=.02&device=h100&max_context=9000&shape={shape_text(_TARGET)}"
    f"&shape.small={shape_text(_FEW_KEYS)}"
)
"""A draft of three quarters of the target's weights that keeps a thirtieth of its keys and values."""


class Quiet:
    """A Progress that says nothing."""

    def __getattr__(self, name):
        return lambda *_: None


def swept(
    tmp_path: Path,
    machine: str,
    draft: Draft,
    gammas: tuple[int, ...],
    concurrency: tuple[int, ...],
    workload: Workload = Workload(name="chat", output_tokens=24),  # noqa: B008
) -> tuple[tuple[Decision, ...], list[Measurement]]:
    """The decisions of a sweep in order of concurrency, and what was searched. Again, it measures nothing twice."""
    settings = SweepSettings(
        name="test",
        output_dir=str(tmp_path / "runs"),
        targets=(
            TargetChoice(
                target=Target(name="sim", source=f"simulated:?{machine}"),
                drafts=(DraftChoice(draft=draft, gammas=gammas),),
            ),
        ),
        workloads=(workload,),
        samplings=(Sampling(name="greedy"),),
        concurrency=concurrency,
        search=SearchSettings(strategy="grid"),
        engine=EngineSettings(name="simulated"),
        cluster=ClusterSettings(cpus_per_worker=1),
        tracking=TrackingSettings(enabled=False),
    )
    outcome = run_sweep(settings, Quiet(), Interrupt())  # type: ignore[arg-type]
    with Store(outcome.policy.parent) as store:
        searched = [m for m in store.measurements() if m.kind == "search"]
    assert len(json.loads(outcome.policy.read_text())["decisions"]) == len(outcome.decisions)
    return outcome.decisions, searched


def deciding(monkeypatch: Patch, rule: Callable[[Decision], bool]) -> None:
    """A product that is on exactly where ``rule`` says so."""

    def wrong(*arguments, **named):
        decision = right_decide(*arguments, **named)
        on = rule(decision)
        return replace(decision, status="on" if on else "off", speculate=on)

    monkeypatch.setattr(pipeline.course, "decide", wrong)


# Case 19: a draft that is accepted nearly always, and makes the service 30 % slower.


def check_that_a_slow_draft_is_off_however_well_it_guesses(tmp_path: Path) -> None:
    (decision,), _ = swept(tmp_path, "alpha=.9&draft_ms=12", SMALL, (4,), (1,))
    assert (decision.acceptance_rate or 0) > 0.8
    assert (decision.status, decision.speculate) == ("off", False), "on by its acceptance"
    assert decision.speedup == pytest.approx(0.7, abs=0.1)
    tokens = decision.speedup * decision.tau_spec_ms / decision.tau0_ms  # type: ignore[operator]
    assert f"small γ4 was best at {decision.speedup:.2f}×" in decision.reason
    assert f"an iteration gives {tokens:.2f} tokens and takes" in decision.reason


def test_a_slow_draft_is_off_however_well_it_guesses(tmp_path: Path, monkeypatch: Patch) -> None:
    check_that_a_slow_draft_is_off_however_well_it_guesses(tmp_path)
    deciding(monkeypatch, lambda decision: (decision.acceptance_rate or 0) > 0.8)
    with pytest.raises(AssertionError, match="on by its acceptance"):
        check_that_a_slow_draft_is_off_however_well_it_guesses(tmp_path)


# Case 20: speed falls as γ grows, and n-gram that gains alone loses in parallel.


def check_that_each_concurrency_has_a_decision_of_its_own(tmp_path: Path) -> None:
    decisions, searched = swept(
        tmp_path, "alpha=.6&alpha_spread=.05&token_ms=1.25&draft_ms=.1", NGRAM, (1, 2, 4), (1, 8)
    )
    alone, together = decisions
    assert (alone.status, together.status) == ("on", "off"), "one decision for all"
    assert (alone.speedup or 0) > 1.5
    assert (together.speedup or 9) < 1
    in_parallel = sorted((m.candidate.gamma, m.metrics.speedup) for m in searched if m.cell.concurrency == 8)
    falling = [speedup for _, speedup in in_parallel]
    assert falling == sorted(falling, reverse=True), "speed falls as gamma grows"
    assert together.gamma == 1, "and the least of them was the best there"


def test_each_concurrency_has_a_decision_of_its_own(tmp_path: Path, monkeypatch: Patch) -> None:
    check_that_each_concurrency_has_a_decision_of_its_own(tmp_path)
    deciding(monkeypatch, lambda decision: True)  # the decision of the first one
    with pytest.raises(AssertionError, match="one decision for all"):
        check_that_each_concurrency_has_a_decision_of_its_own(tmp_path)


# Case 23: inside the noise nothing is decided, whatever a replicate says.


def check_that_noise_decides_nothing(tmp_path: Path) -> None:
    """A draft that gains what the margin asks for: replicates lie to either side of it."""
    found = []
    for seed in (1, 2, 3):
        (decision,), _ = swept(tmp_path, f"{JUST_AT_THE_MARGIN}&seed={seed}", SMALL, (1,), (1,))
        found.append(decision)
    sides = {decision.speedup > 1.03 for decision in found if decision.speedup is not None}
    assert sides == {True, False}
    for decision in found:
        assert (decision.status, decision.speculate) == ("undecided", False), "decided by noise"
        spread = f"{decision.speedup_low:.2f}–{decision.speedup_high:.2f}"
        assert f"the interval {spread}" in decision.reason
        assert "includes 1.03" in decision.reason


def test_noise_decides_nothing(tmp_path: Path, monkeypatch: Patch) -> None:
    check_that_noise_decides_nothing(tmp_path)
    deciding(monkeypatch, lambda decision: (decision.speedup or 0) > 1.03)
    with pytest.raises(AssertionError, match="decided by noise"):
        check_that_noise_decides_nothing(tmp_path)


# Case 24: off at one request, on at sixteen, where long contexts make the target slow and not its draft.


def long_prompts(tmp_path: Path) -> Workload:
    path = tmp_path / "long.jsonl"
    lines = [
        {"id": f"long-{n}", "messages": [{"role": "user", "content": f"{n} " + "to be read again " * 240}]}
        for n in range(40)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return Workload(name="long", format="chat", path=str(path), output_tokens=16)


def check_that_no_monotony_is_assumed(tmp_path: Path) -> None:
    decisions, _ = swept(tmp_path, KEYS_AND_VALUES, SMALL, (1,), (1, 16), long_prompts(tmp_path))
    alone, together = decisions
    assert (alone.status, together.status) == ("off", "on"), "off above some load by rule"
    assert (alone.cell.concurrency, together.cell.concurrency) == (1, 16)
    assert (together.speculate, together.gamma) == (True, 1)


def test_a_cell_that_gains_under_load_alone_is_on_there(tmp_path: Path, monkeypatch: Patch) -> None:
    check_that_no_monotony_is_assumed(tmp_path)
    deciding(monkeypatch, lambda decision: decision.cell.concurrency < 8 and decision.status == "on")
    with pytest.raises(AssertionError, match="off above some load by rule"):
        check_that_no_monotony_is_assumed(tmp_path)

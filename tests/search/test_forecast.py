"""Forecasts of a cell agree with what its candidates then do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pipeline.engines.contract import Limits
from pipeline.engines.machine import Machine
from pipeline.engines.simulated import SimulatedEngine
from pipeline.measurement.prepare import Prepared, RenderedPrompt
from pipeline.measurement.round import measure_round
from pipeline.records.cell import Cell, Sampling, Workload
from pipeline.records.forecast import CellForecast, Forecast
from pipeline.records.settings import Protocol
from pipeline.records.target import Candidate, DraftModel, Eagle3, Ngram, Target
from pipeline.records.task import RoundTask
from pipeline.search.forecast import forecast_round

NGRAM, MODEL, HEAD = Ngram(name="ngram"), DraftModel(name="small", source="s"), Eagle3(name="head", source="h")
GREEDY, SAMPLED = Sampling(name="greedy"), Sampling(name="t1", temperature=1.0)
CANDIDATES = tuple(Candidate(draft=d, gamma=g) for d in (NGRAM, MODEL) for g in (1, 2, 4, 6))


def task_of(candidates: tuple[Candidate, ...], sampling: Sampling = GREEDY, concurrency: int = 1) -> RoundTask:
    cell = Cell(
        target=Target(name="sim", source="sim", dtype="float32"),
        workload=Workload(name="chat", output_tokens=40),
        sampling=sampling,
        concurrency=concurrency,
        accelerator="simulated",
    )
    return RoundTask(
        sweep="sweep-0123456789",
        cell=cell,
        drafts=tuple(dict.fromkeys(c.draft for c in candidates if c.draft is not None)),
        max_gamma=max(c.gamma for c in candidates),
        candidates=candidates,
        kind="forecast",
        replicate=0,
        first_prompt=0,
        prompt_count=8 * concurrency,
        level=0.95,
        protocol=Protocol(),
    )


def prepared() -> Prepared:
    prompts = (RenderedPrompt(f"chat-{n:03}", tuple(97 + (n * i) % 26 for i in range(1, 20))) for n in range(70))
    return Prepared(prompts=tuple(prompts), content_hash="0" * 64)


def opened(task: RoundTask, machine: Machine) -> SimulatedEngine:
    engine = SimulatedEngine(machine)
    limits = Limits(concurrency=task.cell.concurrency, max_gamma=task.max_gamma)
    engine.open(task.cell.target, task.drafts, limits)
    return engine


def forecast(task: RoundTask, machine: Machine) -> CellForecast:
    result = forecast_round(opened(task, machine), task, prepared(), lambda line: None)
    assert result.failures == ()
    assert result.baseline is not None
    assert result.baseline.round_kind == "forecast"
    assert result.forecast is not None
    assert result.forecast.baseline_ids == (result.baseline.id,)
    return result.forecast


def measured(task: RoundTask, machine: Machine) -> dict[Candidate, float]:
    result = measure_round(
        opened(task, machine), replace(task, kind="confirmation_look"), prepared(), lambda line: None
    )
    return {m.candidate: m.metrics.speedup for m in result.measurements}


QUIET = Machine(noise=0.0, eos_rate=0.01)


@pytest.mark.parametrize("concurrency", [1, 4])
def test_where_nothing_is_left_to_chance_and_no_time_is_noisy_the_forecast_is_the_measurement(concurrency: int) -> None:
    task = task_of(CANDIDATES, concurrency=concurrency)
    found = {f.candidate: f.speedup for f in forecast(task, QUIET).forecasts}
    real = measured(task, QUIET)
    tolerance = 1e-6 if concurrency == 1 else 0.02  # fillers are guessed
    assert found == pytest.approx(real, rel=tolerance)


def test_counts_of_the_forecast_are_the_measurement_s() -> None:
    task = task_of(CANDIDATES)
    found = {f.candidate: f for f in forecast(task, QUIET).forecasts}
    result = measure_round(opened(task, QUIET), replace(task, kind="confirmation_look"), prepared(), lambda line: None)
    for m in result.measurements:
        f = found[m.candidate]
        assert f.emitted_per_verification == pytest.approx(m.metrics.emitted_per_verification)
        assert f.acceptance_rate == pytest.approx(m.metrics.acceptance_rate)
        assert f.marginal == pytest.approx(m.marginal)
        assert f.tau_spec_ms == pytest.approx(m.metrics.tau_spec_ms)


def test_a_head_that_often_has_nothing_to_say_is_probed_for_that_too() -> None:
    task = task_of(tuple(Candidate(draft=HEAD, gamma=g) for g in (1, 3, 5)))
    machine = replace(QUIET, miss=0.4, eos_rate=0.0, match_tokens=1, alpha=0.9)
    real = measured(task, machine)
    for f in forecast(task, machine).forecasts:
        assert f.method == "probe"
        assert f.speedup == pytest.approx(real[f.candidate], rel=3 * f.error)


def test_drawn_proposals_are_foretold_on_average() -> None:
    task = task_of(CANDIDATES, sampling=SAMPLED)
    found = {f.candidate: f.speedup for f in forecast(task, QUIET).forecasts}
    assert found == pytest.approx(measured(task, QUIET), rel=0.15)  # luck on some 300 tokens


def test_a_head_is_probed_and_its_error_says_so() -> None:
    task = task_of(tuple(Candidate(draft=HEAD, gamma=g) for g in (1, 3, 5)))
    machine = replace(QUIET, miss=0.0, alpha_decay=0.8)
    found = {f.candidate: f for f in forecast(task, machine).forecasts}
    assert {f.method for f in found.values()} == {"probe"}
    for candidate, speedup in measured(task, machine).items():
        assert found[candidate].speedup == pytest.approx(speedup, rel=3 * found[candidate].error)


def test_noise_of_the_machine_shows_in_the_error_and_stays_within_it() -> None:
    task, machine = task_of(CANDIDATES), replace(QUIET, noise=0.1)
    quiet = {f.candidate: f for f in forecast(task, QUIET).forecasts}
    for f in forecast(task, machine).forecasts:
        assert f.error > quiet[f.candidate].error
        assert f.speedup == pytest.approx(quiet[f.candidate].speedup, rel=4 * f.error)


def test_a_draft_that_fails_spoils_no_other() -> None:
    task = task_of(CANDIDATES)
    machine = replace(QUIET, fail={"small": "out_of_memory"})
    result = forecast_round(opened(task, machine), task, prepared(), lambda line: None)
    assert result.forecast is not None
    assert {f.candidate.draft for f in result.forecast.forecasts} == {NGRAM}
    assert {(f.candidate, f.kind) for f in result.failures} == {
        (c, "out_of_memory") for c in CANDIDATES if c.draft == MODEL
    }


def test_a_baseline_that_fails_ends_it() -> None:
    task = task_of(CANDIDATES)
    result = forecast_round(opened(task, replace(QUIET, fail={"off": "error"})), task, prepared(), lambda line: None)
    assert (result.forecast, result.baseline) == (None, None)
    assert [f.candidate for f in result.failures] == [None]


def test_prompts_that_differ_show_in_the_spread() -> None:
    def spread(alpha_spread: float) -> Forecast:
        return forecast(task_of(CANDIDATES[2:3]), replace(QUIET, alpha_spread=alpha_spread)).forecasts[0]

    alike, unlike = spread(0.0), spread(0.25)
    assert alike.spread is not None
    assert unlike.spread is not None
    assert unlike.spread > alike.spread


def test_a_probe_without_room_says_nothing_rather_than_that_nothing_is_accepted() -> None:
    task = task_of((Candidate(draft=HEAD, gamma=20),))
    task = replace(task, cell=replace(task.cell, workload=replace(task.cell.workload, output_tokens=16)))
    full = replace(QUIET, max_context=19 + 16 + 20 + 1)  # no row ever has room for 20 proposals
    result = forecast_round(opened(task, full), task, prepared(), lambda line: None)
    assert result.forecast is not None
    assert result.forecast.forecasts == ()
    assert [f.kind for f in result.failures] == ["error"]


def test_widths_that_do_not_fit_leave_the_baseline_and_no_forecast() -> None:
    task = task_of(CANDIDATES)
    engine = opened(task, QUIET)

    def too_wide(*_: object, **__: object) -> None:
        raise MemoryError("no room")

    engine.time_widths = too_wide  # type: ignore[assignment]
    result = forecast_round(engine, task, prepared(), lambda line: None)
    assert result.baseline is not None
    assert result.forecast is not None
    assert result.forecast.forecasts == ()
    assert [(f.candidate, f.kind) for f in result.failures] == [(None, "error")]

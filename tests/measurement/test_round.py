"""A round: its order, its seeds, what it gives back, and what it survives."""

from __future__ import annotations

from dataclasses import replace
from math import log

import pytest
from simulated_rounds import GREEDY, NGRAM, OFF, QUIET, SAMPLED, SMALL

from pipeline.engines.machine import Machine
from pipeline.measurement.identity import measurement_id
from pipeline.measurement.round import as_failure, measure_round
from pipeline.measurement.statistics import log_ratio
from pipeline.records.failure import InputError
from pipeline.records.settings import Protocol
from pipeline.records.target import Candidate, DraftModel

TWO = (Candidate(draft=NGRAM, gamma=2), Candidate(draft=SMALL, gamma=4))


class Recorded:
    """An engine that remembers what was run on it."""

    def __init__(self, engine):
        self._engine = engine
        self.runs = []

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def run(self, arrivals, sampling, draft, schedule):
        self.runs.append((draft.name if draft else "off", schedule.max_gamma, tuple(arrivals)))
        return self._engine.run(arrivals, sampling, draft, schedule)


def test_arms_run_a_b_b_a_and_turn_round_every_other_block(make_task, prepared, engine_for):
    task = make_task(candidates=TWO, prompt_count=4)
    engine = Recorded(engine_for(task))
    result = measure_round(engine, task, prepared, lambda line: None)
    warm_up, measured = engine.runs[:3], engine.runs[3:]
    assert [name for name, *_ in warm_up] == ["off", "ngram", "small"]
    order = ["off", "ngram", "small", "off"]
    assert [name for name, *_ in measured] == (order + order[::-1]) * 2
    assert all(requests == measured[4 * (i // 4)][2] for i, (_, _, requests) in enumerate(measured))
    assert [(b.index, b.place) for b in result.baseline.trace_blocks] == [(i, p) for i in range(4) for p in (0, 3)]
    assert [[(b.index, b.place) for b in m.trace_blocks] for m in result.measurements] == [
        [(0, 1), (1, 2), (2, 1), (3, 2)],
        [(0, 2), (1, 1), (2, 2), (3, 1)],
    ]


def test_the_warm_up_is_short_and_thrown_away_but_reaches_full_width(make_task, make_cell, prepared, engine_for):
    task = make_task(make_cell(output_tokens=40), candidates=(Candidate(draft=SMALL, gamma=12),), max_gamma=12)
    engine = Recorded(engine_for(task))
    result = measure_round(engine, task, prepared, lambda line: None)
    (_, _, (off,)), (_, _, (speculative,)) = engine.runs[:2]
    assert (off.max_new_tokens, speculative.max_new_tokens) == (8, 14)
    assert len(result.baseline.trace_blocks) == 2 * 8
    assert all(
        r.prompt_tokens >= 10 and len(r.output) == 40 for b in result.baseline.trace_blocks for r in b.trace.requests
    )


def test_records_name_what_they_are(make_task, measure):
    task = make_task(candidates=TWO, replicate=3, baseline_replicate=7, kind="confirmation_look", level=0.98)
    result = measure(task)
    baseline = result.baseline
    assert baseline.id == measurement_id(task.sweep, task.cell.key, None, "confirmation_look", 7)
    assert (baseline.round_kind, baseline.replicate, baseline.cell) == ("confirmation_look", 7, task.cell.key)
    assert baseline.tau0_ms == pytest.approx(10.1)
    assert result.failures == ()
    for measurement, candidate in zip(result.measurements, TWO, strict=True):
        assert measurement.id == measurement_id(task.sweep, task.cell.key, candidate, "confirmation_look", 3)
        assert (measurement.kind, measurement.replicate, measurement.candidate) == (task.kind, 3, candidate)
        assert measurement.baseline_ids == (baseline.id,)
        assert measurement.metrics.interval_level == 0.98
        assert measurement.metrics.baseline_output_tokens_per_s == pytest.approx(baseline.output_tokens_per_s)
        assert measurement.provenance.engine == "simulated"
        assert measurement.provenance.host
        assert (measurement.metrics.units, measurement.metrics.blocks) == (8, 8)
    assert len({m.content_id for m in result.measurements}) == 2
    assert [m.metrics.draft_weight_bytes for m in result.measurements] == [0, 1 << 20]


def test_the_speedup_that_the_machine_has_comes_out(make_task, make_cell, measure):
    machine = Machine(noise=0.02, alpha=0.8, alpha_spread=0.05, draft_ms=0.5, overhead_ms=0.0)
    task = make_task(make_cell(output_tokens=200), candidates=(Candidate(draft=SMALL, gamma=4),), prompt_count=12)
    (measurement,) = measure(task, machine).measurements
    metrics = measurement.metrics
    truth = 3.3616 / 1.2
    assert metrics.speedup == pytest.approx(truth, rel=0.06)
    assert metrics.speedup_low <= truth <= metrics.speedup_high
    assert metrics.speedup_high / metrics.speedup_low < 1.2


@pytest.mark.parametrize(("concurrency", "faster"), [(1, True), (32, False)])
def test_a_draft_that_pays_alone_loses_in_parallel(make_task, make_cell, measure, concurrency, faster):
    machine = Machine(tau0_ms=10, token_ms=0.3, alpha=0.6, draft_ms=1.0)
    cell = make_cell(concurrency=concurrency, output_tokens=30)
    task = make_task(cell, candidates=(Candidate(draft=SMALL, gamma=4),), prompt_count=96, distinct_prompts=40)
    (measurement,) = measure(task, machine).measurements
    assert (measurement.metrics.speedup > 1) == faster
    assert (measurement.metrics.break_even_margin > 0) == faster


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_off_beside_off_covers_one(make_task, make_cell, measure, concurrency, sampling):
    task = make_task(make_cell(sampling, concurrency), candidates=(OFF,), kind="aa")
    result = measure(task, Machine(noise=0.05, block_noise=0.03))
    (measurement,) = result.measurements
    metrics = measurement.metrics
    assert measurement.kind == "aa"
    assert metrics.speedup_low < 1 < metrics.speedup_high
    assert metrics.speedup == pytest.approx(1, abs=0.1)
    assert (metrics.near_ties, metrics.draft_weight_bytes, metrics.emitted_per_verification) == (0, 0, 1.0)


def test_a_sampled_round_gives_every_arm_the_same_seeds(make_task, make_cell, measure):
    task = make_task(make_cell(SAMPLED), candidates=TWO, prompt_count=4, protocol=Protocol(seeds=3))
    result = measure(task)
    seeds = [
        [(r.request_id, r.seed) for b in record.trace_blocks if b.place < 3 for r in b.trace.requests if r.counted]
        for record in (result.baseline, *result.measurements)
    ]
    assert seeds[0] == seeds[1] == seeds[2]
    assert len(set(seeds[0])) == 12
    assert [m.metrics.units for m in result.measurements] == [4, 4]


def test_two_candidates_of_a_round_compare_pairwise(make_task, measure):
    task = make_task(candidates=(Candidate(draft=SMALL, gamma=4), Candidate(draft=SMALL, gamma=3)), prompt_count=12)
    a, b = measure(task, Machine(noise=0.01)).measurements
    ratio, error = log_ratio(a, b)
    assert ratio == pytest.approx(log(a.metrics.speedup / b.metrics.speedup))
    assert 0 < error < log(a.metrics.speedup_high / a.metrics.speedup_low)


@pytest.mark.parametrize(
    ("fault", "kind", "message"),
    [
        ("out_of_memory", "out_of_memory", "MemoryError: simulated: bad does not fit"),
        ("error", "error", "RuntimeError: simulated: bad is broken"),
        ("wrong_text", "gate", "no tie"),
    ],
)
@pytest.mark.parametrize("fail_after", [0, 4])
def test_a_candidate_that_fails_is_dropped_and_the_others_go_on(make_task, measure, fault, kind, message, fail_after):
    bad = Candidate(draft=DraftModel(name="bad", source="bad"), gamma=2)
    task = make_task(candidates=(TWO[0], bad, TWO[1]))
    result = measure(task, replace(QUIET, fail={"bad": fault}, fail_after=fail_after))
    assert [m.candidate for m in result.measurements] == list(TWO)
    assert all(len(m.trace_blocks) == 8 for m in result.measurements)
    (failure,) = result.failures
    assert (failure.cell, failure.candidate, failure.kind) == (task.cell.key, bad, kind)
    assert message in failure.message
    assert "Traceback" in failure.details
    alone = measure(replace(task, candidates=TWO), QUIET)
    assert [m.metrics.speedup for m in alone.measurements] == [m.metrics.speedup for m in result.measurements]


def test_with_no_candidate_left_there_is_nothing_to_give_back(make_task, measure):
    task = make_task(candidates=TWO)
    result = measure(task, replace(QUIET, fail={"ngram": "error", "small": "out_of_memory"}))
    assert (result.baseline, result.measurements) == (None, ())
    assert [f.kind for f in result.failures] == ["error", "out_of_memory"]


def test_a_baseline_that_fails_ends_the_round(make_task, measure):
    task = make_task(candidates=TWO)
    for fail_after in (0, 6):
        result = measure(task, replace(QUIET, fail={"off": "out_of_memory"}, fail_after=fail_after))
        assert (result.baseline, result.measurements) == (None, ())
        assert [(f.kind, f.candidate) for f in result.failures] == [("out_of_memory", None)]


def test_a_prompt_that_does_not_fit_is_refused_for_the_whole_cell(make_task, measure):
    result = measure(make_task(), Machine(max_context=30))
    assert [(f.kind, f.candidate) for f in result.failures] == [("refused", None)]


def test_an_unstable_baseline_is_caught_by_its_second_pass(make_task, prepared, engine_for):
    task = make_task(candidates=TWO)
    engine = engine_for(task)

    class Unstable(Recorded):
        def run(self, arrivals, sampling, draft, schedule):
            trace = super().run(arrivals, sampling, draft, schedule)
            if len(self.runs) == 7:  # three of warm-up, then the fourth of the first block
                first = trace.requests[0]
                wrong = replace(first, output=(*first.output[:-1], 33))
                trace = replace(trace, requests=(wrong, *trace.requests[1:]))
            return trace

    result = measure_round(Unstable(engine), task, prepared, lambda line: None)
    assert (result.baseline, result.measurements) == (None, ())
    assert [(f.kind, f.candidate) for f in result.failures] == [("gate", None)]


def test_near_ties_are_counted_and_the_measurement_stands(make_task, measure):
    machine = replace(QUIET, fail={"ngram": "wrong_text"}, tie_margin=1e-4)
    good, bad = measure(make_task(candidates=(TWO[1], TWO[0])), machine).measurements
    assert (good.metrics.near_ties, bad.metrics.near_ties) == (0, 8)


def test_a_round_with_stops_gives_every_arm_the_same_text(make_task, make_cell, measure):
    """Its greedy texts are compared, and its counts are held to the identities."""
    cell = make_cell(concurrency=2, stop=("e", "xy"), stop_token_ids=(100,))
    result = measure(make_task(cell, candidates=(Candidate(draft=NGRAM, gamma=4), Candidate(draft=SMALL, gamma=2))))
    assert len(result.measurements) == 2
    rows = [row for block in result.measurements[0].trace_blocks for row in block.trace.requests if row.counted]
    assert {row.stop_string for row in rows} >= {"", "e"}
    assert {row.finish for row in rows} >= {"stop"}
    assert all("e" not in row.text for row in rows)


def test_prompts_that_end_at_once_fail_the_cell_with_a_reason(make_task, make_cell, measure):
    result = measure(make_task(make_cell(output_tokens=1)))
    assert result.baseline is None
    assert [(f.kind, f.candidate) for f in result.failures] == [("gate", None)]
    assert "first token" in result.failures[0].message


def test_progress_says_which_block_is_being_measured(make_task, prepared, engine_for):
    task = make_task(prompt_count=3)
    lines: list[str] = []
    measure_round(engine_for(task), task, prepared, lines.append)
    assert lines[1:] == [f"sim · chat · greedy · C1 · block {n}/3 · 1 candidate beside the baseline" for n in (1, 2, 3)]


def test_errors_are_known_by_what_they_are(make_cell):
    key = make_cell().key
    out_of_memory = type("OutOfMemoryError", (RuntimeError,), {})
    kinds = {
        "refused": InputError("no such file: x"),
        "out_of_memory": out_of_memory("CUDA ran out\nand more"),
        "error": KeyError("x"),
    }
    for kind, error in kinds.items():
        failure = as_failure(key, None, error)
        assert failure.kind == kind
        assert "\n" not in failure.message
    assert as_failure(key, None, RuntimeError("[enforce fail] can't allocate memory")).kind == "out_of_memory"
    assert as_failure(key, None, kinds["refused"]).message == "no such file: x"
    assert as_failure(key, None, ValueError()).message == "ValueError: ValueError"

"""Looks of a confirmation, pooled: what one long look would have given."""

from __future__ import annotations

from dataclasses import replace

import pytest
from simulated_rounds import GREEDY, SAMPLED, SMALL

from pipeline.engines.machine import Machine
from pipeline.measurement.identity import measurement_id
from pipeline.measurement.pool import pool
from pipeline.records.target import Candidate

CANDIDATE = Candidate(draft=SMALL, gamma=4)


@pytest.fixture
def looks_of(make_task, measure):
    """Rounds over consecutive spans of prompts, as looks."""

    def go(cell, spans, machine=None, **changes):
        rounds = [
            measure(
                make_task(
                    cell,
                    candidates=(CANDIDATE,),
                    kind="confirmation_look",
                    replicate=n,
                    baseline_replicate=n,
                    first_prompt=first,
                    prompt_count=count,
                    **changes,
                ),
                machine or Machine(noise=0, eos_rate=0.02),
            )
            for n, (first, count) in enumerate(spans)
        ]
        return [r.measurements[0] for r in rounds], [r.baseline for r in rounds]

    return go


@pytest.mark.parametrize(("sampling", "concurrency"), [(GREEDY, 1), (SAMPLED, 1), (GREEDY, 4)])
def test_pooled_looks_are_one_long_look(make_cell, looks_of, sampling, concurrency):
    cell = make_cell(sampling, concurrency)
    looks, baselines = looks_of(cell, [(6, 8), (14, 4), (18, 12)])
    ((whole,), _) = looks_of(cell, [(6, 24)])
    pooled = pool(looks, baselines, 0.95)
    assert (pooled.metrics.units, pooled.metrics.blocks) == (24, whole.metrics.blocks)
    assert pooled.marginal == pytest.approx(whole.marginal)
    for name in ("speedup", "speedup_low", "speedup_high", "speedup_e2e", "gap_ms_p95", "prompt_output_overlap"):
        assert getattr(pooled.metrics, name) == pytest.approx(getattr(whole.metrics, name)), name
    assert pooled.by_output_position == whole.by_output_position
    assert pooled.by_context == whole.by_context
    assert [u.emitted for u in sorted(pooled.unit_sums, key=lambda u: u.prompt_id)] == [
        u.emitted for u in sorted(whole.unit_sums, key=lambda u: u.prompt_id)
    ]


def test_a_confirmation_names_its_parts(make_cell, looks_of):
    looks, baselines = looks_of(make_cell(), [(6, 4), (10, 4)])
    pooled = pool(looks, baselines, 0.98)
    assert pooled.id == measurement_id(looks[0].sweep, looks[0].cell, CANDIDATE, "confirmation", 0)
    assert (pooled.kind, pooled.replicate, pooled.trace_blocks) == ("confirmation", 0, ())
    assert pooled.parts == tuple(look.id for look in looks)
    assert pooled.baseline_ids == tuple(baseline.id for baseline in baselines)
    assert pooled.metrics.interval_level == 0.98
    assert [b.index for b in pooled.block_sums] == list(range(8))
    assert pooled.content_id != pool(looks[:1], baselines, 0.98).content_id


def test_more_looks_narrow_the_interval_and_a_higher_level_widens_it(make_cell, looks_of):
    looks, baselines = looks_of(make_cell(), [(6, 4), (10, 8), (18, 12)], Machine())

    def width(count, level):
        metrics = pool(looks[:count], baselines, level).metrics
        return metrics.speedup_high / metrics.speedup_low

    assert width(3, 0.95) < width(2, 0.95) < width(1, 0.95)
    assert width(3, 0.98) > width(3, 0.95)


def test_a_prompt_that_comes_again_stays_one_unit(make_cell, looks_of):
    first, one = looks_of(make_cell(), [(6, 4)], distinct_prompts=4)
    again, two = looks_of(make_cell(), [(6, 4)], distinct_prompts=4, prompt_offset=4)
    # Both rounds are replicate 0 here; in a confirmation each look has its own.
    two = [replace(two[0], id="other")]
    again = [replace(again[0], baseline_ids=("other",))]
    pooled = pool([*first, *again], [*one, *two], 0.95)
    assert (pooled.metrics.units, pooled.metrics.blocks) == (4, 8)


def test_near_ties_add_up(make_cell, looks_of):
    looks, baselines = looks_of(make_cell(), [(6, 4), (10, 4)])
    tied = [replace(look, metrics=replace(look.metrics, near_ties=n)) for n, look in enumerate(looks, 2)]
    assert pool(tied, baselines, 0.95).metrics.near_ties == 5


def test_what_does_not_belong_together_is_not_pooled(make_cell, looks_of):
    looks, baselines = looks_of(make_cell(), [(6, 4), (10, 4)])
    other = replace(looks[1], candidate=replace(CANDIDATE, gamma=3))
    for given, beside, message in (
        ([], baselines, "at least one look"),
        ([looks[0], other], baselines, "cannot be pooled"),
        (looks, baselines[:1], "lacks its baselines"),
        ([replace(looks[0], trace_blocks=())], baselines, "need their traces"),
    ):
        with pytest.raises(ValueError, match=message):
            pool(given, beside, 0.95)

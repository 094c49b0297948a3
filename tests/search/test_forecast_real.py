"""Forecasts of the default target beside real speculation: of tokens they are exact where no near-tie parts texts."""

from __future__ import annotations

import pytest

from pipeline.benchmarks.search.real_cells import measure_cell, real_rows
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.records.settings import EngineSettings

SMALL = (
    "targets.smollm2.drafts.ngram.gammas=[1,4]",
    "targets.smollm2.drafts.early_exit.gammas=[1,2]",
    "protocol.search_prompts=3",
    "protocol.confirm_prompts=3",
    "output_tokens=16",
)


@pytest.mark.slow
def test_every_candidate_accepts_what_replay_says() -> None:
    cell = measure_cell(DecodingEngine(EngineSettings()), "chat", 2, lambda line: None, SMALL)
    assert len(cell.measured) == len(cell.forecasts) == 4
    for candidate, measurement in cell.measured.items():
        metrics, forecast = measurement.metrics, cell.forecasts[candidate]
        if metrics.near_ties:
            continue
        assert forecast.emitted_per_verification == pytest.approx(metrics.emitted_per_verification)
        assert forecast.acceptance_rate == pytest.approx(metrics.acceptance_rate)
        assert forecast.marginal == pytest.approx(measurement.marginal)
    rows = {row.metric: row for row in real_rows([cell])}
    assert rows["forecast_error_e"].holds

"""A measurement and a forecast made up from a few figures, for every test that needs one."""

from __future__ import annotations

import os

if "PYTEST_XDIST_WORKER" in os.environ:  # before torch is imported: threads of several processes wait for each other
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import settings

from pipeline.records.cell import CellKey
from pipeline.records.forecast import CellForecast, Forecast
from pipeline.records.measurement import AcceptanceBin, BlockSums, Measurement, Metrics, Unit
from pipeline.records.provenance import Provenance
from pipeline.records.target import Candidate, Ngram

settings.register_profile("busy machine", deadline=None)  # no test asserts a time
settings.load_profile("busy machine")

CELL = CellKey(target="smollm2", workload="chat", sampling="greedy", concurrency=1, accelerator="cpu")
PROVENANCE = Provenance(
    **{f.name: {"threads": 2, "graphs": False}.get(f.name, "") for f in fields(Provenance)}  # type: ignore[arg-type]
)


def acceptance_bin(low: int, high: int, tested: int = 100, accepted: int = 60) -> AcceptanceBin:
    return AcceptanceBin(
        low=low,
        high=high,
        row_iterations=100,
        proposed=400,
        tested=tested,
        accepted=accepted,
        emitted=100 + accepted,
    )


def _measurement(id: str = "m1", *, speedup: float = 1.4, units: int = 12, spread: float = 0.0, **changes: Any):
    """``units`` prompts whose time alternates by ``spread`` (relative) around what ``speedup`` makes it."""
    empty = {"bool": False}
    metrics: dict[str, Any] = {
        f.name: None if "None" in str(f.type) else empty.get(str(f.type), 0.0) for f in fields(Metrics)
    }
    metrics |= {
        "speedup": speedup,
        "speedup_low": speedup * 0.95,
        "speedup_high": speedup * 1.05,
        "interval_level": 0.95,
        "units": units,
        "blocks": 6,
        "emitted_per_verification": 2.1,
        "acceptance_rate": 0.6,
        "tau0_ms": 10.0,
        "tau_spec_ms": 21.0 / speedup,
    } | {name: value for name, value in changes.items() if name in {f.name for f in fields(Metrics)}}
    sums = tuple(
        Unit(
            prompt_id=f"p{i}",
            emitted=210,
            row_iterations=100,
            tau_ms=2100.0 / speedup * (1 + spread * (-1) ** i),
            baseline_emitted=210,
            baseline_row_iterations=210,
            baseline_tau_ms=2100.0,
        )
        for i in range(units)
    )
    blocks = tuple(BlockSums(index=i, tau_ms=21.0 / speedup, baseline_tau_ms=10.0) for i in range(6))
    record: dict[str, Any] = {
        "id": id,
        "content_id": f"content-{id}",
        "sweep": "demo-0000000000",
        "kind": "search",
        "cell": CELL,
        "candidate": Candidate(draft=Ngram(name="ngram"), gamma=4),
        "replicate": 0,
        "baseline_ids": (),
        "parts": (),
        "provenance": PROVENANCE,
        "metrics": Metrics(**metrics),
        "marginal": (0.6, 0.35, 0.2, 0.1),
        "conditional": (0.6, 0.58, 0.57, 0.5),
        "by_output_position": (acceptance_bin(0, 7), acceptance_bin(8, 15, accepted=50)),
        "by_context": (acceptance_bin(128, 255, tested=200, accepted=110),),
        "unit_sums": sums,
        "block_sums": blocks,
    } | {name: value for name, value in changes.items() if name not in metrics}
    return Measurement(**record)


@pytest.fixture
def make_measurement() -> Callable[..., Measurement]:
    """``make_measurement(id, speedup=…, units=…, spread=…)``; any field of Measurement or Metrics by keyword."""
    return _measurement


def _forecast(speedups: Mapping[tuple[str, int], float], **changes: Any) -> CellForecast:
    forecasts = tuple(
        Forecast(
            candidate=Candidate(draft=Ngram(name=draft), gamma=gamma),
            method="replay",
            speedup=speedup,
            error=0.02,
            spread=None,
            emitted_per_verification=1.5,
            acceptance_rate=0.4,
            proposed_per_iteration=1.2,
            marginal=(0.4, 0.1),
            tau_draft_ms=0.1,
            tau_verify_ms=20.0,
            tau_overhead_ms=0.5,
            tau_spec_ms=20.6,
        )
        for (draft, gamma), speedup in speedups.items()
    )
    record: dict[str, Any] = {
        "id": "f1",
        "sweep": "demo-0000000000",
        "cell": CELL,
        "baseline_ids": ("b1",),
        "provenance": PROVENANCE,
        "prompts": 6,
        "tau0_ms": 19.0,
        "forecasts": forecasts,
    }
    return CellForecast(**record | changes)


@pytest.fixture
def make_forecast() -> Callable[..., CellForecast]:
    """``make_forecast({(draft, γ): S, …})``: of n-gram drafts of these names; any field of CellForecast by keyword."""
    return _forecast


@pytest.fixture(scope="session")
def ray_cluster():
    """One Ray on this machine for every test that needs workers; a fleet that finds it joins it and leaves it up."""
    import logging

    import ray

    ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, num_cpus=4)
    yield
    ray.shutdown()

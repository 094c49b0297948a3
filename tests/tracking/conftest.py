"""Traces small enough to read, and a baseline that carries one."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mlflow_runs import NAME, SWEEP

from pipeline.records.measurement import Baseline, Measurement
from pipeline.records.settings import TrackingSettings
from pipeline.records.trace import Block, Iteration, RequestTrace, Trace
from pipeline.tracking import mlflow_view
from pipeline.tracking.mlflow_connection import Connection, tracking_uri
from pipeline.tracking.mlflow_view import MlflowView

ITERATION = Iteration(
    start_s=0.5,
    active=1,
    counted=1,
    gamma=4,
    width=5,
    proposed=4,
    tested=3,
    accepted=2,
    emitted=3,
    stopped=0,
    context_tokens=17,
    pad_fraction=0.0,
    tau_draft_ms=0.25,
    tau_verify_ms=1.5,
    tau_overhead_ms=0.25,
    tau_ms=2.0,
)
REQUEST = RequestTrace(
    request_id="chat-001#0",
    counted=True,
    seed=2**63 - 1,
    prompt_tokens=17,
    output=(5, 6, 7, 8),
    finish="length",
    arrival_s=0.0,
    admitted_s=0.0,
    first_token_s=0.1,
    finished_s=0.6,
    first_iteration=0,
    room=(3,),
    proposed=(3,),
    tested=(3,),
    accepted=(2,),
    emitted=(3,),
)


@pytest.fixture
def block() -> Block:
    """One block: two iterations, one request."""
    return Block(index=0, place=1, trace=Trace(iterations=(ITERATION, ITERATION), requests=(REQUEST,), wall_s=0.6))


@pytest.fixture
def make_baseline(make_measurement: Callable[..., Measurement], block: Block) -> Callable[..., Baseline]:
    like = make_measurement()

    def make(id: str = "b1", **changes: Any) -> Baseline:
        record: dict[str, Any] = {
            "id": id,
            "sweep": like.sweep,
            "cell": like.cell,
            "replicate": 0,
            "round_kind": "search",
            "provenance": like.provenance,
            "tau0_ms": 10.0,
            "output_tokens_per_s": 100.0,
            "trace_blocks": (block,),
        }
        return Baseline(**(record | changes))

    return make


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory) -> Path:
    """A database with MLflow's tables, made once: that takes a second."""
    folder = tmp_path_factory.mktemp("mlflow")
    Connection(tracking_uri(None, folder), folder, "unused")
    return folder / "mlflow.db"


@pytest.fixture
def output_dir(tmp_path, empty_database, monkeypatch) -> Path:
    monkeypatch.setattr(mlflow_view, "BACKOFF_S", (0.0, 0.0))
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    return tmp_path


@pytest.fixture
def lines() -> list[str]:
    return []


@pytest.fixture
def start(output_dir, lines) -> Callable[..., MlflowView]:
    def make(*, uri: str | None = None, sweep: str = SWEEP, fresh: bool = False, **parameters: str) -> MlflowView:
        settings = TrackingSettings(uri=uri)
        return MlflowView.open(settings, output_dir, sweep, NAME, parameters, lines.append, fresh=fresh)

    return make

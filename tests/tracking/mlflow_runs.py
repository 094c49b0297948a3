"""What MLflow holds of one small sweep."""

from __future__ import annotations

import socket
from pathlib import Path

from mlflow.tracking import MlflowClient

from pipeline.policy.decide import decide
from pipeline.records.cell import Cell, Sampling, Workload
from pipeline.records.target import Target

SWEEP, NAME = "demo-0000000000", "demo"
CELL = Cell(
    target=Target(name="smollm2", source="org/smollm2", revision="abc", dtype="float32"),
    workload=Workload(name="chat"),
    sampling=Sampling(name="greedy"),
    concurrency=1,
    accelerator="cpu",
)


def runs(output_dir: Path, condition: str = "") -> list:
    client = MlflowClient(tracking_uri=f"sqlite:///{output_dir}/mlflow.db")
    experiment = client.get_experiment_by_name(NAME)
    return list(client.search_runs([experiment.experiment_id], filter_string=condition))


def counts(output_dir: Path) -> dict[str, int]:
    kinds = [run.data.tags["kind"] for run in runs(output_dir)]
    return {kind: kinds.count(kind) for kind in sorted(set(kinds))}


def history(output_dir: Path, run_id: str, metric: str) -> list[tuple[int, float]]:
    client = MlflowClient(tracking_uri=f"sqlite:///{output_dir}/mlflow.db")
    return [(point.step, point.value) for point in client.get_metric_history(run_id, metric)]


def confirmed(make_measurement, low: float = 1.31, high: float = 1.53):
    return decide(CELL.key, [], make_measurement("c1", speedup_low=low, speedup_high=high), [], 0.03)


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""The store as Parquet files: a row per measurement, per iteration, per request and per forecast."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.records.cell import CellKey
from pipeline.records.forecast import CellForecast, Forecast
from pipeline.records.measurement import AcceptanceBin, Baseline, Measurement, Metrics
from pipeline.records.provenance import Provenance
from pipeline.records.target import Candidate, Draft
from pipeline.records.trace import Iteration, RequestTrace
from pipeline.tracking.atomic import replacing
from pipeline.tracking.columns import arrow_type, columns
from pipeline.tracking.store import Store

VIEWS = ("measurements", "iterations", "requests", "forecasts")
ROWS_PER_GROUP = 65_536
"""Rows gathered before they are written: it bounds the memory, and is the size of a Parquet row group."""


def write_views(store: Store, folder: Path) -> None:
    """Write ``NAME.parquet`` into ``folder`` for each of ``VIEWS``, each whole.

    Files have the same typed columns however few their rows. In iterations and requests ``measurement`` is the id of
    the measurement or baseline the row was seen in, and ``arm`` the candidate's label or ``baseline``.
    """
    records: tuple[Measurement | Baseline, ...] = (*store.baselines(), *store.measurements())
    rows = [_measurement_row(measurement) for measurement in store.measurements()]
    measurements, iterations, requests, forecasts = (folder / f"{name}.parquet" for name in VIEWS)
    foretold = [_forecast_row(cell, forecast) for cell in store.forecasts() for forecast in cell.forecasts]
    _write(forecasts, FORECASTS, [pa.RecordBatch.from_pylist(foretold, schema=FORECASTS)])
    _write(measurements, MEASUREMENTS, [pa.RecordBatch.from_pylist(rows, schema=MEASUREMENTS)])
    _write(iterations, ITERATIONS, _traced(ITERATIONS, records))
    _write(requests, REQUESTS, _traced(REQUESTS, records))


def _draft_columns() -> list[pa.Field]:
    """All parameters of all methods, null where a method has none; one parameter has one type wherever it occurs."""
    found: dict[str, pa.Field] = {}
    for method in get_args(Draft):
        for field in columns(method, prefix="draft_", leave_out=("name", "method")):
            if found.setdefault(field.name, field).type != field.type:
                raise TypeError(f"{field.name} is {found[field.name].type} in one draft and {field.type} in another")
    return [pa.field("draft", pa.string()), pa.field("method", pa.string()), *found.values()]


_IDS = [pa.field(name, pa.string()) for name in ("measurement", "content_id", "sweep", "kind")]
_CELL = columns(CellKey)
_PLACE = [
    pa.field("measurement", pa.string()),
    pa.field("arm", pa.string()),
    *_CELL,
    pa.field("block", pa.int64()),
    pa.field("place", pa.int64()),
]
MEASUREMENTS = pa.schema(
    [
        *_IDS,
        *_CELL,
        *_draft_columns(),
        pa.field("gamma", pa.int64()),
        pa.field("replicate", pa.int64()),
        *columns(Metrics),
        pa.field("marginal", arrow_type(tuple[float, ...])),
        pa.field("conditional", arrow_type(tuple[float | None, ...])),
        pa.field("by_output_position", arrow_type(tuple[AcceptanceBin, ...])),
        pa.field("by_context", arrow_type(tuple[AcceptanceBin, ...])),
        pa.field("baseline_ids", arrow_type(tuple[str, ...])),
        pa.field("parts", arrow_type(tuple[str, ...])),
        *columns(Provenance, prefix="provenance_"),
    ]
)
ITERATIONS = pa.schema([*_PLACE, pa.field("iteration", pa.int64()), *columns(Iteration)])
REQUESTS = pa.schema([*_PLACE, *columns(RequestTrace)])
FORECASTS = pa.schema(
    [
        *_CELL,
        *_draft_columns(),
        pa.field("gamma", pa.int64()),
        *columns(Forecast, leave_out=("candidate", "method")),
        pa.field("forecast_method", pa.string()),
        pa.field("prompts", pa.int64()),
        pa.field("tau0_ms", pa.float64()),
    ]
)

Row = dict[str, Any]


def _measurement_row(measurement: Measurement) -> Row:
    return {
        "measurement": measurement.id,
        "content_id": measurement.content_id,
        "sweep": measurement.sweep,
        "kind": measurement.kind,
        **_values(measurement.cell),
        **_candidate_values(measurement.candidate),
        "replicate": measurement.replicate,
        **_values(measurement.metrics),
        "marginal": measurement.marginal,
        "conditional": measurement.conditional,
        "by_output_position": [asdict(found) for found in measurement.by_output_position],
        "by_context": [asdict(found) for found in measurement.by_context],
        "baseline_ids": measurement.baseline_ids,
        "parts": measurement.parts,
        **{f"provenance_{name}": value for name, value in _values(measurement.provenance).items()},
    }


def _forecast_row(cell: CellForecast, forecast: Forecast) -> Row:
    return {
        **_values(cell.cell),
        **_candidate_values(forecast.candidate),
        **{name: value for name, value in _values(forecast).items() if name not in ("candidate", "method")},
        "forecast_method": forecast.method,
        "prompts": cell.prompts,
        "tau0_ms": cell.tau0_ms,
    }


def _candidate_values(candidate: Candidate) -> Row:
    draft = candidate.draft
    parameters = {} if draft is None else {f"draft_{name}": value for name, value in _values(draft).items()}
    return {
        "draft": parameters.pop("draft_name", None),
        "method": parameters.pop("draft_method", None),
        **parameters,
        "gamma": candidate.gamma,
    }


def _traced(schema: pa.Schema, records: Iterable[Measurement | Baseline]) -> Iterator[pa.RecordBatch]:
    """A batch per block, column by column: a sweep has millions of iterations, too many for a dict each."""
    for record in records:
        arm = "baseline" if isinstance(record, Baseline) else record.candidate.label
        for block in record.trace_blocks:
            rows = block.trace.iterations if schema is ITERATIONS else block.trace.requests
            same = {"measurement": record.id, "arm": arm, **_values(record.cell)}
            same |= {"block": block.index, "place": block.place}
            yield pa.RecordBatch.from_arrays([_column(field, rows, same) for field in schema], schema=schema)


def _column(field: pa.Field, rows: Sequence[Iteration | RequestTrace], same: Mapping[str, str | int]) -> pa.Array:
    if field.name in same:
        return pa.repeat(pa.scalar(same[field.name], field.type), len(rows))
    if field.name == "iteration":
        return pa.array(range(len(rows)), field.type)
    return pa.array([getattr(row, field.name) for row in rows], field.type)


def _values(record: Any) -> Row:
    return {field.name: getattr(record, field.name) for field in fields(record)}


def _write(path: Path, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
    with replacing(path) as temporary, pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        gathered: list[pa.RecordBatch] = []
        for batch in batches:
            gathered.append(batch)
            if sum(b.num_rows for b in gathered) >= ROWS_PER_GROUP:
                writer.write_table(pa.Table.from_batches(gathered, schema))
                gathered = []
        writer.write_table(pa.Table.from_batches(gathered, schema))

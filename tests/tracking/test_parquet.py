"""The Parquet views hold what the store holds, typed, however little that is."""

from __future__ import annotations

import math

import pandas as pd
import pyarrow.parquet as pq
import pytest

from pipeline.records.target import Candidate, DraftModel
from pipeline.tracking import parquet
from pipeline.tracking.columns import arrow_type
from pipeline.tracking.parquet import FORECASTS, ITERATIONS, MEASUREMENTS, REQUESTS, write_views
from pipeline.tracking.store import Store

SCHEMAS = {"measurements": MEASUREMENTS, "iterations": ITERATIONS, "requests": REQUESTS, "forecasts": FORECASTS}


def test_an_empty_sweep_has_typed_columns_and_no_rows(tmp_path) -> None:
    with Store(tmp_path) as store:
        write_views(store, tmp_path)
    for name, schema in SCHEMAS.items():
        table = pq.read_table(tmp_path / f"{name}.parquet")
        assert table.schema.equals(schema)
        assert table.num_rows == 0


def test_a_measurement_is_a_row_with_every_parameter_and_metric(tmp_path, make_measurement) -> None:
    draft = DraftModel(name="small", source="org/small", revision="abc")
    with Store(tmp_path) as store:
        store.save(make_measurement("m1", candidate=Candidate(draft=draft, gamma=3), c=math.nan, near_ties=2))
        store.save(make_measurement("m2"))
        store.save(make_measurement("m3", candidate=Candidate(draft=None, gamma=0), kind="aa", conditional=(None, 0.5)))
        write_views(store, tmp_path)
    table = pd.read_parquet(tmp_path / "measurements.parquet").set_index("measurement")
    assert table.loc["m1", ["draft", "method", "draft_source", "draft_revision", "gamma"]].tolist() == [
        "small",
        "draft_model",
        "org/small",
        "abc",
        3,
    ]
    assert pd.isna(table.loc["m1", "draft_min_n"])
    assert table.loc["m2", "draft_max_n"] == 3
    assert pd.isna(table.loc["m3", "draft"])
    assert math.isnan(table.loc["m1", "c"])
    assert table.loc["m1", "near_ties"] == 2
    assert list(table.loc["m1", "marginal"]) == [0.6, 0.35, 0.2, 0.1]
    assert pq.read_table(tmp_path / "measurements.parquet")["conditional"].to_pylist()[2] == [None, 0.5]
    bins = pq.read_table(tmp_path / "measurements.parquet")["by_output_position"].to_pylist()[0]
    assert [(b["low"], b["high"], b["tested"], b["accepted"]) for b in bins] == [(0, 7, 100, 60), (8, 15, 100, 50)]
    assert table.loc["m2", "by_context"][0]["emitted"] == 210
    assert table.loc["m2", "target"] == "smollm2"
    assert table.loc["m2", "provenance_threads"] == 2


def test_a_forecast_is_a_row_for_each_candidate_measured_or_not(tmp_path, make_forecast) -> None:
    cell = make_forecast({("ngram", 1): 1.1, ("ngram", 2): 1.2})
    with Store(tmp_path) as store:
        store.save(cell)
        write_views(store, tmp_path)
    with Store(tmp_path) as again:
        assert again.forecasts() == (cell,)
    rows = pq.read_table(tmp_path / "forecasts.parquet").to_pylist()
    assert [(r["draft"], r["gamma"], r["speedup"], r["forecast_method"], r["prompts"]) for r in rows] == [
        ("ngram", 1, 1.1, "replay", 6),
        ("ngram", 2, 1.2, "replay", 6),
    ]
    assert rows[0]["marginal"] == [0.4, 0.1]


def test_every_iteration_and_request_says_where_it_was_seen(tmp_path, make_measurement, make_baseline, block) -> None:
    with Store(tmp_path) as store:
        store.save(make_measurement("m1", trace_blocks=(block, block), baseline_ids=("b1",)))
        store.save(make_baseline("b1"))
        write_views(store, tmp_path)
    iterations = pd.read_parquet(tmp_path / "iterations.parquet")
    assert iterations.groupby(["measurement", "arm"]).size().to_dict() == {("b1", "baseline"): 2, ("m1", "ngram γ4"): 4}
    assert iterations["iteration"].tolist() == [0, 1] * 3
    assert set(iterations["place"]) == {1}
    assert iterations["tau_verify_ms"].tolist() == [1.5] * 6
    requests = pq.read_table(tmp_path / "requests.parquet")
    assert requests["seed"].to_pylist() == [2**63 - 1] * 3
    assert requests["output"].to_pylist()[0] == [5, 6, 7, 8]
    assert requests["workload"].to_pylist() == ["chat"] * 3
    assert requests["stop_string"].to_pylist() == requests["text"].to_pylist() == [""] * 3


def test_rows_are_written_in_groups_so_memory_stays_bounded(tmp_path, make_measurement, block, monkeypatch) -> None:
    monkeypatch.setattr(parquet, "ROWS_PER_GROUP", 4)
    with Store(tmp_path) as store:
        for i in range(5):
            store.save(make_measurement(f"m{i}", trace_blocks=(block,)))
        write_views(store, tmp_path)
    file = pq.ParquetFile(tmp_path / "iterations.parquet")
    sizes = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
    assert sum(sizes) == 10
    assert max(sizes) == 4


def test_a_view_that_cannot_be_finished_leaves_the_old_one(tmp_path, make_measurement, monkeypatch) -> None:
    with Store(tmp_path) as store:
        store.save(make_measurement("m1"))
        write_views(store, tmp_path)
        before = (tmp_path / "measurements.parquet").read_bytes()
        store.save(make_measurement("m2"))

        def full(*_: object, **__: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(parquet.pq.ParquetWriter, "write_table", full)
        with pytest.raises(OSError, match="No space"):
            write_views(store, tmp_path)
    assert (tmp_path / "measurements.parquet").read_bytes() == before
    assert not list(tmp_path.glob("*.tmp"))


def test_a_type_without_a_column_is_refused() -> None:
    with pytest.raises(TypeError, match="no column"):
        arrow_type(dict[str, int])

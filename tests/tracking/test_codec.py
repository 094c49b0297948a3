"""Records survive the way to JSON and back, whatever numbers they carry."""

from __future__ import annotations

import dataclasses
import json
import math
import string
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.records.cell import CellKey
from pipeline.records.failure import Failure
from pipeline.records.measurement import Baseline, Measurement
from pipeline.records.target import Candidate, Draft
from pipeline.tracking.codec import SCHEMA_VERSION, UnreadableError, decode, decode_failure, encode

text = st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20)
floats = st.floats(allow_nan=False)
st.register_type_strategy(str, text)
st.register_type_strategy(float, floats)
st.register_type_strategy(int, st.integers(-(2**63), 2**63 - 1))
drafts = st.one_of(*map(st.builds, get_args(Draft)))
cells = st.builds(CellKey)
candidates = st.builds(Candidate, draft=st.none() | drafts)
versions = st.just(SCHEMA_VERSION)


@given(st.builds(Measurement, candidate=candidates, schema_version=versions))
def test_a_measurement_is_read_as_it_was_written(record: Measurement) -> None:
    assert decode(encode(record)) == record


@given(st.builds(Baseline, schema_version=versions))
def test_a_baseline_is_read_as_it_was_written(record: Baseline) -> None:
    assert decode(encode(record)) == record


@given(st.builds(Failure, candidate=st.none() | candidates))
def test_a_failure_is_read_as_it_was_written(failure: Failure) -> None:
    assert decode_failure(encode(failure)) == failure


def test_numbers_that_are_not_finite_come_back_and_the_file_is_still_json(make_measurement) -> None:
    record = make_measurement(speedup=math.nan, c=math.inf, v=-math.inf, conditional=(math.nan, None))
    written = encode(record)
    json.loads(written, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    back = decode(written)
    assert math.isnan(back.metrics.speedup)
    assert (back.metrics.c, back.metrics.v) == (math.inf, -math.inf)
    assert math.isnan(back.conditional[0])


@given(st.binary(max_size=200) | st.text(string.printable).map(str.encode))
def test_what_is_no_record_is_unreadable_and_nothing_else(content: bytes) -> None:
    with pytest.raises(UnreadableError):
        decode(content)


def test_a_new_record_carries_the_schema_that_is_read(make_measurement, make_baseline) -> None:
    assert {make_measurement().schema_version, make_baseline().schema_version} == {SCHEMA_VERSION}


def test_a_record_of_another_schema_is_not_read(make_measurement) -> None:
    with pytest.raises(UnreadableError, match="schema_version 3, this program reads 2"):
        decode(encode(dataclasses.replace(make_measurement(), schema_version=3)))


def test_a_record_of_another_schema_is_called_that_and_not_by_the_fields_it_lacks(make_measurement) -> None:
    old = json.loads(encode(dataclasses.replace(make_measurement(), schema_version=1)))
    del old["by_context"], old["metrics"]["factor_overhead"]
    with pytest.raises(UnreadableError, match=r"^schema_version 1, this program reads 2$"):
        decode(json.dumps(old).encode())
    old["schema_version"] = SCHEMA_VERSION
    with pytest.raises(UnreadableError, match="factor_overhead"):
        decode(json.dumps(old).encode())


def test_a_record_from_before_stop_strings_is_read(make_baseline) -> None:
    old = json.loads(encode(make_baseline()))
    for block in old["trace_blocks"]:
        for row in block["trace"]["requests"]:
            del row["text"], row["stop_string"]
    assert decode(json.dumps(old).encode()) == make_baseline()


def test_the_reason_names_the_field(make_measurement) -> None:
    broken = json.loads(encode(make_measurement()))
    broken["metrics"]["speedup"] = "fast"
    with pytest.raises(UnreadableError, match=r"metrics\..*speedup"):
        decode(json.dumps(broken).encode())


def test_a_file_from_before_graphs_were_recorded_is_read(make_measurement) -> None:
    old = json.loads(encode(make_measurement()))
    del old["provenance"]["graphs"]
    assert decode(json.dumps(old).encode()).provenance.graphs is False

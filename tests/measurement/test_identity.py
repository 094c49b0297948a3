"""Ids follow from what they name, and from nothing else."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pipeline.engines.simulated import SimulatedEngine
from pipeline.measurement.identity import content_id, measurement_id, prompt_id, request_id, seed
from pipeline.records.settings import Protocol
from pipeline.records.target import Candidate, Ngram

NGRAM4 = Candidate(draft=Ngram(name="ngram"), gamma=4)
OFF = Candidate(draft=None, gamma=0)


def test_measurement_ids_differ_in_every_part_and_are_stable(make_cell):
    key = make_cell().key
    ids = [
        measurement_id("s", key, NGRAM4, "search", 0),
        measurement_id("t", key, NGRAM4, "search", 0),
        measurement_id("s", replace(key, concurrency=2), NGRAM4, "search", 0),
        measurement_id("s", key, replace(NGRAM4, gamma=5), "search", 0),
        measurement_id("s", key, NGRAM4, "confirmation_look", 0),
        measurement_id("s", key, NGRAM4, "search", 1),
        measurement_id("s", key, OFF, "search", 0),
        measurement_id("s", key, None, "search", 0),
    ]
    assert len(set(ids)) == len(ids)
    assert all(len(i) == 24 and int(i, 16) >= 0 for i in ids)
    assert ids[0] == measurement_id("s", key, NGRAM4, "search", 0) == "306f4ab78d5488411f33f6e5"


def _content(cell, protocol=None, content_hash="c", facts=None, first=0, count=6, revision="r"):
    facts = facts or SimulatedEngine().facts
    protocol = protocol or Protocol()
    return content_id(cell, NGRAM4, "search", 0, protocol, content_hash, first, count, facts, revision)


def test_content_ids_depend_on_what_was_measured(make_cell):
    cell, facts = make_cell(), SimulatedEngine().facts
    ids = [
        _content(cell),
        _content(cell, content_hash="d"),
        _content(cell, first=6),
        _content(cell, count=12),
        _content(cell, revision="q"),
        _content(cell, facts=replace(facts, driver="580")),
        _content(cell, protocol=Protocol(seeds=5)),
        _content(replace(cell, concurrency=2)),
        _content(replace(cell, workload=replace(cell.workload, output_tokens=9))),
        _content(replace(cell, workload=replace(cell.workload, stop=("x",)))),
        _content(replace(cell, workload=replace(cell.workload, stop=("y",)))),
        _content(replace(cell, workload=replace(cell.workload, stop_token_ids=(3,)))),
        _content(replace(cell, sampling=replace(cell.sampling, repetition_penalty=1.1))),
        _content(replace(cell, sampling=replace(cell.sampling, presence_penalty=0.1))),
        _content(replace(cell, sampling=replace(cell.sampling, frequency_penalty=0.1))),
    ]
    assert len(set(ids)) == len(ids)


def test_content_ids_do_not_depend_on_where_a_workload_lay_or_whether_a_a_was_asked_for(make_cell):
    cell = make_cell()
    moved = replace(
        cell, workload=replace(cell.workload, path="/elsewhere/chat.jsonl", context_path="/elsewhere/b.txt")
    )
    assert _content(cell) == _content(moved) == _content(cell, protocol=Protocol(a_a=True))


def test_content_ids_are_known_before_a_run_shows_whether_graphs_can_be_captured(make_cell):
    cell, facts = make_cell(), SimulatedEngine().facts
    assert _content(cell, facts=facts) == _content(cell, facts=replace(facts, graphs=True))


@given(st.text(), st.integers(0, 2**40))
def test_a_request_names_its_prompt(name, index):
    assert prompt_id(request_id(name, index)) == name


@given(st.text(), st.integers(0, 2**40))
def test_seeds_have_63_bits(name, index):
    assert 0 <= seed(name, index) < 2**63


def test_seeds_differ_by_prompt_and_index_and_are_the_same_everywhere():
    seeds = {seed(f"p{n}", i) for n in range(50) for i in range(5)}
    assert len(seeds) == 250
    assert seed("chat-001", 0) == 521001725773214457

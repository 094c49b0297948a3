"""Workers under faults: every call comes back as a record, and a lost worker is replaced."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pipeline.cluster.fleet import Fleet, Outcome, connect
from pipeline.records.cell import Cell, Sampling, Workload
from pipeline.records.failure import Failure, InputError
from pipeline.records.settings import ClusterSettings, EngineSettings, Protocol
from pipeline.records.target import Candidate, Ngram, Target
from pipeline.records.task import Identification, RoundResult, RoundTask

NGRAM = Ngram(name="ngram")

pytestmark = pytest.mark.usefixtures("ray_cluster")


def task(source: str = "simulated:") -> RoundTask:
    return RoundTask(
        sweep="s",
        cell=Cell(
            target=Target(name="t", source=source, dtype="float32"),
            workload=Workload(name="chat", output_tokens=8),
            sampling=Sampling(name="greedy"),
            concurrency=1,
            accelerator="cpu",
        ),
        drafts=(NGRAM,),
        max_gamma=2,
        candidates=(Candidate(draft=NGRAM, gamma=2),),
        kind="search",
        replicate=0,
        first_prompt=0,
        prompt_count=3,
        level=0.95,
        protocol=Protocol(),
    )


def ready(fleet: Fleet, within_s: float = 60.0) -> None:
    end = time.monotonic() + within_s
    while not fleet.idle():
        assert time.monotonic() < end
        fleet.wait(0.2)


@pytest.fixture
def fleet(request: pytest.FixtureRequest) -> Iterator[Fleet]:
    options = getattr(request, "param", {})
    fleet = Fleet(ClusterSettings(cpus_per_worker=1, **options), EngineSettings(name="simulated"))
    ready(fleet)
    yield fleet
    fleet.close()


def outcome(fleet: Fleet, within_s: float = 60.0) -> Outcome:
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        for one in fleet.wait(0.2):
            return one
    raise AssertionError("no outcome")


def test_a_round_comes_back_measured(fleet):
    fleet.submit("w0", task())
    assert fleet.idle() == ()
    result = outcome(fleet).result
    assert isinstance(result, RoundResult)
    assert [m.candidate.label for m in result.measurements] == ["ngram γ2"]
    assert result.baseline is not None
    assert fleet.idle() == ("w0",)


def test_what_a_round_would_be_is_what_it_then_is(fleet):
    fleet.submit("w0", task(), "identify")
    identified = outcome(fleet).result
    assert isinstance(identified, Identification)
    fleet.submit("w0", task())
    result = outcome(fleet).result
    assert isinstance(result, RoundResult)
    assert identified.content_ids == tuple(m.content_id for m in result.measurements)


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("simulated:?fail.off=out_of_memory", "out_of_memory"),
        ("simulated:?fail.off=error", "error"),
        ("simulated:?nonsense=1", "refused"),
    ],
)
def test_an_error_inside_a_worker_comes_back_as_a_record_and_the_worker_lives(fleet, source, kind):
    fleet.submit("w0", task(source))
    result = outcome(fleet).result
    assert isinstance(result, RoundResult)
    assert result.baseline is None
    assert [failure.kind for failure in result.failures] == [kind]
    assert "\n" not in result.failures[0].message
    fleet.submit("w0", task())
    assert isinstance(outcome(fleet).result, RoundResult)


def test_a_worker_that_dies_is_reported_and_replaced(fleet):
    fleet.submit("w0", task("simulated:?fail.ngram=crash"))
    result = outcome(fleet).result
    assert isinstance(result, Failure)
    assert result.kind == "worker_died"
    assert len(result.message) < 400
    ready(fleet)
    fleet.submit("w0", task())
    assert isinstance(outcome(fleet).result, RoundResult)


@pytest.mark.parametrize("fleet", [{"call_timeout_s": 2.0}], indirect=True)
def test_a_call_past_its_deadline_is_killed_and_its_worker_replaced(fleet):
    fleet.submit("w0", task("simulated:?fail.off=hang"))
    result = outcome(fleet, within_s=30).result
    assert isinstance(result, Failure)
    assert result.kind == "timeout"
    ready(fleet)
    fleet.submit("w0", task())
    assert isinstance(outcome(fleet).result, RoundResult)


def test_progress_is_told_while_a_call_runs(fleet):
    fleet.submit("w0", task("simulated:?sleep_s=1.0"))
    notes: set[str] = set()
    while not fleet.wait(0.1):
        notes.update(fleet.notes().values())
    assert any("t · chat · greedy · C1" in note for note in notes)


def test_a_worker_takes_one_call_at_a_time(fleet):
    fleet.submit("w0", task("simulated:?sleep_s=0.2"))
    with pytest.raises(ValueError, match="w0"):
        fleet.submit("w0", task())
    outcome(fleet)


def test_a_request_that_can_never_be_placed_is_an_error_within_seconds():
    began = time.monotonic()
    with pytest.raises(InputError, match="1000 CPU"):
        Fleet(ClusterSettings(cpus_per_worker=1000), EngineSettings(name="simulated"))
    assert time.monotonic() - began < 10


def test_a_busy_cluster_is_an_error_that_says_so(fleet):
    crowded = Fleet(ClusterSettings(cpus_per_worker=4, placement_timeout_s=2.0), EngineSettings(name="simulated"))
    assert crowded.idle() == ()
    with pytest.raises(InputError, match=r"no worker of 4 CPU was placed in 2 s"):
        ready(crowded)


def test_a_lost_worker_whose_place_is_gone_is_done_without(fleet, monkeypatch):
    """A node that leaves the cluster: its worker dies, and its successor is never placed."""
    patient = ClusterSettings(workers=2, cpus_per_worker=1, placement_timeout_s=300.0)
    pair = Fleet(patient, EngineSettings(name="simulated"))
    try:
        ready(pair, within_s=300.0)
        end = time.monotonic() + 300
        while len(pair.idle()) < 2:
            assert time.monotonic() < end
            pair.wait(0.2)
        monkeypatch.setattr(pair, "_settings", replace(pair._settings, placement_timeout_s=3.0))
        monkeypatch.setattr(pair, "_request", replace(pair._request, cpus=1000))
        pair.submit("w0", task("simulated:?fail.ngram=crash"))
        assert isinstance(outcome(pair).result, Failure)
        end = time.monotonic() + 30
        while "w0" in pair._seats and time.monotonic() < end:
            pair.wait(0.2)
        assert pair.idle() == ("w1",)
    finally:
        pair.close()


def test_an_address_where_nothing_answers_is_an_error_within_seconds(monkeypatch):
    monkeypatch.setattr("ray.is_initialized", lambda: False)
    began = time.monotonic()
    with pytest.raises(InputError, match=r"127\.0\.0\.1:1"):
        connect(ClusterSettings(address="127.0.0.1:1"))
    assert time.monotonic() - began < 10


def test_cuda_on_workers_without_a_gpu_is_refused():
    with pytest.raises(InputError, match="gpus_per_worker"):
        Fleet(ClusterSettings(), EngineSettings(device="cuda"))

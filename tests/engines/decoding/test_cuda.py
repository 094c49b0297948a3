"""What only a GPU can show: graphs are captured, and nothing but the one read makes the host wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from tiny_models import GREEDY, accepted, mixed_requests, outputs
from torch import Tensor

from pipeline.engines.contract import OFF, Limits, Schedule
from pipeline.engines.decoding.cuda_graphs import CudaGraphs
from pipeline.engines.decoding.engine import DecodingEngine
from pipeline.engines.decoding.recordings import Pauses, Recordings
from pipeline.engines.decoding.top_mass import least_of_top_mass
from pipeline.engines.decoding.transform import _crossing
from pipeline.records.settings import EngineSettings
from pipeline.records.target import Draft, DraftModel, Eagle3, EarlyExit, Medusa, Ngram, Target

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("concurrency", [1, 6])
def test_texts_are_those_of_a_cpu(
    target: Target, draft: DraftModel, medusa: Medusa, eagle3: Eagle3, concurrency: int
) -> None:
    """In fp32: the tiny models' choices are far from ties."""
    requests = mixed_requests(9)
    cpu, gpu = (DecodingEngine(EngineSettings(device=device), threads=1) for device in ("cpu", "cuda"))
    drafts: list[Draft] = [Ngram(name="ngram"), draft, EarlyExit(name="exit", layers=2), medusa, eagle3]
    for engine in (cpu, gpu):
        engine.open(target, drafts, Limits(concurrency=concurrency, max_gamma=3))
    expected = outputs(cpu.run(requests, GREEDY, None, OFF))
    assert outputs(gpu.run(requests, GREEDY, None, OFF)) == expected
    for tried in drafts:
        trace = gpu.run(requests, GREEDY, tried, Schedule.constant(3))
        assert outputs(trace) == expected, tried.name
        assert accepted(trace) > 0
        assert all(it.tau_draft_ms >= 0 and it.tau_verify_ms > 0 for it in trace.iterations)
    assert gpu.facts.graphs


def test_a_graph_takes_the_new_inputs() -> None:
    device = torch.device("cuda")
    recordings = Recordings(CudaGraphs(device), device, Pauses())
    for start in range(4):
        x = torch.arange(start, start + 3, device=device)
        (output,) = recordings.run("key", 4, (x,), lambda x: (2 * x,)) or ()
        assert output.tolist() == (2 * x).tolist()
    assert len(recordings) == 1


def test_what_waits_for_the_device_is_found_and_leaves_no_trace() -> None:
    device = torch.device("cuda")
    recordings, stream = Recordings(CudaGraphs(device), device, Pauses()), torch.cuda.current_stream()

    def reads_back(x: Tensor) -> tuple[Tensor]:
        return (x * float(x.sum()),)

    with pytest.warns(RuntimeWarning, match="without CUDA graphs"):
        assert recordings.run("bad", 1, (torch.ones(1, device=device),), reads_back) is None
    assert torch.cuda.current_stream() == stream
    others = Recordings(CudaGraphs(device), device, Pauses())
    assert others.run("fine", 1, (torch.ones(1, device=device),), lambda x: (x + 1,)) is not None


@pytest.mark.parametrize("top_p", [1.0, 0.9])
def test_an_iteration_makes_the_host_wait_once(
    target: Target, draft: DraftModel, monkeypatch: pytest.MonkeyPatch, top_p: float
) -> None:
    """Each wait warns in this mode; the read of an iteration is one. Prompts and first tokens may wait too."""
    engine = DecodingEngine(EngineSettings(device="cuda"), threads=1)
    engine.open(target, [draft], Limits(concurrency=2, max_gamma=3))
    request = replace(mixed_requests(1)[0], max_new_tokens=60)
    warm = replace(GREEDY, name="t", temperature=1.0, top_p=top_p)
    waits = {}
    for tokens in (20, 60):
        asked = [replace(request, max_new_tokens=tokens)]
        engine.run(asked, warm, draft, Schedule.constant(3))  # captures
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with pytest.warns(UserWarning, match="synchronizing") as said:
                trace = engine.run(asked, warm, draft, Schedule.constant(3))
        finally:
            torch.cuda.set_sync_debug_mode("default")
        waits[tokens] = len(said) - len(trace.iterations)
    assert waits[60] == waits[20]


def test_top_p_on_the_device_is_that_of_a_sort() -> None:
    weights = torch.rand(7, 5000, device="cuda") ** 8
    weights = weights / weights.amax(dim=-1, keepdim=True)
    mass = weights.sum(dim=-1, keepdim=True, dtype=torch.float64) * 0.9
    expected = _crossing(weights.sort(dim=-1, descending=True).values, mass)
    assert torch.equal(least_of_top_mass(weights, 0.9), expected)

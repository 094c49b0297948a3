"""The engine's own loop on models made in memory, and what its iterations took."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from pipeline.engines.contract import OFF, Request, Schedule
from pipeline.engines.decoding.cuda_graphs import CudaGraphs
from pipeline.engines.decoding.forward import CachedModel
from pipeline.engines.decoding.loop import DecodingLoop
from pipeline.engines.decoding.proposers.contract import Proposal, Proposer
from pipeline.engines.decoding.proposers.draft_model import DraftModelProposer
from pipeline.engines.decoding.recordings import Capture, Pauses, Recordings
from pipeline.engines.decoding.slots import Ints, Slots
from pipeline.engines.decoding.transfer import to_device
from pipeline.records.cell import Sampling
from pipeline.records.trace import Trace

GREEDY = Sampling(name="greedy")
UNSETTLED = 4
"""Iterations of a run that are left out, from the first on."""


@dataclass(frozen=True, kw_only=True)
class Took:
    """Medians of one run's iterations over full slots, ms."""

    tau: float
    draft: float
    verify: float
    overhead: float
    context_tokens: float


class Decoder:
    """Targets and drafts on one device, recorded or not, sharing what recording took."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.pauses = Pauses()

    def cached(self, model: PreTrainedModel, graphs: bool = True) -> CachedModel:
        """``model`` with slots of its own; several may share one model's weights."""
        recordings = Recordings(self._capture(), self.device, self.pauses) if graphs else None
        return CachedModel(model, self.device, recordings)

    def drafting(self, draft: CachedModel, target: CachedModel, slots: int, columns: int) -> DraftModelProposer:
        return DraftModelProposer(draft, slots, columns, target.vocabulary, None)

    def run(
        self,
        target: CachedModel,
        requests: Sequence[Request],
        slots: int,
        columns: int,
        proposer: Proposer | None = None,
        gamma: int = 0,
        sampling: Sampling = GREEDY,
    ) -> Trace:
        """As ``DecodingEngine.run``; a text ends by its length only."""
        target.reserve(slots, columns)
        state = Slots(slots, columns, target.vocabulary, ())
        schedule = Schedule.constant(gamma) if proposer else OFF
        return DecodingLoop(target, state, proposer, sampling, schedule, requests, None, self.pauses).run()

    def _capture(self) -> Capture:
        return CudaGraphs(self.device) if self.device.type == "cuda" else lambda work: work


class RandomProposer:
    """Proposes random tokens at no cost, nearly all of which are rejected: what verification costs does not change."""

    needs_hidden: tuple[int, ...] = ()
    kv_bytes = 0

    def __init__(self, vocabulary: int, device: torch.device) -> None:
        self._draws = np.random.default_rng(0)
        self._vocabulary = vocabulary
        self._device = device

    def prefill(self, row: int, tokens: Ints, hidden: Tensor | None) -> None:
        """Nothing to keep."""

    def propose(self, slots: Slots, dlen: Ints) -> Proposal:
        tokens = self._draws.integers(0, self._vocabulary, (slots.active, int(dlen.max())), dtype=np.int64)
        return Proposal(to_device(tokens, self._device), None, dlen)

    def after_verify(self, hidden: Tensor | None, accepted: Ints) -> None:
        """Nothing to keep."""

    def move(self, source: int, target: int, length: int) -> None:
        """Nothing to keep."""


def requests(count: int, prompt: int, tokens: int, vocabulary: int, seed: int = 0) -> list[Request]:
    """``count`` random prompts of ``prompt`` tokens that go on for ``tokens``."""
    draws = np.random.default_rng(seed)
    return [
        Request(
            request_id=f"{seed}-{i}",
            prompt_id=f"{seed}-{i}",
            tokens=tuple(draws.integers(0, vocabulary, prompt).tolist()),
            max_new_tokens=tokens,
            seed=seed * 1_000_003 + i,
            ignore_eos=True,
        )
        for i in range(count)
    ]


def took(trace: Trace, slots: int, width: int) -> Took:
    """Of the iterations over ``slots`` full slots that verified ``width`` positions. Raises RuntimeError for none."""
    full = [it for it in trace.iterations if it.active == slots and it.width == width][UNSETTLED:]
    if not full:
        raise RuntimeError(f"no iteration over {slots} slots and {width} positions was left to measure")
    return Took(
        tau=statistics.median(it.tau_ms for it in full),
        draft=statistics.median(it.tau_draft_ms for it in full),
        verify=statistics.median(it.tau_verify_ms for it in full),
        overhead=statistics.median(it.tau_overhead_ms for it in full),
        context_tokens=statistics.median(it.context_tokens for it in full),
    )

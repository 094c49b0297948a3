"""The decoding engine: speculative decoding of transformers models, every iteration seen."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import torch
import transformers

from pipeline.engines.contract import DraftFacts, EngineFacts, Foretold, Limits, Passage, Request, Schedule, Tokenizer
from pipeline.engines.decoding.cuda_graphs import capture_for
from pipeline.engines.decoding.detokenize import detokenizer
from pipeline.engines.decoding.forward import CachedModel
from pipeline.engines.decoding.hardware import accelerator_name, driver_version
from pipeline.engines.decoding.heads.loading import LoadedHead, load_head
from pipeline.engines.decoding.heads.medusa import MedusaHeads
from pipeline.engines.decoding.loading import LoadedModel, check_device, eos_tokens, load_draft_model, load_target
from pipeline.engines.decoding.loop import DecodingLoop, Gammas
from pipeline.engines.decoding.penalties import penalized, written
from pipeline.engines.decoding.prefilled import PrefillMemory
from pipeline.engines.decoding.proposers.contract import Proposer
from pipeline.engines.decoding.proposers.draft_model import DraftModelProposer
from pipeline.engines.decoding.proposers.eagle3 import Eagle3Proposer
from pipeline.engines.decoding.proposers.early_exit import EarlyExitProposer
from pipeline.engines.decoding.proposers.medusa import MedusaProposer
from pipeline.engines.decoding.proposers.ngram import NgramProposer
from pipeline.engines.decoding.recordings import Capture, Pauses, Recordings
from pipeline.engines.decoding.requests import check_requests
from pipeline.engines.decoding.scoring import Reader, score
from pipeline.engines.decoding.slots import Slots, seed_bits
from pipeline.engines.decoding.supported import max_context, supports_early_exit
from pipeline.engines.decoding.transform import near_tie
from pipeline.engines.decoding.uniform import PLAIN, uniforms
from pipeline.engines.decoding.widths import FillerProposer, InTurn
from pipeline.engines.stop_strings import Detokenizer
from pipeline.records.cell import Sampling
from pipeline.records.failure import InputError
from pipeline.records.settings import EngineSettings
from pipeline.records.target import Draft, DraftModel, DType, EarlyExit, Head, Ngram, Target
from pipeline.records.trace import Trace

VERSION = 6
"""Raised by every change that may move a measured time: no earlier measurement is then taken for one of this code."""


@dataclass(frozen=True)
class _Loaded:
    """A target as loaded, and what requests need to know of it."""

    spec: Target
    source: LoadedModel
    model: CachedModel
    eos: tuple[int, ...]

    @cached_property
    def detokenizer(self) -> Detokenizer:
        """Made for the first request with stop strings."""
        return detokenizer(self.source.tokenizer)


class DecodingEngine:
    """``contract.Engine`` on transformers models. ``threads``: CPU threads of PyTorch, None leaves them as they are.

    ``capture``: how forwards are recorded, None for CUDA graphs on a GPU and nothing on a CPU.
    Raises InputError when ``settings.device`` asks for what this machine has not.
    """

    def __init__(self, settings: EngineSettings, threads: int | None = None, capture: Capture | None = None) -> None:
        device = settings.device
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        check_device(device)
        self._device = torch.device(device)
        if threads is not None:
            torch.set_num_threads(threads)
        self._capture = capture or capture_for(self._device)
        self._pauses = Pauses()
        self._loaded: _Loaded | None = None
        self._drafts: dict[Draft, CachedModel | None] = {}
        self._draft_models: dict[tuple[str, str | None, DType], tuple[LoadedModel, CachedModel]] = {}
        self._heads: dict[tuple[str, str, str | None], LoadedHead] = {}
        self._kv_bytes: dict[Draft, int] = {}
        self._limits = Limits(concurrency=1, max_gamma=0)
        self._memory: PrefillMemory | None = None

    def open(self, target: Target, drafts: Sequence[Draft], limits: Limits) -> None:
        """See ``contract.Engine``. Drafts opened before with the same target are kept."""
        if self._loaded is not None and self._loaded.spec != target:
            self.close()
        if self._loaded is None:
            source = load_target(target, str(self._device))
            # On a GPU reading a prompt is cheap, and its memory is not.
            self._memory = PrefillMemory() if self._device.type == "cpu" else None
            self._loaded = _Loaded(target, source, self._cached(source), eos_tokens(source))
        for draft in drafts:
            if draft not in self._drafts:
                self._drafts[draft] = self._open_draft(draft)
        self._limits = limits

    def close(self) -> None:
        """Free the target and its drafts."""
        self._loaded = self._memory = None
        self._drafts.clear()
        self._draft_models.clear()
        self._heads.clear()
        self._kv_bytes.clear()
        gc.collect()
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def run(self, arrivals: Sequence[Request], sampling: Sampling, draft: Draft | None, schedule: Schedule) -> Trace:
        """See ``contract.Engine``. K/V is allocated to fit these requests, or that of an earlier run is used again."""
        if draft is None and schedule.max_gamma:
            raise ValueError("a schedule that speculates needs a draft")
        return self._decode(arrivals, sampling, draft, schedule, schedule.max_gamma, None)

    def replays(self, draft: Draft) -> Foretold:
        """See ``contract.Engine``."""
        if isinstance(draft, Ngram):
            return "text"
        return "probe" if isinstance(draft, Head) else "score"

    def score(self, passages: Sequence[Passage], sampling: Sampling, draft: Draft) -> tuple[tuple[float, ...], ...]:
        """See ``contract.Engine``. Passages are read one by one; what the target remembers is not read anew."""
        model, target = self._opened_draft(draft), self._opened().model
        if isinstance(draft, Ngram | Head):
            raise ValueError(f"drafts.{draft.name}: what {draft.method} proposes cannot be scored over a text")
        requests = [passage.request for passage in passages]
        self._check(requests)
        long = [p.request.request_id for p in passages if len(p.output) > p.request.max_new_tokens]
        if long:
            raise ValueError(f"passages of more output than was asked for: {long[:3]}")
        slots, columns = self._limits.concurrency, self._columns(requests)
        target.reserve(slots, columns)
        reader = Reader(target, memory=self._memory)
        if model is not None:
            model.reserve(slots, columns)
            drafting = Reader(model)
        else:
            assert isinstance(draft, EarlyExit)
            drafting = Reader(target, draft.layers, self._memory)
        whole = reader if _drawn(draft, sampling) else None
        with torch.inference_mode():
            if model is None and not target.cache.written and requests:
                # A cache is either unwritten or holds every layer, which its first layers alone would not.
                target.prefill(0, np.array(requests[0].tokens[:1], dtype=np.int64))
            return tuple(score(passage, sampling, drafting, whole, target.vocabulary) for passage in passages)

    def time_widths(
        self,
        arrivals: Sequence[Request],
        sampling: Sampling,
        draft: Draft | None,
        gammas: Sequence[int],
        proposing: Sequence[int] | None = None,
    ) -> Trace:
        """See ``contract.Engine``. τ_d is the draft's own, next to nothing without one."""
        if not gammas or min(gammas) < 0:
            raise ValueError(f"gammas to time: {list(gammas)}, needed are some, of 0 and more")
        turns = InTurn(gammas, proposing)
        filler = FillerProposer(self._device, turns) if draft is None else None
        return self._decode(arrivals, sampling, draft, turns, max(gammas), filler)

    def _decode(
        self,
        arrivals: Sequence[Request],
        sampling: Sampling,
        draft: Draft | None,
        gammas: Gammas,
        most: int,
        proposer: Proposer | None,
    ) -> Trace:
        """One run with γ up to ``most``; ``proposer`` is used where there is no draft."""
        loaded = self._opened()
        self._check(arrivals)
        if most > self._limits.max_gamma:
            raise ValueError(f"schedule reaches gamma {most}, limits.max_gamma is {self._limits.max_gamma}")
        slots, columns = self._limits.concurrency, self._columns(arrivals)
        loaded.model.reserve(slots, columns)
        if draft is not None:
            self._check_gamma(draft, most)
            proposer = self._proposer(draft, sampling, slots, columns)
        state = Slots(
            slots,
            columns,
            loaded.model.vocabulary,
            loaded.eos,
            detokenizer=loaded.detokenizer if any(request.stop for request in arrivals) else None,
            penalizing=sampling if sampling.penalizes else None,
        )
        # Heads need the target's states of a prompt, which are not remembered: then every arm reads it anew.
        memory = None if self._heads else self._memory
        trace = DecodingLoop(loaded.model, state, proposer, sampling, gammas, arrivals, memory, self._pauses).run()
        if draft is not None and proposer is not None:
            self._kv_bytes[draft] = proposer.kv_bytes
        return trace

    def tie_margin(self, request: Request, output: Sequence[int], sampling: Sampling) -> float:
        """See ``contract.Engine``. One plain forward through the model's own attention, without our cache."""
        tokens = (*request.tokens, *output)
        model = self._opened().model
        with torch.inference_mode():
            logits = model.plain_logits(tokens).float()
            if sampling.penalizes:
                text, lengths = np.array([tokens]), (np.array([len(request.tokens)]), np.array([len(tokens)]))
                before = written(text, *lengths, sampling, len(logits), logits.device)
                logits = penalized(logits[None, None], before, None, sampling)[0, 0]
            u = float(uniforms(torch.tensor([seed_bits(request.seed)]), torch.tensor([[len(tokens)]]), PLAIN))
            return near_tie(logits, sampling, u)

    @property
    def tokenizer(self) -> Tokenizer:
        return cast(Tokenizer, self._opened().source.tokenizer)

    @property
    def facts(self) -> EngineFacts:
        loaded = self._opened()
        cuda = self._device.type == "cuda"
        return EngineFacts(
            engine=f"decoding {VERSION}",
            device=self._device.type,
            accelerator=accelerator_name(self._device),
            threads=torch.get_num_threads(),
            dtype=loaded.spec.dtype,
            torch=torch.__version__,
            transformers=transformers.__version__,
            driver=driver_version(self._device),
            target_revision=loaded.source.revision,
            vocabulary=loaded.model.vocabulary,
            max_context=self._max_context(),
            device_id=str(torch.cuda.get_device_properties(self._device).uuid) if cuda else "",
            graphs=self._records(),
            end_to_end=loaded.model.lays_end_to_end,
        )

    def draft_facts(self, draft: Draft) -> DraftFacts:
        """See ``contract.Engine``. An early exit has its target's revision, an n-gram none."""
        model = self._opened_draft(draft)
        revision = ""
        weight_bytes = 0 if model is None else model.weight_bytes
        if isinstance(draft, EarlyExit):
            revision = self._opened().source.revision
        elif isinstance(draft, DraftModel):
            revision = self._draft_models[self._key(draft)][0].revision
        elif isinstance(draft, Head):
            head = self._heads[_head_key(draft)]
            revision, weight_bytes = head.revision, head.weight_bytes
        return DraftFacts(revision=revision, weight_bytes=weight_bytes, kv_bytes=self._kv_bytes.get(draft, 0))

    def _cached(self, source: LoadedModel) -> CachedModel:
        recordings = None if self._capture is None else Recordings(self._capture, self._device, self._pauses)
        return CachedModel(source.model, self._device, recordings)

    def _records(self) -> bool:
        """Whether forwards of the target are recorded."""
        recordings = self._opened().model.recordings
        return recordings is not None and not recordings.failure

    def _opened(self) -> _Loaded:
        if self._loaded is None:
            raise RuntimeError("no target is open")
        return self._loaded

    def _opened_draft(self, draft: Draft) -> CachedModel | None:
        if draft not in self._drafts:
            raise RuntimeError(f"draft {draft.name} was not opened with the target")
        return self._drafts[draft]

    def _key(self, draft: DraftModel) -> tuple[str, str | None, DType]:
        """Drafts that differ only in name or in how they sample share their weights."""
        return draft.source, draft.revision, draft.dtype or self._opened().spec.dtype

    def _open_draft(self, draft: Draft) -> CachedModel | None:
        """The draft's own model, None if it has none. Raises InputError for what cannot draft for the target."""
        loaded = self._opened()
        if isinstance(draft, DraftModel):
            key = self._key(draft)
            if key not in self._draft_models:
                source = load_draft_model(draft, loaded.source, loaded.spec, str(self._device))
                self._draft_models[key] = (source, self._cached(source))
            return self._draft_models[key][1]
        if isinstance(draft, Head):
            if _head_key(draft) not in self._heads:
                self._heads[_head_key(draft)] = load_head(draft, loaded.source, loaded.spec, str(self._device))
            return None
        if isinstance(draft, EarlyExit):
            config, where = loaded.model.config, f"drafts.{draft.name}"
            if not supports_early_exit(config):
                raise InputError(f"{where}: early_exit is not possible with a target of model type {config.model_type}")
            if not 1 <= draft.layers < config.num_hidden_layers:
                most = config.num_hidden_layers - 1
                raise InputError(
                    f"{where}.layers={draft.layers}: allowed are 1 to {most} with target {loaded.spec.name}"
                )
        return None

    def _columns(self, requests: Sequence[Request]) -> int:
        """What a slot must hold of any of ``requests``, with proposals beyond its end."""
        return max((len(r.tokens) + r.max_new_tokens for r in requests), default=0) + self._limits.max_gamma + 1

    def _proposer(self, draft: Draft, sampling: Sampling, slots: int, columns: int) -> Proposer:
        target = self._opened().model
        model = self._opened_draft(draft)
        if isinstance(draft, Ngram):
            return NgramProposer(draft, self._device)
        drawn = sampling if _drawn(draft, sampling) else None
        if isinstance(draft, EarlyExit):
            return EarlyExitProposer(target, draft.layers, drawn)
        if isinstance(draft, Head):
            head = self._heads[_head_key(draft)]
            if isinstance(head, MedusaHeads):
                return MedusaProposer(head, slots, target.model.dtype, self._device, drawn)
            return Eagle3Proposer(head, slots, columns, self._limits.max_gamma + 1, drawn)
        assert model is not None
        return DraftModelProposer(model, slots, columns, target.vocabulary, drawn)

    def _check_gamma(self, draft: Draft, gamma: int) -> None:
        """Medusa heads are each good for one token."""
        self._opened_draft(draft)
        head = self._heads.get(_head_key(draft)) if isinstance(draft, Head) else None
        if isinstance(head, MedusaHeads) and gamma > head.count:
            raise InputError(f"drafts.{draft.name}: gamma {gamma} is more than its {head.count} heads")

    def _max_context(self) -> int:
        own = max_context(self._opened().model.config)
        return own if self._limits.context_tokens is None else min(own, self._limits.context_tokens)

    def _check(self, requests: Sequence[Request]) -> None:
        loaded = self._opened()
        check_requests(
            requests, loaded.spec.name, self._max_context(), loaded.model.vocabulary, lambda: loaded.detokenizer
        )


def _drawn(draft: DraftModel | EarlyExit | Head, sampling: Sampling) -> bool:
    """Whether proposals are drawn from the draft's distribution, or its likeliest tokens."""
    return draft.draft_sampling == "probabilistic" and not sampling.greedy


def _head_key(draft: Head) -> tuple[str, str, str | None]:
    """Drafts that differ only in name or in how they sample share their weights."""
    return draft.method, draft.source, draft.revision

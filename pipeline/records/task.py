"""What the driver asks of a worker, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass

from pipeline.records.cell import Cell
from pipeline.records.failure import Failure
from pipeline.records.forecast import CellForecast, Forecast
from pipeline.records.measurement import Baseline, Measurement, RoundKind
from pipeline.records.settings import Protocol
from pipeline.records.target import Candidate, Draft


@dataclass(frozen=True, kw_only=True)
class RoundTask:
    """Measure ``candidates`` of a cell beside one baseline, or forecast them (``kind`` forecast).

    The round takes ``prompt_count`` prompts of the workload's arranged order from ``first_prompt`` on. ``drafts`` are
    all drafts of the cell, so that a worker can keep them; ``max_gamma`` the greatest γ of the cell; ``level`` the
    confidence of the interval. ``replicate`` names the measurements, ``baseline_replicate`` the baseline (a search
    measures a candidate once, but makes a baseline every round). Where a workload has too few prompts, the round cycles
    over ``distinct_prompts`` from ``first_prompt`` on, ``prompt_offset`` of which earlier looks have dealt (None: all
    ``prompt_count`` are distinct). ``forecasts`` are those of the candidates, to be reported beside what is measured.
    ``racing`` lets a search drop candidates that are surely behind; with limits, the one ahead may turn out to break
    one, so that those behind are needed.
    """

    sweep: str
    cell: Cell
    drafts: tuple[Draft, ...]
    max_gamma: int
    candidates: tuple[Candidate, ...]
    kind: RoundKind
    replicate: int
    first_prompt: int
    prompt_count: int
    level: float
    protocol: Protocol
    baseline_replicate: int = 0
    distinct_prompts: int | None = None
    prompt_offset: int = 0
    forecasts: tuple[Forecast, ...] = ()
    racing: bool = True


@dataclass(frozen=True, kw_only=True)
class RoundResult:
    """``baseline`` None when nothing could be measured; then ``failures`` says why.

    ``forecast`` is there if one was asked for and could be made.
    """

    baseline: Baseline | None
    measurements: tuple[Measurement, ...]
    failures: tuple[Failure, ...]
    forecast: CellForecast | None = None


@dataclass(frozen=True, kw_only=True)
class Identification:
    """What the measurements of a round would be, before any is made: ``content_ids`` by candidate, in task order."""

    content_ids: tuple[str, ...]

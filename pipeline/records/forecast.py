"""What a cell's candidates are expected to do, before any of them is run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from pipeline.records.cell import CellKey
from pipeline.records.provenance import Provenance
from pipeline.records.strict import STRICT
from pipeline.records.target import Candidate

ForecastMethod = Literal["replay", "probe"]


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """One candidate's speculation played over the baseline's text, timed by a pass over widths.

    ``error`` is one standard error of log ``speedup`` as a forecast of a measurement on the same prompts, ``spread``
    one of what other prompts would have given (jackknife; None below two prompts). ``marginal[i]`` = P(first i+1
    proposals all accepted); ``emitted_per_verification`` E and the times are means of a row-iteration, as in
    ``Metrics``. ``method``: replay follows the committed text; probe takes the acceptance of a short run.
    """

    candidate: Candidate
    method: ForecastMethod
    speedup: float
    error: float
    spread: float | None
    emitted_per_verification: float | None
    acceptance_rate: float | None
    proposed_per_iteration: float
    marginal: tuple[float, ...]
    tau_draft_ms: float
    tau_verify_ms: float
    tau_overhead_ms: float
    tau_spec_ms: float


@dataclass(frozen=True, kw_only=True)
class CellForecast:
    """The forecasts of one cell from a baseline of ``prompts`` prompts; candidates that have none are left out."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT

    id: str
    sweep: str
    cell: CellKey
    baseline_ids: tuple[str, ...]
    provenance: Provenance
    prompts: int
    tau0_ms: float
    forecasts: tuple[Forecast, ...]
    kind: Literal["forecast"] = "forecast"
    schema_version: int = 2

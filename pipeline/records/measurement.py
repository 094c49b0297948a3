"""What was measured of one candidate in one cell, beside its baseline."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from pipeline.records.cell import CellKey
from pipeline.records.provenance import Provenance
from pipeline.records.target import Candidate
from pipeline.records.trace import Block

MeasurementKind = Literal["search", "confirmation_look", "confirmation", "aa"]
RoundKind = Literal["forecast", "search", "confirmation_look", "confirmation", "aa"]
"""A forecast is a round too: of a baseline alone, from whose text and times it is made."""


@dataclass(frozen=True, kw_only=True)
class Unit:
    """One prompt's sums in both arms (all its seeds and blocks): the unit of the interval at C=1.

    ``tau`` is the prompt's share of the iterations it took part in, ms: Σ τ · (1 / active).
    """

    prompt_id: str
    emitted: int
    row_iterations: int
    tau_ms: float
    baseline_emitted: int
    baseline_row_iterations: int
    baseline_tau_ms: float


@dataclass(frozen=True, kw_only=True)
class BlockSums:
    """One block's mean time of a counted row's iteration in both arms, ms: a unit of time at C>1."""

    index: int
    tau_ms: float
    baseline_tau_ms: float


@dataclass(frozen=True, kw_only=True)
class AcceptanceBin:
    """Sums over the row-iterations whose place lies in ``low`` … ``high``, both included; α is accepted / tested."""

    low: int
    high: int
    row_iterations: int
    proposed: int
    tested: int
    accepted: int
    emitted: int

    @property
    def acceptance_rate(self) -> float | None:
        """α, None where nothing was tested."""
        return self.accepted / self.tested if self.tested else None


@dataclass(frozen=True, kw_only=True)
class Metrics:
    """The figures of one measurement; the field names are the metric names everywhere. None: undefined here.

    ``speedup`` S = (Σemitted/Στ of the candidate) / (Σemitted/Στ of the baseline). ``speedup_low`` and
    ``speedup_high`` bound it at confidence ``interval_level``. ``acceptance_rate`` α = accepted / tested;
    ``draft_acceptance_rate`` = accepted / proposed. d, v, h = τ_d, τ_v, τ_o over τ0; c = one draft step over τ0.
    ``remeasured_blocks`` were measured again because their baseline moved; in ``drifted_blocks`` it did so to the last.
    ``raced_out``: surely behind a rival, so that its round's other prompts were not measured.
    ``speedup_forecast`` and ``emitted_forecast`` (of E) are what the cell's forecast said before, from other prompts
    than a confirmation's.

    Why S is what it is: ``speedup_ideal`` = E(α, γ)/(1 + γc), what a paper's formula claims; with the real times,
    ``speedup_geometric`` = E(α, γ)/(d + v + h) = ideal · drafting · verification · overhead (the ``factor_``s of these
    names); and ``speedup`` = geometric · proposals · independence · occupancy (``speedup.Factors`` says what each is).
    ``overlap_acceptance_correlation`` is Pearson's, over prompts, of α with ``prompt_output_overlap``.
    """

    speedup: float
    speedup_low: float | None
    speedup_high: float | None
    interval_level: float
    units: int
    blocks: int
    speedup_e2e: float
    speedup_ideal: float | None
    speedup_geometric: float | None
    factor_drafting: float | None
    factor_verification: float | None
    factor_overhead: float | None
    factor_proposals: float | None
    factor_independence: float | None
    factor_occupancy: float | None
    emitted_per_verification: float | None
    acceptance_rate: float | None
    draft_acceptance_rate: float | None
    proposed_per_iteration: float
    accepted_per_iteration: float
    acceptance_first: float | None
    clamped_fraction: float
    tau0_ms: float
    tau_draft_ms: float
    tau_verify_ms: float
    tau_overhead_ms: float
    tau_spec_ms: float
    d: float
    v: float
    h: float
    c: float | None
    break_even_margin: float | None
    tpot_ms_p50: float | None
    tpot_ms_p95: float | None
    tpot_ms_p99: float | None
    gap_ms_p50: float | None
    gap_ms_p95: float | None
    gap_ms_p99: float | None
    ttft_ms_p50: float | None
    ttft_ms_p95: float | None
    ttft_ms_p99: float | None
    output_tokens_per_s: float
    baseline_output_tokens_per_s: float
    draft_weight_bytes: int
    draft_kv_bytes: int
    pad_fraction: float
    context_tokens: float
    prompt_output_overlap: float | None
    overlap_acceptance_correlation: float | None
    near_ties: int
    remeasured_blocks: int = 0
    drifted_blocks: int = 0
    raced_out: bool = False
    speedup_forecast: float | None = None
    emitted_forecast: float | None = None


@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A candidate's figures, the sums they come from, and the traces behind both.

    ``id`` = hash(sweep, cell, candidate, kind, replicate); ``baseline_ids`` name the baselines it was measured beside.
    ``marginal[i]`` = P(first i+1 proposals all accepted), ``conditional[i]`` = P(proposal i+1 accepted | it was
    tested). ``by_output_position`` bins row-iterations by the place in the output of their first token (prefill's is
    0), ``by_context`` by the tokens committed before them; a bin that is missing had none. A pooled confirmation has no
    ``trace_blocks`` of its own: they lie in the looks that ``parts`` names. ``set_aside`` are attempts at blocks that
    were measured again, oldest first; no figure has them in it.
    """

    id: str
    content_id: str
    sweep: str
    kind: MeasurementKind
    cell: CellKey
    candidate: Candidate
    replicate: int
    baseline_ids: tuple[str, ...]
    parts: tuple[str, ...]
    provenance: Provenance
    metrics: Metrics
    marginal: tuple[float, ...]
    conditional: tuple[float | None, ...]
    by_output_position: tuple[AcceptanceBin, ...]
    by_context: tuple[AcceptanceBin, ...]
    unit_sums: tuple[Unit, ...]
    block_sums: tuple[BlockSums, ...]
    trace_blocks: tuple[Block, ...] = ()
    set_aside: tuple[Block, ...] = ()
    schema_version: int = 2


@dataclass(frozen=True, kw_only=True)
class Baseline:
    """Plain decoding by the same engine, on the prompts of one round: shared by the round's candidates.

    ``set_aside`` as in a Measurement.
    """

    id: str
    sweep: str
    cell: CellKey
    replicate: int
    round_kind: RoundKind
    provenance: Provenance
    tau0_ms: float
    output_tokens_per_s: float
    trace_blocks: tuple[Block, ...] = field(default=())
    set_aside: tuple[Block, ...] = field(default=())
    kind: Literal["baseline"] = "baseline"
    schema_version: int = 2

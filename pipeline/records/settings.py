"""What a sweep may be told, each setting declared once; ``pipeline.config`` fills these from ``conf/``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pipeline.records.cell import Sampling, Workload
from pipeline.records.shape import ModelShape
from pipeline.records.strict import STRICT
from pipeline.records.target import Draft, Target


@dataclass(frozen=True, kw_only=True)
class DraftChoice:
    """A draft that suits a target and the γ to try it with (each ≥ 1, ascending). ``shape`` is for planning only."""

    draft: Draft
    gammas: tuple[int, ...]
    shape: ModelShape | None = None


@dataclass(frozen=True, kw_only=True)
class TargetChoice:
    """A target with the drafts that suit it, sorted by name so that their order in a file means nothing.

    ``shape`` is for planning only: what is measured follows from the weights.
    """

    target: Target
    drafts: tuple[DraftChoice, ...]
    shape: ModelShape | None = None


@dataclass(frozen=True, kw_only=True)
class Protocol:
    """How a round is measured.

    A search takes max(``search_prompts``, 3 C) prompts, a confirmation max(``confirm_prompts``, 9 C); sampled
    workloads use ``seeds`` seeds a prompt. ``shuffle_seed`` arranges a workload's prompts before they are dealt out.
    ``tie_margin`` bounds, for greedy and one-hot text that differs from the baseline's, how near to a tie the first
    difference must have been (``tie_margin_low_precision`` below fp32). A block is measured again, at most
    ``remeasure`` times, when its second pass of the baseline lies away from the first by more than ``drift_least``
    (relative) and more than ``drift_z`` times the noise.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT

    search_prompts: int = 6
    confirm_prompts: int = 24
    seeds: int = 3
    shuffle_seed: int = 0
    warmup_tokens: int = 8
    tie_margin: float = 1e-3
    tie_margin_low_precision: float = 0.25
    drift_least: float = 0.05
    drift_z: float = 4.0
    remeasure: int = 2
    a_a: bool = False


@dataclass(frozen=True, kw_only=True)
class SearchSettings:
    """``max_candidates`` bounds a cell's search; ``candidates_per_round``, at most, share a baseline."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT

    strategy: Literal["guided", "grid", "tpe"] = "guided"
    candidates_per_round: int = 4
    max_candidates: int = 30
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class EngineSettings:
    """``device`` auto takes CUDA where a worker has a GPU."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT

    name: Literal["decoding", "simulated"] = "decoding"
    device: Literal["auto", "cpu", "cuda"] = "auto"


@dataclass(frozen=True, kw_only=True)
class ClusterSettings:
    """``address`` None joins the cluster of a running job (RAY_ADDRESS), else starts Ray on this machine.

    A worker owns whole accelerators, or ``cpus_per_worker`` CPUs (None: the machine's CPUs shared among ``workers``).
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT

    address: str | None = None
    workers: int = 1
    gpus_per_worker: int = 0
    cpus_per_worker: int | None = None
    accelerator_type: str | None = None
    placement_timeout_s: float = 60.0
    call_timeout_s: float = 3600.0
    retries: int = 2


@dataclass(frozen=True, kw_only=True)
class TrackingSettings:
    """``uri`` None is SQLite under the output folder; ``enabled`` False keeps only the truth and the policy."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT

    enabled: bool = True
    uri: str | None = None


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Wall seconds a cell may take, and hours that all workers together may run; None is no limit."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT

    cell_s: float | None = None
    worker_hours: float | None = None


@dataclass(frozen=True, kw_only=True)
class PolicySettings:
    """``margin``: a cell is on when speedup_low > 1 + margin."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT

    margin: float = 0.03


@dataclass(frozen=True, kw_only=True)
class Constraints:
    """Limits that a candidate must keep to, each named as the metric that it bounds; None is no limit.

    Times are the greatest allowed, ms; ``speedup_e2e`` is the least, the ratio of throughputs with prompts included.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT

    tpot_ms_p95: float | None = None
    tpot_ms_p99: float | None = None
    gap_ms_p95: float | None = None
    gap_ms_p99: float | None = None
    ttft_ms_p95: float | None = None
    ttft_ms_p99: float | None = None
    speedup_e2e: float | None = None


NO_LIMITS = Constraints()


@dataclass(frozen=True, kw_only=True)
class AssumedAcceptance:
    """α by method before anything is measured; conf/sweep.yaml says where each is from."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT

    ngram: float = 0.4
    draft_model: float = 0.7
    early_exit: float = 0.6
    medusa: float = 0.6
    eagle3: float = 0.7


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """What a plan assumes; no measurement depends on it.

    ``device`` None goes by the cluster's accelerator type. ``overhead`` is the loop's own time in plain steps.
    A worker takes ``start_s`` to be ready and reads weights at ``load_gb_s``. Budgets promised are the estimate times
    ``allowance``.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT

    device: str | None = None
    acceptance: AssumedAcceptance = field(default_factory=AssumedAcceptance)
    characters_per_token: float = 4.0
    overhead: float = 0.02
    start_s: float = 30.0
    load_gb_s: float = 1.0
    allowance: float = 2.0
    every_candidate: bool = False


@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """One sweep, fully resolved. ``output_dir`` is absolute."""

    name: str
    output_dir: str
    targets: tuple[TargetChoice, ...]
    workloads: tuple[Workload, ...]
    samplings: tuple[Sampling, ...]
    concurrency: tuple[int, ...]
    fresh: bool = False
    reuse: bool = False
    protocol: Protocol = field(default_factory=Protocol)
    search: SearchSettings = field(default_factory=SearchSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    tracking: TrackingSettings = field(default_factory=TrackingSettings)
    budget: Budget = field(default_factory=Budget)
    policy: PolicySettings = field(default_factory=PolicySettings)
    constraints: Constraints = field(default_factory=Constraints)
    plan: PlanSettings = field(default_factory=PlanSettings)

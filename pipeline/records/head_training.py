"""What the training of a head may be told, each setting declared once, and what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pipeline.records.cell import Workload
from pipeline.records.settings import TrackingSettings
from pipeline.records.strict import STRICT
from pipeline.records.target import Ngram, Target


@dataclass(frozen=True, kw_only=True)
class CollectSettings:
    """What the target writes to learn from.

    ``held_out`` and ``watched`` are shares of each workload's prompts: the first are measured on at the end, the second
    choose the best state of the head; neither is learned from. ``sampled`` is the share of answers drawn at temperature
    1, the rest is greedy. ``prompt_tokens``: longest prompt that the target may write. ``requests`` of one batch share
    ``slots``. ``dtype`` auto takes the type whose products are fastest on this machine. ``tokens``: answer tokens after
    which enough is collected, None to choose by the time there is. ``text``: files of plain text to read as well.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT

    held_out: float = 0.5
    watched: float = 0.25
    sampled: float = 0.2
    prompt_tokens: int = 96
    requests: int = 320
    slots: int = 64
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    tokens: int | None = None
    text: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class HeadSettings:
    """The head's size. ``states``: hidden states of the target to fuse, None for an early, a middle and a late one.

    ``vocabulary``: how many tokens it knows. ``intermediate_size`` None is the target's own.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT

    states: tuple[int, ...] | None = None
    vocabulary: int = 8192
    intermediate_size: int | None = None


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """How it learns: ``epochs`` over what is collected, which decides how time is shared between the two.

    ``draft_steps`` tokens ahead are trained, each weighing ``later_weight`` of the one before. ``batch_tokens`` entries
    a step. ``looks``: how often the watched prompts are looked at; after ``patience`` without a gain it ends.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT

    epochs: float = 6.0
    draft_steps: int = 3
    later_weight: float = 0.5
    batch_tokens: int = 2048
    learning_rate: float = 2e-3
    weight_decay: float = 0.05
    warmup: float = 0.03
    looks: int = 20
    patience: int = 8
    steps: int | None = None


@dataclass(frozen=True, kw_only=True)
class Look:
    """One look at the watched prompts, after so many steps and ``spent_s`` of learning.

    ``loss`` is the mean of the steps since the last look, ``watched_loss`` that on the watched prompts, both of the
    first draft step; ``watched_agreement`` by draft step, the share of places where the head's likeliest token is the
    target's.
    """

    step: int
    spent_s: float
    progress: float
    learning_rate: float
    loss: float
    watched_loss: float
    watched_agreement: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class HeadTraining:
    """One head for one target, fully resolved. ``output_dir`` is absolute; the head lies in ``heads/name`` there.

    ``ngram`` is what it is compared with. ``minutes`` bound collecting, learning and measuring together; work of an
    earlier start counts, the time between does not.
    """

    name: str
    output_dir: str
    target: Target
    ngram: Ngram
    workloads: tuple[Workload, ...]
    minutes: float = 30.0
    seed: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    fresh: bool = False
    collect: CollectSettings = field(default_factory=CollectSettings)
    head: HeadSettings = field(default_factory=HeadSettings)
    fit: FitSettings = field(default_factory=FitSettings)
    tracking: TrackingSettings = field(default_factory=TrackingSettings)


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Of places in texts, the share where the first proposal was the target's greedy token; a miss counts as wrong.

    ``low`` and ``high``: 95 %, by jackknife over texts; the same as ``share`` where there are fewer than two.
    """

    share: float
    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class Drafted:
    """What the engine saw with a draft at ``gamma``, greedy, on the same prompts (see ``measurement.acceptance``)."""

    gamma: int
    acceptance_rate: float | None
    emitted_per_verification: float | None
    acceptance_by_position: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class HeadOnWorkload:
    """A head beside n-gram on prompts that neither learning nor the choice of its best state has seen.

    ``places``: all tokens of the target's greedy texts but the first of each, which no draft proposes. ``head`` is
    given the target's true states everywhere. ``head_by_step``: the later draft steps, each on the true text before
    it. ``ahead``: head minus n-gram, with the interval of the difference.
    """

    workload: str
    prompts: tuple[str, ...]
    places: int
    head: Agreement
    head_by_step: tuple[float, ...]
    ngram: Agreement
    ahead: Agreement
    head_drafted: Drafted
    ngram_drafted: Drafted


@dataclass(frozen=True, kw_only=True)
class HeadReport:
    """How a head came about and how good it is; ``training.json`` beside its weights.

    ``identity`` hashes all that it was made from. ``held_out`` prompts are named in ``results``, ``watched`` here;
    neither was learned from. ``coverage``: share of the held-out places whose greedy token the head knows.
    ``best_step`` of ``looks`` is the one whose weights were kept.
    """

    identity: str
    created: str
    target: Target
    target_revision: str
    teacher_dtype: str
    states: tuple[int, ...]
    draft_vocabulary: int
    parameters: int
    watched: tuple[str, ...]
    learned_texts: int
    learned_places: int
    prompts_written: int
    batches: int
    collected_bytes: int
    collecting_s: float
    learning_s: float
    measuring_s: float
    best_step: int
    steps: int
    coverage: float
    minutes: float
    seed: int
    collect: CollectSettings
    head: HeadSettings
    fit: FitSettings
    torch: str
    transformers: str
    threads: int
    looks: tuple[Look, ...]
    results: tuple[HeadOnWorkload, ...]

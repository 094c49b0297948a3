"""The unit for which a decision is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from pipeline.records.strict import STRICT
from pipeline.records.target import Target

WorkloadFormat = Literal["bundled", "spec_bench", "sharegpt", "chat", "text"]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Temperature 0 is greedy. ``top_k`` 0, ``top_p`` 1 and ``min_p`` 0 switch their filter off.

    Penalties change raw logits, before temperature, greedy decoding's too: a token of prompt or output has its logit
    divided by ``repetition_penalty`` where it is positive and multiplied where it is not; then an output token loses
    ``presence_penalty``, and ``frequency_penalty`` for each time that it occurs in the output. 1, 0 and 0 switch off.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT

    name: str
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalizes(self) -> bool:
        """Whether a token's logit depends on what was written before it beyond the model's own doing."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A class of prompts with an output length.

    ``path`` None is allowed for ``bundled`` only, whose prompts carry the workload's ``name`` unless ``path``
    names another bundled set. ``categories`` keeps only those of a Spec-Bench file. ``turns`` says whether later
    turns of a conversation are measured as prompts of their own. ``stop`` (strings) and ``stop_token_ids`` end an
    output as the target's end-of-text tokens do, with ``ignore_eos`` too. ``context_tokens`` is the length that every
    prompt is given by real text before its question: that of the plain text file ``context_path``, None for texts of
    the bundled sets; None leaves prompts as they are.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT

    name: str
    format: WorkloadFormat = "bundled"
    path: str | None = None
    categories: tuple[str, ...] = ()
    turns: Literal["first", "all"] = "all"
    output_tokens: int = 128
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    max_prompt_tokens: int | None = None
    context_tokens: int | None = None
    context_path: str | None = None


@dataclass(frozen=True, kw_only=True)
class CellKey:
    """The names that identify a cell within one sweep."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT

    target: str
    workload: str
    sampling: str
    concurrency: int
    accelerator: str

    @property
    def label(self) -> str:
        """``smollm2 · chat · greedy · C4`` (the accelerator is left out: one per sweep line)."""
        return f"{self.target} · {self.workload} · {self.sampling} · C{self.concurrency}"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """Target × workload × sampling × concurrency × accelerator, with everything needed to measure it."""

    target: Target
    workload: Workload
    sampling: Sampling
    concurrency: int
    accelerator: str

    @property
    def key(self) -> CellKey:
        return CellKey(
            target=self.target.name,
            workload=self.workload.name,
            sampling=self.sampling.name,
            concurrency=self.concurrency,
            accelerator=self.accelerator,
        )

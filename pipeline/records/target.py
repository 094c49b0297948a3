"""The model being served, and the drafts that suit it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pipeline.records.strict import STRICT

Scalar = bool | int | float | str
DType = Literal["float32", "bfloat16", "float16"]
DraftSampling = Literal["probabilistic", "greedy"]


@dataclass(frozen=True, kw_only=True)
class Ngram:
    """Prompt lookup: propose what followed the longest earlier match of the last n tokens.

    ``match`` says which occurrence counts when several match: vLLM and transformers take the first.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT

    name: str
    method: Literal["ngram"] = "ngram"
    min_n: int = 1
    max_n: int = 3
    match: Literal["first", "last"] = "first"


@dataclass(frozen=True, kw_only=True)
class DraftModel:
    """A smaller model with the target's vocabulary. ``dtype`` None means the target's."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT

    name: str
    source: str
    method: Literal["draft_model"] = "draft_model"
    revision: str | None = None
    dtype: DType | None = None
    draft_sampling: DraftSampling = "probabilistic"


@dataclass(frozen=True, kw_only=True)
class EarlyExit:
    """The target's first ``layers`` layers followed by its own final norm and output head."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT

    name: str
    layers: int
    method: Literal["early_exit"] = "early_exit"
    draft_sampling: DraftSampling = "probabilistic"


@dataclass(frozen=True, kw_only=True)
class Medusa:
    """Heads on the target's final hidden state, each of which guesses one token further ahead (arXiv 2401.10774)."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT

    name: str
    source: str
    method: Literal["medusa"] = "medusa"
    revision: str | None = None
    draft_sampling: DraftSampling = "probabilistic"


@dataclass(frozen=True, kw_only=True)
class Eagle3:
    """A one-layer head that drafts a chain from three of the target's hidden states (EAGLE-3, arXiv 2503.01840)."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT

    name: str
    source: str
    method: Literal["eagle3"] = "eagle3"
    revision: str | None = None
    draft_sampling: DraftSampling = "probabilistic"


Head = Medusa | Eagle3
"""A draft that was trained on the hidden states of one target."""

Sourced = DraftModel | Medusa | Eagle3
"""A draft with files of its own."""

Draft = Ngram | DraftModel | EarlyExit | Medusa | Eagle3
"""A named way to propose tokens: a method and all its parameters."""


def has_extra_weights(draft: Draft) -> bool:
    """Whether a server that loads ``draft`` holds weights beyond the target's."""
    return isinstance(draft, Sourced)


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """Draft + γ: one Optuna trial of a cell's study. ``draft`` None with ``gamma`` 0 is off (for A/A)."""

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT

    draft: Draft | None
    gamma: int

    @property
    def label(self) -> str:
        """``ngram γ4``, or ``off``."""
        return "off" if self.draft is None else f"{self.draft.name} γ{self.gamma}"


@dataclass(frozen=True, kw_only=True)
class Target:
    """A model to serve.

    ``source`` is a hub id (with ``revision``), a local folder, a GGUF file, or ``package:NAME`` for a
    GGUF file carried by an installed Python package. ``chat_template`` is ``model`` (the tokenizer's
    own; an error if it has none), ``plain`` (no template: contents joined by blank lines), or the path of a
    Jinja file; ``chat_template_args`` are passed to the template.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT

    name: str
    source: str
    revision: str | None = None
    dtype: DType = "bfloat16"
    tokenizer: str | None = None
    chat_template: str = "model"
    chat_template_args: Mapping[str, Scalar] = field(default_factory=dict)
    trust_remote_code: bool = False
    allow_pickle: bool = False

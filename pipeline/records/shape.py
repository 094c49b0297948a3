"""How large a model is: enough to plan with, without its weights or a hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from pipeline.records.strict import STRICT


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The numbers of a decoder's config.json that its cost follows from, under its names.

    ``intermediate_size`` is that of the dense MLP, or of one expert where ``num_experts`` > 0, of which a token takes
    ``num_experts_per_tok``. ``tie_word_embeddings``: the output head is the embedding.
    """

    __pydantic_config__: ClassVar[Mapping[str, str]] = STRICT

    num_hidden_layers: int
    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    vocab_size: int
    num_experts: int = 0
    num_experts_per_tok: int = 0
    tie_word_embeddings: bool = False

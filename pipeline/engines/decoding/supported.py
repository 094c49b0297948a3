"""Which models can be decoded losslessly here; every other is refused by name, before any time is spent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pipeline.records.failure import InputError

if TYPE_CHECKING:
    from transformers import PretrainedConfig

_DENSE = (
    "llama mistral ministral qwen2 qwen3 gemma gemma2 gemma3_text phi phi3 gpt2 gpt_neox opt falcon granite olmo olmo2 "
    "olmo3 cohere cohere2 starcoder2 stablelm smollm3 glm glm4 seed_oss arcee helium nemotron exaone4 ernie4_5"
)
_MIXTURES = "mixtral qwen2_moe qwen3_moe olmoe granitemoe phimoe"
DECODABLE = frozenset(_DENSE.split() + _MIXTURES.split())
"""Model types whose whole state is a cache of keys and values by position, which rolls back by forgetting its end."""

EARLY_EXIT = frozenset({"llama", "mistral", "ministral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3_text", "phi3"})
"""Model types whose first k layers, final norm and head are a draft (``model.layers``, ``model.norm``, ``lm_head``)."""

_ALIBI = frozenset({"bloom", "mpt"})
_ATTENTION = frozenset({"full_attention", "sliding_attention"})
_LENGTH_DEPENDENT = frozenset({"dynamic", "longrope", "su"})


def check_supported(config: PretrainedConfig, key: str = "target") -> None:
    """Raise InputError, beginning with ``key``, if a model of this configuration cannot be decoded losslessly here."""
    reason = _refusal(config)
    if reason is not None:
        raise InputError(f"{key}: model type {config.model_type} {reason}")


def supports_early_exit(config: PretrainedConfig) -> bool:
    """Whether the model's first layers can draft for it."""
    return config.model_type in EARLY_EXIT


def max_context(config: PretrainedConfig) -> int:
    """The longest row, in tokens, that the model decodes losslessly.

    Its table of positions or trained length; with dynamic or longrope scaling the original length, because beyond it
    the rotation of *every* cached key would depend on how long the batch's longest row happens to be.
    """
    longest = getattr(config, "max_position_embeddings", None)
    limits = [math.inf if longest is None else int(longest)]
    for scaling in _rope_scalings(config):
        if scaling.get("rope_type", scaling.get("type")) in _LENGTH_DEPENDENT:
            original = scaling.get("original_max_position_embeddings")
            original = original or getattr(config, "original_max_position_embeddings", None)
            limits += [int(str(original))] if original else []
    shortest = min(limits)
    return 2**31 - 1 if math.isinf(shortest) else int(shortest)


def _refusal(config: PretrainedConfig) -> str | None:
    kinds = set(getattr(config, "layer_types", None) or ())
    if getattr(config, "is_encoder_decoder", False):
        return "is an encoder-decoder: only decoder-only models can be decoded here"
    if _is_stateful(config) or kinds & {"linear_attention", "conv", "hybrid", "hybrid_sliding", "mamba", "recurrent"}:
        return "keeps a recurrent state, which cannot be rolled back after a rejected proposal"
    if config.model_type in _ALIBI or getattr(config, "alibi", False):
        return "uses ALiBi position biases, which are not implemented here"
    if kinds - _ATTENTION:
        return (
            f"has attention of kind {', '.join(sorted(kinds - _ATTENTION))}; allowed: {', '.join(sorted(_ATTENTION))}"
        )
    if config.get_text_config() is not config or getattr(config, "vision_config", None) is not None:
        return "is a multi-modal wrapper: give the folder or hub id of a text-only model"
    if config.model_type not in DECODABLE:
        return f"has not been checked for lossless decoding here; allowed: {', '.join(sorted(DECODABLE))}"
    return None


def _is_stateful(config: PretrainedConfig) -> bool:
    """transformers' own mark of models with a state that is no cache of keys and values."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    model = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    return bool(getattr(model, "_is_stateful", False))


def _rope_scalings(config: PretrainedConfig) -> list[Mapping[str, object]]:
    """The rotary parameters, one mapping for the model or one for each kind of layer."""
    parameters = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    nested = [value for value in parameters.values() if isinstance(value, Mapping)]
    return nested or [parameters]

"""Only models whose state rolls back by forgetting are accepted, each refusal by name and reason."""

from __future__ import annotations

import re

import pytest
import transformers
from transformers import (
    BloomConfig,
    FalconConfig,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    MptConfig,
    OPTConfig,
    Phi3Config,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from pipeline.engines.decoding import supported
from pipeline.engines.decoding.supported import DECODABLE, check_supported, max_context, supports_early_exit
from pipeline.records.failure import InputError

ACCEPTED = [
    LlamaConfig,
    Qwen2Config,
    Qwen3Config,
    MistralConfig,
    Gemma2Config,
    Gemma3TextConfig,
    Phi3Config,
    GPT2Config,
    OPTConfig,
    FalconConfig,
    MixtralConfig,
    Qwen3MoeConfig,
]
RECURRENT = ["Mamba", "Mamba2", "Rwkv", "RecurrentGemma", "Jamba", "Zamba2", "Qwen3Next", "Bamba", "FalconH1"]


@pytest.mark.parametrize("kind", ACCEPTED)
def test_decoders_with_a_cache_of_keys_and_values_pass(kind: type[PretrainedConfig]) -> None:
    check_supported(kind())


def check_that_it_is_refused(config: PretrainedConfig, why: str) -> None:
    """By the key, the model's type and the reason."""
    said = "accepted"
    try:
        check_supported(config, "targets.x.source")
    except InputError as error:
        said = str(error)
    assert re.search(f"^targets.x.source: model type {config.model_type} .*{why}", said), f"said of it: {said}"


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_and_hybrid_models_are_refused_by_name(name: str) -> None:
    """Case 16."""
    check_that_it_is_refused(getattr(transformers, f"{name}Config")(), "rolled back")


@pytest.mark.parametrize("name", RECURRENT)
def test_a_list_of_names_that_forgets_the_state_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Case 16. Broken: whatever transformers can generate with is taken for decodable."""
    known = lambda config: None if config.model_type in transformers.CONFIG_MAPPING else "is unknown"  # noqa: E731
    monkeypatch.setattr(supported, "_refusal", known)
    with pytest.raises(AssertionError, match="said of it: accepted"):
        check_that_it_is_refused(getattr(transformers, f"{name}Config")(), "rolled back")


@pytest.mark.parametrize("config", [BloomConfig(), MptConfig(), FalconConfig(alibi=True)])
def test_alibi_is_refused(config: PretrainedConfig) -> None:
    check_that_it_is_refused(config, "uses ALiBi")


@pytest.mark.parametrize("name", ["T5", "Bart", "MT5", "Pegasus", "Marian"])
def test_encoder_decoders_are_refused(name: str) -> None:
    check_that_it_is_refused(getattr(transformers, f"{name}Config")(), "is an encoder-decoder")


def test_multi_modal_wrappers_are_refused() -> None:
    with pytest.raises(InputError, match="gemma3 is a multi-modal wrapper"):
        check_supported(Gemma3Config())


def test_attention_that_is_neither_full_nor_sliding_is_refused() -> None:
    config = LlamaConfig(num_hidden_layers=2, layer_types=["full_attention", "chunked_attention"])
    with pytest.raises(InputError, match="attention of kind chunked_attention"):
        check_supported(config)


@pytest.mark.parametrize("kind", ["linear_attention", "conv", "hybrid"])
def test_layers_with_a_state_are_refused_in_any_family(kind: str) -> None:
    config = LlamaConfig(num_hidden_layers=2, layer_types=["full_attention", kind])
    with pytest.raises(InputError, match="recurrent state"):
        check_supported(config)


def test_a_family_that_nobody_checked_is_refused_with_those_that_are_allowed() -> None:
    with pytest.raises(InputError, match=r"deepseek_v3 has not been checked.*allowed: .*llama.*qwen3"):
        check_supported(transformers.DeepseekV3Config())


def test_every_allowed_family_exists_in_transformers() -> None:
    assert set(transformers.CONFIG_MAPPING) >= DECODABLE


def test_early_exit_is_for_models_whose_layers_share_the_final_norm_and_head() -> None:
    for config in (LlamaConfig(), Qwen2Config(), Qwen3Config(), Gemma2Config(), MistralConfig(), Phi3Config()):
        assert supports_early_exit(config)
    for other in (GPT2Config(), OPTConfig()):
        assert not supports_early_exit(other)


def test_the_context_is_the_models_own_limit() -> None:
    assert max_context(LlamaConfig(max_position_embeddings=2048)) == 2048
    assert max_context(GPT2Config(n_positions=512)) == 512
    assert max_context(Gemma3TextConfig(max_position_embeddings=4096)) == 4096


@pytest.mark.parametrize(
    ("scaling", "longest"),
    [
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}, 8192),
        ({"rope_type": "linear", "factor": 8.0}, 8192),
        ({"rope_type": "yarn", "factor": 8.0}, 8192),
        ({"rope_type": "dynamic", "factor": 8.0}, 1024),
    ],
)
def test_scaling_that_depends_on_the_length_is_allowed_up_to_the_original_length(
    scaling: dict[str, object], longest: int
) -> None:
    rope = {"rope_theta": 1e4, "original_max_position_embeddings": 1024, **scaling}
    assert max_context(LlamaConfig(max_position_embeddings=8192, rope_parameters=rope)) == longest


def test_dynamic_scaling_without_an_original_length_scales_beyond_the_models_own() -> None:
    rope = {"rope_theta": 1e4, "rope_type": "dynamic", "factor": 2.0}
    assert max_context(LlamaConfig(max_position_embeddings=2048, rope_parameters=rope)) == 2048


def test_longrope_is_allowed_up_to_the_original_length() -> None:
    factors = [1.0] * 48
    rope = {"rope_theta": 1e4, "rope_type": "longrope", "short_factor": factors, "long_factor": factors}
    config = Phi3Config(
        max_position_embeddings=131072, original_max_position_embeddings=4096, pad_token_id=0, rope_parameters=rope
    )
    assert max_context(config) == 4096

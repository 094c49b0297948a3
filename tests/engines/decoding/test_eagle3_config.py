"""What an EAGLE-3 head's config.json says in either layout, and what of it is refused by name."""

from __future__ import annotations

import pytest
import torch
from tiny_heads import FLAT, SPECULATORS, eagle3_entries
from tiny_models import VOCABULARY
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from pipeline.engines.decoding.heads.eagle3 import llama_config
from pipeline.engines.decoding.heads.eagle3_config import Eagle3Config, eagle3_config
from pipeline.engines.decoding.heads.settings import Settings
from pipeline.records.failure import InputError

LAYOUTS = (FLAT, SPECULATORS)


def parsed(layout: str, layer: dict[str, object] | None = None, **top: object) -> Eagle3Config:
    return eagle3_config(Settings(eagle3_entries(layout, layer, **top), "config"), 32, VOCABULARY, "head")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_layouts_say_the_same(layout: str) -> None:
    config = parsed(layout)
    assert (config.hidden_size, config.heads, config.kv_heads, config.head_dim) == (32, 4, 2, 8)
    assert config.rope == {"rope_type": "default", "rope_theta": 10000.0}, "llama's base where none is given"
    assert config.states is None
    assert config.states_of(36, "head") == (2, 18, 33)
    assert config.states_of(32, "head") == (2, 16, 29)
    assert config.window is None
    flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "attention_bias", "qk_norm")
    assert not any(getattr(config, flag) for flag in flags)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("entries", "rope"),
    [
        ({"rope_theta": 5e5}, {"rope_type": "default", "rope_theta": 5e5}),
        ({"rope_theta": 5e5, "rope_scaling": None}, {"rope_type": "default", "rope_theta": 5e5}),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}},
            {"rope_type": "default", "rope_theta": 7.0},
        ),
        (
            {"rope_theta": 9.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
            {"rope_type": "linear", "rope_theta": 9.0, "factor": 2.0},
        ),
    ],
)
def test_the_rope_is_the_heads_own_wherever_it_is_written(
    layout: str, entries: dict[str, object], rope: dict[str, object]
) -> None:
    assert parsed(layout, entries).rope == rope


def test_a_scaled_rope_turns_as_transformers_turns_it() -> None:
    scaled = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    }
    plain = parsed(FLAT, {"head_dim": 64, "rope_theta": 5e5})
    config = parsed(FLAT, {"head_dim": 64, "rope_theta": 5e5, "rope_scaling": scaled})
    turns = [LlamaRotaryEmbedding(llama_config(each)).inv_freq for each in (plain, config)]
    assert torch.equal(turns[0][:4], turns[1][:4]), "fast ones are left"
    torch.testing.assert_close(turns[0][-8:] / 8, turns[1][-8:])
    yarn = {"type": "yarn", "factor": 4.0}
    short, long = (
        LlamaRotaryEmbedding(
            llama_config(parsed(FLAT, {"rope_scaling": yarn, "max_position_embeddings": length}))
        ).inv_freq
        for length in (64, 4096)
    )
    assert not torch.equal(short, long)


def test_nested_layer_ids_count_outputs_where_they_begin_with_1() -> None:
    def states(*ids: int) -> tuple[int, ...] | None:
        return parsed(FLAT, eagle_config={"eagle_aux_hidden_state_layer_ids": list(ids)}).states

    assert states(1, 46, 90) == (2, 47, 91)
    assert states(2, 47, 91) == (2, 47, 91)
    assert parsed(FLAT, eagle_aux_hidden_state_layer_ids=[1, 46, 90]).states == (1, 46, 90)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "harmless",
    [
        {"tie_word_embeddings": True},
        {"torch_dtype": "bfloat16", "pretraining_tp": 1, "use_cache": True},
        {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 36},
        {"something_new": False},
        {"something_new": None},
        {"layer_types": ["full_attention"] * 36},
    ],
)
def test_what_says_nothing_of_the_computation_is_passed_over(layout: str, harmless: dict[str, object]) -> None:
    assert parsed(layout, harmless) == parsed(layout)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"something_new": True}, "something_new=true is not known here, and could change what it computes"),
        ({"mask_token_id": 5}, "mask_token_id=5 is not known here"),
        ({"quantization_config": {"bits": 4}}, "quantization_config={'bits': 4} is not known here"),
        ({"model_type": "mistral"}, "model_type is mistral; allowed: llama, qwen3"),
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2; allowed: 1"),
        ({"hidden_act": "gelu"}, "hidden_act is gelu; allowed: silu"),
        ({"bias": True}, "bias is true; allowed: false"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"hidden_size": "32"}, "hidden_size is 32; allowed: a whole number"),
        ({"attention_bias": 1}, "attention_bias is 1; allowed: true or false"),
        ({"sliding_window": 8}, "sliding_window is 8; allowed: null, or layer_types"),
        ({"layer_types": ["sliding_attention"]}, "sliding_window is missing"),
        ({"layer_types": ["conv"]}, "layer_types is conv; allowed: full_attention, sliding_attention"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_scaling is dynamic; allowed: default, linear"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_scaling is longrope; allowed: default, linear"),
        (
            {"rope_scaling": {"type": "linear", "factor": 2, "mrope_section": [1]}},
            "rope_scaling mrope_section is [1]",
        ),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "_freq_factor is missing; allowed: a number"),
        ({"rope_scaling": {"type": "linear", "factor": "x"}}, "rope_scaling factor is x; allowed: a number"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; allowed: 1"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3 key and value heads"),
        ({"vocab_size": 128256}, f"vocab_size is 128256, its target's {VOCABULARY}"),
        ({"hidden_size": 64}, "reads hidden states of 64, its target's are 32: this head belongs to another"),
    ],
)
def test_what_would_change_the_computation_is_refused_by_name(
    layout: str, entries: dict[str, object], said: str
) -> None:
    with pytest.raises(InputError) as raised:
        parsed(layout, entries)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("top", "said"),
    [
        ({"norm_before_residual": None}, "norm_before_residual is missing; allowed: true or false"),
        ({"norm_output": "yes"}, "norm_output is yes; allowed: true or false"),
        ({"speculators_model_type": "peagle"}, "speculators_model_type is peagle; allowed: eagle3"),
        ({"speculators_config": {"algorithm": "dflash"}}, "speculators_config: algorithm is dflash"),
        ({"block_size": 8}, "block_size=8 is not known here"),
        ({"draft_vocab_size": 100}, f"draft_vocab_size is 100, more than the target's {VOCABULARY}"),
        ({"eagle_aux_hidden_state_layer_ids": []}, "eagle_aux_hidden_state_layer_ids is []; allowed: null or"),
        ({"eagle_aux_hidden_state_layer_ids": [1, -2]}, "allowed: null or a list of whole numbers"),
    ],
)
def test_so_is_what_the_speculators_layout_says_beside_the_layer(top: dict[str, object], said: str) -> None:
    with pytest.raises(InputError) as raised:
        parsed(SPECULATORS, **top)
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("nested", "said"),
    [
        ({"use_aux_hidden_state": False}, "use_aux_hidden_state is false; allowed: true"),
        ({"parallel_draft_step": 4}, "parallel_draft_step is 4; allowed: 1"),
        ({"use_last_layernorm": False}, "use_last_layernorm is false; allowed: true"),
        ({"use_mtp_layernorm": True}, "use_mtp_layernorm is true; allowed: false"),
        ({"another": 1}, "eagle_config: another=1 is not known here"),
    ],
)
def test_so_is_what_the_flat_layout_nests(nested: dict[str, object], said: str) -> None:
    with pytest.raises(InputError) as raised:
        parsed(FLAT, eagle_config=nested)
    assert said in str(raised.value)

"""Models of real sizes with random weights, made on the device: nothing is downloaded."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel, Qwen3Config, Qwen3MoeConfig

MIXTURE_LAYERS = 48
_LAYER_BYTES = 1.26e9
"""One layer of the mixture in bf16."""
_SPARE_BYTES = 12e9
"""What the mixture's tables, keys and values, and activations take besides its layers."""


@dataclass(frozen=True, kw_only=True)
class Scale:
    """What is measured: shapes, and how much of each.

    ``iterations`` timed of each arm in each of ``repeats``, after prompts of ``prompt`` tokens; ``texts`` of
    ``text_tokens`` compared at ``text_slots``; ``samples`` in the test of a distribution.
    """

    target: Qwen3Config
    exact: Qwen3Config
    draft: Qwen3Config
    mixture: Qwen3MoeConfig
    dtype: torch.dtype
    concurrency: tuple[int, ...]
    gammas: tuple[int, ...]
    prompt: int
    iterations: int
    repeats: int
    texts: int
    text_slots: int
    text_tokens: int
    samples: int
    copy_bytes: int


def scale(name: str) -> Scale:
    """``full``: Qwen3-8B with a 0.6B draft, and Qwen3-30B-A3B; ``tiny``: the same parts, for a test on a CPU."""
    rope = {"rope_type": "default", "rope_theta": 1e6}
    if name == "tiny":
        small = {
            "vocab_size": 256,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "max_position_embeddings": 512,
            "tie_word_embeddings": False,
            "rope_parameters": rope,
        }
        return Scale(
            target=Qwen3Config(num_hidden_layers=3, **small),
            exact=Qwen3Config(num_hidden_layers=2, **small),
            draft=Qwen3Config(num_hidden_layers=1, **small),
            mixture=Qwen3MoeConfig(
                num_hidden_layers=2, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, **small
            ),
            dtype=torch.float32,
            concurrency=(1, 2),
            gammas=(1, 4),
            prompt=12,
            iterations=4,
            repeats=1,
            texts=3,
            text_slots=2,
            text_tokens=8,
            samples=60,
            copy_bytes=1 << 20,
        )
    large = {
        "vocab_size": 151936,
        "head_dim": 128,
        "max_position_embeddings": 40960,
        "rms_norm_eps": 1e-6,
        "rope_parameters": rope,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    wide = {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
    }
    return Scale(
        target=Qwen3Config(num_hidden_layers=36, **wide, **large),
        exact=Qwen3Config(num_hidden_layers=4, **wide, **large),
        draft=Qwen3Config(
            num_hidden_layers=28,
            hidden_size=1024,
            intermediate_size=3072,
            num_attention_heads=16,
            num_key_value_heads=8,
            tie_word_embeddings=True,
            **large,
        ),
        mixture=Qwen3MoeConfig(
            num_hidden_layers=MIXTURE_LAYERS,
            hidden_size=2048,
            intermediate_size=6144,
            num_attention_heads=32,
            num_key_value_heads=4,
            num_experts=128,
            num_experts_per_tok=8,
            moe_intermediate_size=768,
            norm_topk_prob=True,
            tie_word_embeddings=False,
            **large,
        ),
        dtype=torch.bfloat16,
        concurrency=(1, 8, 32, 128),
        gammas=(1, 2, 4, 8),
        prompt=320,
        iterations=24,
        repeats=3,
        texts=8,
        text_slots=4,
        text_tokens=48,
        samples=3000,
        copy_bytes=4 << 30,
    )


def build(config: PretrainedConfig, dtype: torch.dtype, device: torch.device, seed: int = 0) -> PreTrainedModel:
    """A model of this shape, its weights drawn on ``device``."""
    torch.manual_seed(seed)
    with torch.device(device):
        model: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return model.to(device).eval().requires_grad_(False)


def fitting_layers(config: Qwen3MoeConfig, device: torch.device) -> int:
    """As many of the mixture's layers as the device's free memory holds."""
    layers = int(config.num_hidden_layers)
    if device.type != "cuda" or layers != MIXTURE_LAYERS:
        return layers
    free, _ = torch.cuda.mem_get_info(device)
    return max(2, min(layers, int((free - _SPARE_BYTES) / _LAYER_BYTES)))


def bytes_read(model: PreTrainedModel) -> float:
    """Bytes of weights that a plain step of one row reads: of a mixture's experts only those that a token visits.

    The table of embeddings is read a row at a time, unless it is the output layer too.
    """
    config = model.config.get_text_config()
    embeddings = model.get_input_embeddings().weight
    tied = model.get_output_embeddings().weight is embeddings
    experts = {id(p) for module in model.modules() if _is_experts(module) for p in module.parameters(recurse=False)}
    share = config.num_experts_per_tok / config.num_experts if experts else 1.0
    read: float = sum(
        parameter.numel() * parameter.element_size() * (share if id(parameter) in experts else 1.0)
        for parameter in model.parameters()
        if tied or parameter is not embeddings
    )
    return read


def bytes_of_a_token(model: PreTrainedModel) -> int:
    """What the keys and values of one token take."""
    config = model.config.get_text_config()
    return int(2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * model.dtype.itemsize)


def _is_experts(module: nn.Module) -> bool:
    return type(module).__name__.endswith("Experts")

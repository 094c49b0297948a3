"""A new head for a target: its size, what it begins with, and the folder that the engine and servers load."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from pipeline.engines.decoding.heads.eagle3 import Eagle3Weights
from pipeline.engines.decoding.heads.eagle3_config import Eagle3Config, eagle3_config
from pipeline.engines.decoding.heads.settings import Settings
from pipeline.tracking.atomic import replacing, write_atomically
from pipeline.training.teacher import Lesson, TargetParts

ENTRIES, TENSORS = "config.json", "model.safetensors"
_OUT_OF_THE_LAYER = ("self_attn.o_proj.weight", "mlp.down_proj.weight")
_READ_BOTH = ("q_proj.weight", "k_proj.weight", "v_proj.weight")
_GIVEN = {"hidden_norm.weight": "input_layernorm.weight"}
"""What norms the state here norms a layer's input there."""
_DEVIATION = 0.02


def known_tokens(lessons: Sequence[Lesson], vocabulary: int, most: int) -> Tensor:
    """The ``most`` tokens that are used most, int64 [≤ most], ascending.

    By expected counts, in which each place counts for all of its likely tokens, and half as much by what stands in the
    texts, prompts included: answers take up their words. Of tokens that are never used, those with the least ids, which
    a tokenizer learned first.
    """
    expected = torch.zeros(vocabulary, dtype=torch.float64)
    for lesson in lessons:
        shares = torch.softmax(lesson.choices.logits.double(), dim=-1)
        expected.index_add_(0, lesson.choices.ids.long().flatten(), shares.flatten())
        expected.index_add_(0, lesson.tokens.long(), torch.full((len(lesson.tokens),), 0.5, dtype=torch.float64))
    return torch.argsort(expected, descending=True, stable=True)[:most].sort().values


def entries_for(
    parts: TargetParts, states: Sequence[int], known: int, intermediate_size: int | None
) -> dict[str, object]:
    """config.json of a head in the flat layout, every entry said that readers would otherwise each guess."""
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_size": parts.hidden_size,
        "target_hidden_size": parts.hidden_size,
        "intermediate_size": intermediate_size or parts.intermediate_size,
        "num_attention_heads": parts.heads,
        "num_key_value_heads": parts.kv_heads,
        "head_dim": parts.head_dim,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": parts.trained_length,
        "vocab_size": parts.vocabulary,
        "draft_vocab_size": known,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": list(states),
    }


def config_of(entries: Mapping[str, object], parts: TargetParts) -> Eagle3Config:
    """As the engine reads ``entries``, so that what is trained is what will be loaded."""
    return eagle3_config(Settings(dict(entries), ENTRIES), parts.hidden_size, parts.vocabulary, "a new head")


def new_weights(config: Eagle3Config, parts: TargetParts, ids: Tensor, states: int, seed: int) -> Eagle3Weights:
    """In fp32. What the target knows already is taken over, for there is little to learn from: its output rows, its
    final norm, and its last layer, which then reads the state beside the embedding. The rest is small and random.

    Where the target's layer is not a llama's, the head's own adds nothing at first. The last of the fused states goes
    through.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        weights = Eagle3Weights(config, states, own_embeddings=False).float()
        with torch.no_grad():
            for name, weight in weights.named_parameters():
                if weight.dim() > 1:
                    nn.init.normal_(weight, std=_DEVIATION)
                if name.endswith(_OUT_OF_THE_LAYER):
                    weight.zero_()
            weights.fc.weight[:, -parts.hidden_size :] += torch.eye(parts.hidden_size)
            weights.lm_head.weight.copy_(parts.output[ids])
            if parts.norm is not None:
                weights.norm.weight.copy_(parts.norm)
            for name, weight in weights.layers[0].named_parameters():
                _take_over(weight, name, parts)
    return weights


def _take_over(weight: Tensor, name: str, parts: TargetParts) -> None:
    """Copy the target's ``name`` into ``weight``, or into the part of it that reads the state."""
    given = parts.last_layer.get(_GIVEN.get(name, name))
    if given is None or name == "input_layernorm.weight":
        return
    if weight.dim() == 1:
        weight.copy_(given)
        return
    into = weight[:, -parts.hidden_size :] if name.endswith(_READ_BOTH) else weight[: given.shape[0], : given.shape[1]]
    if into.shape == given.shape:
        into.copy_(given)


def write_head(
    folder: Path, entries: Mapping[str, object], weights: Mapping[str, Tensor], ids: Tensor, size: int
) -> None:
    """The head as ``heads.eagle3_loading`` reads it, each file whole; the configuration last."""
    tensors = {name.replace("layers.0.", "midlayer."): weight.contiguous() for name, weight in weights.items()}
    tensors["d2t"] = ids - torch.arange(len(ids))
    tensors["t2d"] = torch.zeros(size, dtype=torch.bool)
    tensors["t2d"][ids] = True
    with replacing(folder / TENSORS) as path:
        save_file(tensors, path, metadata={"format": "pt"})
    write_atomically(folder / ENTRIES, json.dumps(dict(entries), indent=2).encode())

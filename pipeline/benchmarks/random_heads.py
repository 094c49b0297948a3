"""Draft heads with random weights, on disk in the layouts that real ones are published in: to try the engine with."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

HIDDEN = 32
VOCABULARY = 61
SPECULATORS = "speculators"
FLAT = "flat"


def write_medusa(
    folder: Path,
    heads: int = 4,
    layers: int = 1,
    *,
    hidden: int = HIDDEN,
    vocabulary: int = VOCABULARY,
    prefix: str = "",
    shares: bool = False,
    seed: int = 11,
    scale: float = 0.3,
    **config: object,
) -> Path:
    """Heads as their authors publish them; ``config`` adds entries to config.json."""
    draw = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    for head in range(heads):
        for layer in range(layers):
            tensors[f"{prefix}{head}.{layer}.linear.weight"] = torch.randn(hidden, hidden, generator=draw) * scale
            tensors[f"{prefix}{head}.{layer}.linear.bias"] = torch.randn(hidden, generator=draw) * scale
        if not shares:
            tensors[f"{prefix}{head}.{layers}.weight"] = torch.randn(vocabulary, hidden, generator=draw) * scale
    entries: dict[str, object] = {
        "medusa_num_heads": heads,
        "medusa_num_layers": layers,
        "base_model_name_or_path": "org/base",
        "transformers_version": "4.34.1",
    }
    if shares:
        entries["original_lm_head"] = True
    return write(folder, entries | config, tensors, "medusa_lm_head.safetensors")


def eagle3_entries(layout: str, layer: Mapping[str, object] | None = None, **top: object) -> dict[str, object]:
    """config.json of a head; ``layer`` and ``top`` change what the layer's section and the rest say."""
    described: dict[str, object] = {
        "model_type": "llama",
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 2048,
        "initializer_range": 0.02,
        **(layer or {}),
    }
    if layout == FLAT:
        return {"architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": VOCABULARY, **described, **top}
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.1.0",
        "speculators_config": {"algorithm": "eagle3", "verifier": {"name_or_path": "org/base"}},
        "draft_vocab_size": VOCABULARY,
        "norm_before_residual": False,
        "target_hidden_size": None,
        "transformer_layer_config": described,
        **top,
    }


def eagle3_tensors(
    entries: Mapping[str, object],
    *,
    ids: Sequence[int] | None = None,
    embeddings: bool = True,
    states: int = 3,
    target_hidden: int = HIDDEN,
    seed: int = 12,
    scale: float = 0.3,
) -> dict[str, Tensor]:
    """Random tensors of the shapes that ``entries`` state, named ``layers.0.*``; ``ids``: the target's tokens known."""
    layer = entries.get("transformer_layer_config", entries)
    assert isinstance(layer, Mapping)
    draw = torch.Generator().manual_seed(seed)
    hidden, heads, kv = (int(layer[n]) for n in ("hidden_size", "num_attention_heads", "num_key_value_heads"))
    dim = int(layer.get("head_dim") or hidden // heads)
    between, vocabulary = int(layer["intermediate_size"]), int(layer["vocab_size"])
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, states * target_hidden),
        "norm.weight": (hidden,),
        "lm_head.weight": (len(ids) if ids is not None else vocabulary, hidden),
        "layers.0.input_layernorm.weight": (hidden,),
        "layers.0.hidden_norm.weight": (hidden,),
        "layers.0.post_attention_layernorm.weight": (hidden,),
        "layers.0.self_attn.q_proj.weight": (heads * dim, 2 * hidden),
        "layers.0.self_attn.k_proj.weight": (kv * dim, 2 * hidden),
        "layers.0.self_attn.v_proj.weight": (kv * dim, 2 * hidden),
        "layers.0.self_attn.o_proj.weight": (hidden, heads * dim),
        "layers.0.mlp.gate_proj.weight": (between, hidden),
        "layers.0.mlp.up_proj.weight": (between, hidden),
        "layers.0.mlp.down_proj.weight": (hidden, between),
    }
    if layer.get("attention_bias"):
        shapes |= {
            f"layers.0.self_attn.{n}_proj.bias": (shapes[f"layers.0.self_attn.{n}_proj.weight"][0],) for n in "qkvo"
        }
    if layer.get("mlp_bias"):
        shapes |= {f"layers.0.mlp.{n}_proj.bias": (between,) for n in ("gate", "up")}
        shapes["layers.0.mlp.down_proj.bias"] = (hidden,)
    if layer.get("model_type") == "qwen3":
        shapes |= {f"layers.0.self_attn.{n}_norm.weight": (dim,) for n in "qk"}
    if entries.get("norm_before_fc") or entries.get("eagle_config", {}).get("norm_before_fc"):  # type: ignore[attr-defined]
        shapes["input_norm.weight"] = (states * target_hidden,)
    if entries.get("fc_norm"):
        shapes |= {f"fc_norm.{i}.weight": (target_hidden,) for i in range(states)}
    if embeddings:
        shapes["embed_tokens.weight"] = (vocabulary, hidden)
    tensors = {
        name: torch.randn(shape, generator=draw) * scale + (1.0 if "norm" in name else 0.0)
        for name, shape in sorted(shapes.items())
    }
    if ids is not None:
        tensors["d2t"] = torch.tensor(ids) - torch.arange(len(ids))
        tensors["t2d"] = torch.zeros(vocabulary, dtype=torch.bool)
        tensors["t2d"][list(ids)] = True
    return tensors


def write_eagle3(folder: Path, entries: Mapping[str, object], tensors: Mapping[str, Tensor], layout: str) -> Path:
    """The flat layout calls the layer ``midlayer``."""
    named = {n.replace("layers.0.", "midlayer.") if layout == FLAT else n: tensor for n, tensor in tensors.items()}
    return write(folder, entries, named, "model.safetensors")


def write(folder: Path, entries: Mapping[str, object], tensors: Mapping[str, Tensor], name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(entries), encoding="utf-8")
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / name)
    return folder

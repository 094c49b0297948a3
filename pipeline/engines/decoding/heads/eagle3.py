"""An EAGLE-3 head (Li et al. 2025, arXiv 2503.01840): one decoder layer over token embeddings and hidden states."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import (
    LlamaMLP,
    LlamaRMSNorm,
    LlamaRotaryEmbedding,
    apply_rotary_pos_emb,
)

from pipeline.engines.decoding.attention import attend
from pipeline.engines.decoding.cache import SlotCache, rounded_columns
from pipeline.engines.decoding.heads.eagle3_config import Eagle3Config
from pipeline.engines.decoding.masks import FULL, MaskPlan
from pipeline.engines.decoding.packing import pack
from pipeline.engines.decoding.proposers.chain import DraftVocabulary
from pipeline.engines.decoding.slots import Ints
from pipeline.engines.decoding.transfer import to_device


class KeysAndValues(Protocol):
    """Takes in K, V ``[B, H_kv, W, D]`` of the tokens being run and gives all that they may see."""

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]: ...


class Attention(nn.Module):
    """Attention whose queries, keys and values are made of an embedding and a state side by side."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        width, bias = 2 * config.hidden_size, config.attention_bias
        self.q_proj = nn.Linear(width, config.heads * config.head_dim, bias=bias)
        self.k_proj = nn.Linear(width, config.kv_heads * config.head_dim, bias=bias)
        self.v_proj = nn.Linear(width, config.kv_heads * config.head_dim, bias=bias)
        self.o_proj = nn.Linear(config.heads * config.head_dim, config.hidden_size, bias=bias)
        if config.qk_norm:
            self.q_norm = LlamaRMSNorm(config.head_dim, config.norm_eps)
            self.k_norm = LlamaRMSNorm(config.head_dim, config.norm_eps)
        self._normed = config.qk_norm

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor, cache: KeysAndValues) -> Tensor:
        """[B, W, H] of ``x`` [B, W, 2H], for tokens whose place in ``cache`` was said before."""
        shape = (*x.shape[:2], -1, self.head_dim)
        query, key, value = (proj(x).view(shape) for proj in (self.q_proj, self.k_proj, self.v_proj))
        if self._normed:
            query, key = self.q_norm(query), self.k_norm(key)
        query, key = apply_rotary_pos_emb(query.transpose(1, 2), key.transpose(1, 2), *rope)
        keys, values = cache.update(key, value.transpose(1, 2), 0)
        out, _ = attend(self, query, keys, values, mask, scaling=self.head_dim**-0.5)
        result: Tensor = self.o_proj(out.flatten(2))
        return result


class Layer(nn.Module):
    """The head's decoder layer: llama's, but for what it attends with."""

    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.input_layernorm = LlamaRMSNorm(config.hidden_size, config.norm_eps)
        self.hidden_norm = LlamaRMSNorm(config.hidden_size, config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = LlamaRMSNorm(config.hidden_size, config.norm_eps)
        self.mlp = LlamaMLP(llama_config(config))
        self._residual_is_normed = config.norm_before_residual

    def forward(
        self, embedded: Tensor, state: Tensor, rope: tuple[Tensor, Tensor], mask: Tensor, cache: KeysAndValues
    ) -> Tensor:
        normed = self.hidden_norm(state)
        residual = normed if self._residual_is_normed else state
        x = torch.cat((self.input_layernorm(embedded), normed), dim=-1)
        x = residual + self.self_attn(x, rope, mask, cache)
        out: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return out


class Eagle3Weights(nn.Module):
    """The tensors of a checkpoint, by its names (``midlayer.`` read as ``layers.0.``)."""

    def __init__(self, config: Eagle3Config, states: int, own_embeddings: bool) -> None:
        super().__init__()
        fused = states * config.target_hidden_size
        if own_embeddings:
            self.embed_tokens = nn.Embedding(config.vocabulary, config.hidden_size)
        if config.norm_before_fc:
            self.input_norm = LlamaRMSNorm(fused, config.norm_eps)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(
                LlamaRMSNorm(config.target_hidden_size, config.norm_eps) for _ in range(states)
            )
        self.fc = nn.Linear(fused, config.hidden_size, bias=False)
        self.layers = nn.ModuleList([Layer(config)])
        self.norm = LlamaRMSNorm(config.hidden_size, config.norm_eps)
        self.lm_head = nn.Linear(config.hidden_size, config.draft_vocabulary, bias=False)
        self._norm_output = config.norm_output

    def fuse(self, states: Tensor) -> Tensor:
        """[.., H] of the target's hidden states side by side, [.., states · target_hidden_size]."""
        if hasattr(self, "input_norm"):
            states = self.input_norm(states)
        if hasattr(self, "fc_norm"):
            parts = states.chunk(len(self.fc_norm), dim=-1)
            states = torch.cat([norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)], dim=-1)
        fused: Tensor = self.fc(states)
        return fused

    def predict(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Of the layer's output [B, H]: logits [B, V'] of the token two places on, and the state of the next entry."""
        normed = self.norm(out)
        return self.lm_head(normed), normed if self._norm_output else out


class Eagle3Head:
    """A head with the keys and values of its slots.

    Its entry i, in column i, is made of the embedding of token i + 1 and the state of token i, and predicts token
    i + 2. The state of token i is the target's, fused, or where that is not known the head's own output at i − 1.
    """

    def __init__(
        self,
        config: Eagle3Config,
        weights: Eagle3Weights,
        embeddings: nn.Embedding,
        states: tuple[int, ...],
        vocabulary: DraftVocabulary | None,
        revision: str,
    ) -> None:
        self.states = states
        self.vocabulary = vocabulary
        self.revision = revision
        self.state_size = len(states) * config.target_hidden_size
        self._config = config
        self._weights = weights
        self._embeddings = embeddings.weight
        self.device = self._embeddings.device
        self.dtype = weights.fc.weight.dtype
        self.weight_bytes = sum(weight.numel() * weight.element_size() for weight in weights.state_dict().values())
        pack(weights)
        self._rotary = LlamaRotaryEmbedding(llama_config(config)).to(self.device)
        self._plan = MaskPlan({FULL: config.window})
        self.cache = SlotCache(0, 0, self.device)

    def reserve(self, slots: int, columns: int) -> None:
        """As ``CachedModel.reserve``."""
        if self.cache.slots != slots or self.cache.columns < columns:
            self.cache = SlotCache(0, 0, self.device)  # the old one is freed before the new one is allocated
            self.cache = SlotCache(slots, rounded_columns(columns), self.device)

    def fuse(self, states: Tensor) -> Tensor:
        """[.., H] of the target's hidden states side by side, [.., ``state_size``]."""
        return self._weights.fuse(states)

    def run(self, tokens: Tensor, state: Tensor, first: Ints, row: int = 0) -> Tensor:
        """The layer's output [B, W, H] at entries ``first`` [B] onwards of slots ``row`` … ``row`` + B − 1.

        ``tokens`` [B, W] are those that follow the ``state`` [B, W, H] beside them.
        """
        width, config = tokens.shape[1], self._config
        positions = to_device(first[:, None] + np.arange(width), self.device)
        live = min(rounded_columns(int(first.max()) + width), self.cache.columns)
        self.cache.place(row, first, positions, live)
        mask = self._plan.build(positions, live, config.heads // config.kv_heads, self.dtype)
        assert isinstance(mask, Tensor)
        embedded = nn.functional.embedding(tokens, self._embeddings)
        out: Tensor = self._weights.layers[0](embedded, state, self._rotary(state, positions), mask, self.cache)
        return out

    def predict(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """Of the layer's output [B, H]: logits [B, V'] of the token two places on, and the state of the next entry."""
        return self._weights.predict(out)


def llama_config(config: Eagle3Config) -> LlamaConfig:
    """What transformers' parts of a llama need to know."""
    return LlamaConfig(
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_attention_heads=config.heads,
        num_key_value_heads=config.kv_heads,
        head_dim=config.head_dim,
        mlp_bias=config.mlp_bias,
        hidden_act="silu",
        rope_parameters=dict(config.rope),
        max_position_embeddings=config.trained_length,
    )

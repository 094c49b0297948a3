"""The head while it learns: the engine's own layer over whole texts at once, for several draft steps.

A draft step of the engine reads what the step before put out instead of the target's state, which is not known yet; a
head that never met this in training drafts one token well. So the layer is run as often as tokens are to be drafted
(EAGLE-3's training-time test, arXiv 2503.01840, section 3): at step s entry i reads the output at i − 1 of step s − 1,
and sees the true entries up to i − s and the chain of outputs that leads to it, as it will when it drafts.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from pipeline.engines.decoding.heads.eagle3 import Eagle3Weights, llama_config
from pipeline.engines.decoding.heads.eagle3_config import Eagle3Config


class Student:
    """``weights`` over ``embeddings`` [V, H] of the target, which are not trained.

    ``low_precision``: products in bfloat16, where this machine is faster at it; the weights stay fp32.
    """

    def __init__(
        self, config: Eagle3Config, weights: Eagle3Weights, embeddings: Tensor, low_precision: bool = False
    ) -> None:
        self.weights = weights
        self.low_precision = low_precision
        self._embeddings = embeddings
        self._norm_output = config.norm_output
        self._rotary = LlamaRotaryEmbedding(llama_config(config)).to(embeddings.device)
        self._masks: dict[tuple[int, int], Tensor] = {}

    def unroll(self, tokens: Tensor, states: Tensor, steps: int) -> list[Tensor]:
        """The layer's outputs [B, T, H] at each of ``steps`` draft steps.

        ``states`` [B, T, states · H] are the target's, ``tokens`` [B, T] those that follow them. Entry i of step s
        means nothing for i < s. Rows are padded at their end.
        """
        weights = self.weights
        length = tokens.shape[1]
        embedded = nn.functional.embedding(tokens, self._embeddings).to(weights.fc.weight.dtype)
        state = weights.fuse(states.to(weights.fc.weight.dtype))
        rope = self._rotary(state, torch.arange(length, device=tokens.device)[None])
        chain, outputs = _Chain(), []
        for step in range(steps):
            out: Tensor = weights.layers[0](embedded, state, rope, self._mask(length, step), chain)
            outputs.append(out)
            carried = weights.norm(out) if self._norm_output else out
            state = nn.functional.pad(carried, (0, 0, 1, 0))[:, :length]
        return outputs

    def _mask(self, length: int, step: int) -> Tensor:
        """What step ``step`` may see, bool [1, 1, T, (step + 1) · T]."""
        if (length, step) not in self._masks:
            row = torch.arange(length)[:, None]
            column = torch.arange(length)[None]
            blocks = [column <= row - step] + [column == row - step + drafted for drafted in range(1, step + 1)]
            # An entry without a past yet sees itself: a row of nothing would be NaN, and its gradient too.
            blocks[-1] = blocks[-1] | (column == row) & (row < step)
            self._masks[length, step] = torch.cat(blocks, dim=1)[None, None].to(self._embeddings.device)
        return self._masks[length, step]


class _Chain:
    """The keys and values of all steps so far, side by side."""

    def __init__(self) -> None:
        self._keys: list[Tensor] = []
        self._values: list[Tensor] = []

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int) -> tuple[Tensor, Tensor]:
        self._keys.append(key_states)
        self._values.append(value_states)
        return torch.cat(self._keys, dim=2), torch.cat(self._values, dim=2)

"""Hidden states of the target, for proposers that draft from them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

FINAL = -1
"""The final hidden state, after the last norm: what the output head reads."""


class HiddenTap:
    """Keeps, of every forward until ``close``, the outputs of the decoder layers ``layers`` (or ``FINAL``)."""

    def __init__(self, model: PreTrainedModel, layers: Sequence[int]) -> None:
        decoder = _decoder_layers(model) if any(layer != FINAL for layer in layers) else nn.ModuleList()
        self._kept: list[list[Tensor]] = [[] for _ in layers]
        self._handles: list[RemovableHandle] = [
            (model.base_model if layer == FINAL else decoder[layer]).register_forward_hook(_keep_in(kept))
            for layer, kept in zip(layers, self._kept, strict=True)
        ]

    def take(self) -> Tensor | None:
        """Hidden states ``[B, W, H · len(layers)]`` of the tokens run since the last ``take``, in order."""
        if not self._kept:
            return None
        hidden = torch.cat([torch.cat(kept, dim=1) for kept in self._kept], dim=-1)
        for kept in self._kept:
            kept.clear()
        return hidden

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()


def _keep_in(kept: list[Tensor]) -> Callable[[nn.Module, object, Tensor | tuple[Tensor, ...] | ModelOutput], None]:
    def hook(module: nn.Module, inputs: object, output: Tensor | tuple[Tensor, ...] | ModelOutput) -> None:
        kept.append(output if isinstance(output, Tensor) else output[0])

    return hook


def _decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The list of as many modules as the configuration has hidden layers."""
    count = model.config.get_text_config().num_hidden_layers
    return next(m for m in model.base_model.modules() if isinstance(m, nn.ModuleList) and len(m) == count)

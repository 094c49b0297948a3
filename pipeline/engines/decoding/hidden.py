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
    """Keeps hidden states of every forward until ``close``.

    ``states`` are indices of transformers' ``hidden_states``: 0 is the embedding, i the output of the first i decoder
    layers; or ``FINAL``. At the number of layers it is the last layer's output *before* the final norm, where
    transformers gives ``FINAL``: heads are trained on the former.
    """

    def __init__(self, model: PreTrainedModel, states: Sequence[int]) -> None:
        decoder = _decoder_layers(model) if any(state != FINAL for state in states) else nn.ModuleList()
        self.states = tuple(states)
        self._kept: list[list[Tensor]] = [[] for _ in states]
        self._handles: list[RemovableHandle] = [
            _listen(model, decoder, state, kept) for state, kept in zip(states, self._kept, strict=True)
        ]

    @property
    def idle(self) -> bool:
        """Whether no states are kept."""
        return not self._kept

    def take(self) -> Tensor | None:
        """Hidden states ``[B, W, H · len(states)]`` of the tokens run since the last ``take``, in order."""
        if not self._kept:
            return None
        hidden = torch.cat([torch.cat(kept, dim=1) for kept in self._kept], dim=-1)
        for kept in self._kept:
            kept.clear()
        return hidden

    def withdraw(self) -> tuple[Tensor, ...]:
        """Take back what the forward just run left, a tensor [B, W, H] for each of ``states``."""
        return tuple(kept.pop() for kept in self._kept)

    def leave(self, states: Sequence[Tensor]) -> None:
        """Keep ``states`` as if a forward had left them: one that is replayed runs no hook."""
        for kept, state in zip(self._kept, states, strict=True):
            kept.append(state)

    def forget(self) -> None:
        """Drop what was kept since the last ``take``: a forward broke off."""
        for kept in self._kept:
            kept.clear()

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()


def _listen(model: PreTrainedModel, decoder: nn.ModuleList, state: int, kept: list[Tensor]) -> RemovableHandle:
    if state == 0:  # what enters the first layer: some models scale their embeddings on the way
        return decoder[0].register_forward_pre_hook(_keep_input_in(kept), with_kwargs=True)
    listened: nn.Module = model.base_model if state == FINAL else decoder[state - 1]
    return listened.register_forward_hook(_keep_in(kept))


def _keep_in(kept: list[Tensor]) -> Callable[[nn.Module, object, Tensor | tuple[Tensor, ...] | ModelOutput], None]:
    def hook(module: nn.Module, inputs: object, output: Tensor | tuple[Tensor, ...] | ModelOutput) -> None:
        kept.append(output if isinstance(output, Tensor) else output[0])

    return hook


def _keep_input_in(kept: list[Tensor]) -> Callable[[nn.Module, tuple[Tensor, ...], dict[str, Tensor]], None]:
    def hook(module: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        kept.append(args[0] if args else kwargs["hidden_states"])

    return hook


def _decoder_layers(model: PreTrainedModel) -> nn.ModuleList:
    """The list of as many modules as the configuration has hidden layers."""
    count = model.config.get_text_config().num_hidden_layers
    return next(m for m in model.base_model.modules() if isinstance(m, nn.ModuleList) and len(m) == count)

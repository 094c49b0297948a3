"""What a target thought of a text while it read or wrote it: hidden states and its likeliest next tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

import torch
from torch import Tensor
from torch.utils.hooks import RemovableHandle
from transformers import PreTrainedModel
from transformers.utils import ModelOutput

from pipeline.engines.decoding.proposers.contract import Proposal
from pipeline.engines.decoding.slots import Ints, Slots

CHOICES = 16
"""Of each distribution the likeliest tokens are kept: nearly all of its mass where a draft has any chance."""


@dataclass(frozen=True)
class Choices:
    """The likeliest ``CHOICES`` tokens after each of M places, best first: ``ids`` int32 [M, k], ``logits`` [M, k]."""

    ids: Tensor
    logits: Tensor


class ChoiceTap:
    """Keeps the likeliest next tokens of every forward of a model, within a ``with``.

    Hooked on the model itself, so that whatever a family does to its logits is in them.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._kept: list[Choices] = []
        self._handle: RemovableHandle | None = None

    def __enter__(self) -> Self:
        self._handle = self._model.register_forward_hook(self._keep)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._handle is not None:
            self._handle.remove()

    def take(self) -> list[Choices]:
        """One for each forward since the last ``take``: of the last place of each row, in the batch's order."""
        kept, self._kept = self._kept, []
        return kept

    def _keep(self, module: torch.nn.Module, inputs: object, output: ModelOutput) -> None:
        self._kept.append(likeliest(output.logits[:, -1]))


def likeliest(logits: Tensor) -> Choices:
    """Of logits [M, V]."""
    best = torch.topk(logits, min(CHOICES, logits.shape[-1]), dim=-1)
    return Choices(best.indices.to(torch.int32), best.values.float())


@dataclass
class _Row:
    """What was seen of one request: states of consecutive tokens, and choices after the last of the prompt onwards."""

    states: list[Tensor] = field(default_factory=list)
    ids: list[Tensor] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)

    def add(self, choices: Choices, row: int) -> None:
        self.ids.append(choices.ids[row])
        self.logits.append(choices.logits[row])


class Recorder:
    """A ``Proposer`` that proposes nothing: it keeps what the loop would show a head, for plain decoding.

    ``seen`` holds it by the request's prompt, so prompts of one run must differ. A request whose first token ends it is
    not seen. Without ``choices`` nothing is kept. ``look`` is called with the number of rows after each step, and what
    it raises ends the run.
    """

    kv_bytes = 0

    def __init__(self, states: tuple[int, ...], choices: ChoiceTap | None, look: Callable[[int], None]) -> None:
        self.needs_hidden = states
        self.seen: dict[tuple[int, ...], _Row] = {}
        self._choices = choices
        self._look = look
        self._rows: dict[int, _Row] = {}

    def prefill(self, row: int, tokens: Ints, hidden: Tensor | None) -> None:
        """A long prompt is read in several forwards, of which the last counts; so does the last admission."""
        if self._choices is None:
            return
        assert hidden is not None
        seen = _Row([hidden[0].to(torch.bfloat16)])
        seen.add(self._choices.take()[-1], 0)
        self._rows[row] = self.seen[tuple(int(token) for token in tokens)] = seen

    def propose(self, slots: Slots, dlen: Ints) -> Proposal:
        """Never asked by a schedule that does not speculate."""
        raise RuntimeError("a recorder proposes nothing: run it with speculation off")

    def after_verify(self, hidden: Tensor | None, accepted: Ints) -> None:
        self._look(len(accepted))
        if self._choices is None:
            return
        assert hidden is not None
        choices = self._choices.take()[-1]  # one before it may be of a prompt whose first token ended the text
        states = hidden.to(torch.bfloat16)
        for row in range(len(states)):
            seen = self._rows[row]
            seen.states.append(states[row])
            seen.add(choices, row)

    def move(self, source: int, target: int, length: int) -> None:
        if self._choices is not None:
            self._rows[target] = self._rows[source]

    def collected(self, prompt: Sequence[int]) -> tuple[Tensor, Choices] | None:
        """States [T − 1, H · states] of a text of T tokens and choices [T − P] after its prompt's last token on."""
        seen = self.seen.get(tuple(prompt))
        if seen is None:
            return None
        return torch.cat(seen.states), Choices(torch.stack(seen.ids), torch.stack(seen.logits))

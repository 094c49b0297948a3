"""How likely each token of a text would stand if a draft proposed there, from one teacher-forced pass over it.

Committed text has the target's distribution whatever drafts, and a draft that sees all before a place proposes there
from the same distribution wherever its block began: so one pass over plain decoding's text says what any γ accepts.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from pipeline.engines.contract import Passage
from pipeline.engines.decoding.forward import CachedModel
from pipeline.engines.decoding.penalties import penalized, written
from pipeline.engines.decoding.prefilled import PrefillMemory
from pipeline.engines.decoding.proposers.draft_model import fitted
from pipeline.engines.decoding.slots import Ints
from pipeline.engines.decoding.transfer import to_device
from pipeline.engines.decoding.transform import probabilities
from pipeline.records.cell import Sampling

SCORED_AT_ONCE = 128
"""Output places whose logits are held at once: bounds what a large vocabulary takes."""


@dataclass(frozen=True)
class Reader:
    """``model``, or its first ``layers``, reading one text after another in slot 0, whose columns hold them.

    ``memory``: prompts that it may have read already.
    """

    model: CachedModel
    layers: int | None = None
    memory: PrefillMemory | None = None

    def read(self, prompt: tuple[int, ...]) -> None:
        """Have K/V of all of ``prompt`` but its last token, which the first ``logits`` reads."""
        known = None if self.memory is None else self.memory.recall(prompt)
        if known is not None and self.model.cache.written:
            self.model.cache.restore(0, known.rows)
        elif len(prompt) > 1:
            with self._layers():
                self.model.prefill(0, np.array(prompt[:-1], dtype=np.int64))

    def logits(self, tokens: Ints, first: int) -> Tensor:
        """[W, V] after each of ``tokens`` [W], which stand at ``first`` onwards behind what was read."""
        ids = to_device(tokens[None], self.model.device)
        with self._layers():
            return self.model.forward_once(ids, np.array([first]))[0]

    def _layers(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext() if self.layers is None else self.model.first_layers(self.layers)


def score(
    passage: Passage, sampling: Sampling, draft: Reader, target: Reader | None, vocabulary: int
) -> tuple[float, ...]:
    """min(1, q(x)/p(x)) of each output token x of ``passage``; see ``contract.Engine.score``.

    ``target`` None where proposals are not drawn: whether x is the draft's likeliest token. ``draft`` may be the first
    layers of the same model in the same slot: it reads each stretch before the whole target does, which overwrites its
    K/V with the same. ``vocabulary``: the target's, which the draft's logits are fitted to.
    """
    prompt, output = passage.request.tokens, passage.output
    if not output:
        return ()
    if target is not None:
        target.read(prompt)
    if target is None or target.model is not draft.model:
        draft.read(prompt)
    text = np.array((*prompt, *output), dtype=np.int64)
    weights: list[float] = []
    for start in range(len(prompt), len(text), SCORED_AT_ONCE):
        tokens = text[start - 1 : start - 1 + SCORED_AT_ONCE][: len(text) - start]
        wanted = to_device(text[start : start + len(tokens)], draft.model.device)
        logits = fitted(draft.logits(tokens, start - 1), vocabulary)
        logits = _penalized(logits, text, len(prompt), start, sampling)
        if target is None:
            weights += (logits.argmax(dim=-1) == wanted).double().tolist()
            continue
        q = _probability(logits, wanted, sampling)
        logits = _penalized(target.logits(tokens, start - 1), text, len(prompt), start, sampling)
        p = _probability(logits, wanted, sampling)
        # By rounding, p of a token at a filter's threshold may come out as 0 here: it was drawn, so that it is not.
        weights += torch.where((q > 0.0) & (q < p), q / p, (q > 0.0).double()).tolist()
    return tuple(weights)


def _penalized(logits: Tensor, text: Ints, prompt: int, start: int, sampling: Sampling) -> Tensor:
    """``logits`` [W, V] of the places ``start`` onwards, each penalized for all of ``text`` [N] before it.

    As in a verification whose proposals are the text itself.
    """
    if not sampling.penalizes:
        return logits
    before = written(text[None], np.array([prompt]), np.array([start]), sampling, logits.shape[-1], logits.device)
    follows = to_device(text[None, start : start + len(logits) - 1], logits.device)
    return penalized(logits[None], before, follows, sampling)[0]


def _probability(logits: Tensor, tokens: Tensor, sampling: Sampling) -> Tensor:
    """Float64 [W]: how likely each of ``tokens`` [W] is drawn from ``logits`` [W, V]."""
    return probabilities(logits, sampling).gather(-1, tokens[:, None]).squeeze(-1).double()

"""The target as a teacher: it writes texts in large batches, and what it thought meanwhile is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from pipeline.engines.contract import OFF, Request, Tokenizer
from pipeline.engines.decoding.forward import CachedModel
from pipeline.engines.decoding.hidden import HiddenTap
from pipeline.engines.decoding.loading import eos_tokens, load_target
from pipeline.engines.decoding.loop import DecodingLoop
from pipeline.engines.decoding.prefilled import PrefillMemory
from pipeline.engines.decoding.slots import Slots
from pipeline.engines.decoding.supported import max_context
from pipeline.records.cell import Sampling
from pipeline.records.target import DType, Target
from pipeline.records.trace import RequestTrace
from pipeline.training.recorder import Choices, ChoiceTap, Recorder, likeliest

_PROJECTIONS = frozenset(
    f"{part}_proj.weight"
    for part in ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "mlp.gate", "mlp.up", "mlp.down")
)
_NORMS = ("input_layernorm", "post_attention_layernorm")


@dataclass(frozen=True)
class TargetParts:
    """What a head takes over from its target: sizes and weights.

    ``embeddings`` and ``output`` [V, H]; ``norm`` [H], the scale of the final state, None where it is no RMS norm;
    ``last_layer``: what of it has the parts of a llama's, by their names there, norms as scales.
    """

    hidden_size: int
    vocabulary: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    trained_length: int
    embeddings: Tensor
    output: Tensor
    norm: Tensor | None
    last_layer: Mapping[str, Tensor]

    @classmethod
    def of(cls, model: PreTrainedModel) -> TargetParts:
        config = model.config.get_text_config()
        hidden, heads = int(config.hidden_size), int(config.num_attention_heads)
        layers = getattr(model.base_model, "layers", None)
        return cls(
            hidden_size=hidden,
            vocabulary=int(config.vocab_size),
            layers=int(config.num_hidden_layers),
            heads=heads,
            kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
            head_dim=int(getattr(config, "head_dim", None) or hidden // heads),
            intermediate_size=int(getattr(config, "intermediate_size", None) or 4 * hidden),
            trained_length=int(getattr(config, "max_position_embeddings", 2048)),
            embeddings=model.get_input_embeddings().weight.detach(),
            output=model.get_output_embeddings().weight.detach(),
            norm=_scale(getattr(model.base_model, "norm", None), hidden),
            last_layer={} if layers is None else _llama_parts(layers[-1], hidden),
        )

    @property
    def default_states(self) -> tuple[int, ...]:
        """An early state, by which equal tokens are found again, a middle one, and one that knows what comes next."""
        return (min(2, self.layers - 1), self.layers // 2, max(self.layers - 2, 1))


def _scale(norm: nn.Module | None, hidden: int) -> Tensor | None:
    """What an RMS norm multiplies by, found by its effect: some families keep it less one. None for other norms."""
    if norm is None or getattr(norm, "bias", None) is not None or not hasattr(norm, "weight"):
        return None
    weight = norm.weight
    assert isinstance(weight, Tensor)
    with torch.no_grad():
        scale: Tensor = norm(torch.ones(hidden, dtype=weight.dtype, device=weight.device))
    return scale.float()


def _llama_parts(layer: nn.Module, hidden: int) -> dict[str, Tensor]:
    found = {name: weight.detach() for name, weight in layer.named_parameters() if name in _PROJECTIONS}
    for name in _NORMS:
        scale = _scale(getattr(layer, name, None), hidden)
        if scale is not None:
            found[f"{name}.weight"] = scale
    return found


@dataclass(frozen=True)
class Lesson:
    """A text of T tokens and what the target thought of it.

    ``tokens`` int32 [T]; of the first T − 1 tokens ``states`` bf16 [T − 1, H · states]; after token ``start`` and each
    that follows it but the last, ``choices`` [T − 1 − start]. What stands before ``start`` is only read.
    """

    tokens: Tensor
    start: int
    states: Tensor
    choices: Choices


class Teacher:
    """``target`` in ``dtype``, on the CPU or a GPU. Raises InputError for what cannot be decoded here."""

    def __init__(self, target: Target, dtype: DType, device: str) -> None:
        self.loaded = load_target(replace(target, dtype=dtype), device)
        self.parts = TargetParts.of(self.loaded.model)  # the next line gives up weights that it packs
        self._device = torch.device(device)
        self._model = CachedModel(self.loaded.model, self._device)
        self._eos = eos_tokens(self.loaded)

    @property
    def tokenizer(self) -> Tokenizer:
        return cast(Tokenizer, self.loaded.tokenizer)

    @property
    def max_context(self) -> int:
        return max_context(self._model.config)

    def write(
        self, requests: Sequence[Request], sampling: Sampling, slots: int, look: Callable[[int], None]
    ) -> list[RequestTrace]:
        """The texts alone. ``look`` is told of each step how many rows it had, and may raise to end it."""
        recorder = Recorder((), None, look)
        return self._run(requests, sampling, slots, recorder, PrefillMemory())

    def teach(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        states: tuple[int, ...],
        slots: int,
        look: Callable[[int], None],
    ) -> list[Lesson]:
        """A lesson of each request whose text is more than one token; their prompts must differ."""
        with ChoiceTap(self.loaded.model) as choices:
            recorder = Recorder(states, choices, look)
            rows = self._run(requests, sampling, slots, recorder, None)
        lessons = []
        for request, row in zip(requests, rows, strict=True):
            seen = recorder.collected(request.tokens)
            if seen is None or len(row.output) < 2:
                continue
            tokens = torch.tensor([*request.tokens, *row.output], dtype=torch.int32)
            lessons.append(_lesson(tokens, len(request.tokens) - 1, *seen))
        return lessons

    def read(self, tokens: Sequence[int], states: tuple[int, ...]) -> Lesson:
        """A lesson of a text that somebody else wrote, by reading it at once: everything in it is learned from."""
        ids = torch.tensor([list(tokens)], dtype=torch.int64)
        self._model.reserve(1, len(tokens))
        tap = HiddenTap(self.loaded.model, states)
        try:
            with torch.inference_mode():
                logits = self._model.forward(ids.to(self._device), np.zeros(1, dtype=np.int64))
                hidden = tap.take()
        finally:
            tap.close()
        assert hidden is not None
        best = likeliest(logits[0, :-1])
        return _lesson(ids[0].to(torch.int32), 0, hidden[0, :-1].to("cpu", torch.bfloat16), best)

    def _run(
        self,
        requests: Sequence[Request],
        sampling: Sampling,
        slots: int,
        recorder: Recorder,
        memory: PrefillMemory | None,
    ) -> list[RequestTrace]:
        columns = max(len(request.tokens) + request.max_new_tokens for request in requests) + 1
        self._model.reserve(slots, columns)
        state = Slots(slots, columns, self._model.vocabulary, self._eos)
        loop = DecodingLoop(self._model, state, recorder, sampling, OFF, requests, memory)
        return list(loop.run().requests)


def _lesson(tokens: Tensor, start: int, states: Tensor, choices: Choices) -> Lesson:
    """Raises RuntimeError unless as much was seen as the text is long: a recorder that slipped would teach lies."""
    length = len(tokens)
    if len(states) != length - 1 or len(choices.ids) != length - 1 - start:
        raise RuntimeError(f"{len(states)} states and {len(choices.ids)} choices were seen of {length} tokens")
    return Lesson(tokens, start, states, choices)

"""The peer that everybody has: transformers' own ``generate`` and forward, on the model as transformers loads it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from pipeline.engines.decoding.packing import PackedLinear

Tokens = tuple[int, ...]

NAME = "transformers"


class TransformersPeer:
    """``model``: on a CPU, with its weights as they were loaded. Raises ValueError for one that our engine packed."""

    def __init__(self, model: PreTrainedModel) -> None:
        if any(isinstance(module, PackedLinear) for module in model.modules()):
            raise ValueError("the peer's model has packed weights: load it anew")
        self._model = model
        model.generation_config.eos_token_id = None  # a text goes on to its length
        self.layers = int(model.config.get_text_config().num_hidden_layers)

    def generate(self, prompts: Sequence[Tokens], tokens: int, lookup: int = 0, max_n: int = 3) -> tuple[Tokens, ...]:
        """Greedy continuations of ``tokens`` tokens, EOS ignored: a static batch, padded on the left.

        ``lookup`` > 0: prompt lookup of so many tokens after a match of at most ``max_n``, for one prompt.
        """
        width = max(map(len, prompts))
        ids = torch.zeros(len(prompts), width, dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        speculation = {"prompt_lookup_num_tokens": lookup, "max_matching_ngram_size": max_n} if lookup else {}
        with torch.inference_mode():
            out = self._model.generate(
                ids,
                attention_mask=mask,
                do_sample=False,
                max_new_tokens=tokens,
                pad_token_id=0,
                **speculation,
            )
        return tuple(tuple(row) for row in out[:, width:].tolist())

    def forward(self, context: Tokens, tokens: Tokens) -> Callable[[], Tensor]:
        """A forward of ``tokens`` after ``context`` that can be done again and again: logits [1, W, V]."""
        cache = DynamicCache(config=self._model.config)
        ids = torch.tensor([tokens])
        with torch.inference_mode():
            self._model(torch.tensor([context]), past_key_values=cache, use_cache=True, logits_to_keep=1)

        def once() -> Tensor:
            with torch.inference_mode():
                logits: Tensor = self._model(ids, past_key_values=cache, use_cache=True).logits
                cache.crop(-len(tokens))  # a view a layer: microseconds
            return logits

        return once

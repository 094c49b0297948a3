"""A model with a slot cache: one call runs some tokens of each row at the positions where they stand."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from pipeline.engines.decoding import attention
from pipeline.engines.decoding.buckets import column_bucket, row_bucket
from pipeline.engines.decoding.cache import SlotCache, rounded_columns
from pipeline.engines.decoding.experts import make_recordable
from pipeline.engines.decoding.hidden import HiddenTap
from pipeline.engines.decoding.masks import MaskPlan
from pipeline.engines.decoding.norms import fuse_norms
from pipeline.engines.decoding.packing import pack
from pipeline.engines.decoding.ragged import Ragged
from pipeline.engines.decoding.recordings import Recordings
from pipeline.engines.decoding.slots import Ints
from pipeline.engines.decoding.supported import max_context
from pipeline.engines.decoding.transfer import on_host, to_device

PREFILL_CHUNK = 1024
"""Tokens of a prompt run at once: bounds the mask and the activations of a long prompt."""


class CachedModel:
    """A transformers causal language model and the keys and values of its slots.

    With ``recordings``, forwards from slot 0 on are recorded and replayed; prompts never are. ``tap``: whoever keeps
    hidden states of these forwards, so that replayed ones give them too.
    """

    def __init__(self, model: PreTrainedModel, device: torch.device, recordings: Recordings | None = None) -> None:
        self.model = model
        self.device = device
        self.config = model.config.get_text_config()
        self.vocabulary = int(self.config.vocab_size)
        self.cache = SlotCache(0, 0, device)
        # transformers' sdpa leaves soft caps out
        capped = getattr(self.config, "attn_logit_softcapping", None) is not None
        self._own_attention = "eager" if capped else model.config._attn_implementation
        installed = attention.install(model)
        self._group = _query_group(self.config) if installed else 1
        # On a GPU few rows more cost little, and what is recorded needs shapes that repeat.
        self.lays_end_to_end = installed and device.type == "cpu" and recordings is None
        self._plan = MaskPlan.of(self.config)
        self._longest = max_context(self.config)
        self._one_logit = "logits_to_keep" in inspect.signature(model.forward).parameters
        self.weight_bytes = _weight_bytes(model)
        self.recordings = recordings
        self.tap: HiddenTap | None = None
        if device.type == "cpu":
            pack(model)
        else:
            fuse_norms(model)
            make_recordable(model)

    def reserve(self, slots: int, columns: int) -> None:
        """Have at least ``slots`` rows of ``columns`` columns; what an earlier run left is overwritten or masked."""
        if self.cache.slots != slots or self.cache.columns < columns:
            if self.recordings is not None:
                self.recordings.clear()
            self.cache = SlotCache(0, 0, self.device)  # the old one is freed before the new one is allocated
            self.cache = SlotCache(slots, rounded_columns(columns), self.device)

    def forward(self, tokens: Tensor, first: Ints, row: int = 0, keep: int = 0, ragged: Ragged | None = None) -> Tensor:
        """Logits ``[B, W, V]`` after each of ``tokens`` [B, W]; only the last ``keep`` positions of W, unless 0.

        Row b of the batch is slot ``row`` + b, and its tokens stand at ``first[b]`` onwards: their K/V are written
        there, and each sees the columns up to its own. Columns before ``first`` must be valid. ``ragged`` (where this
        ``lays_end_to_end``, from row 0, all logits kept): run only those of ``tokens``; their logits are [1, T, V].
        Logits of a recorded forward hold until the next one.
        """
        if row == 0 and self.recordings is not None:
            logits = self._replay(self.recordings, tokens, first, keep)
            if logits is not None:
                return logits
        return self._forward(tokens, first, row, keep, ragged)

    def rows_run(self, batch: int) -> int:
        """How many rows ``forward`` runs of ``batch`` from slot 0: what is recorded fills a bucket up."""
        recorded = self.recordings is not None and not self.recordings.failure
        return row_bucket(batch, self.cache.slots) if recorded else batch

    def _forward(self, tokens: Tensor, first: Ints, row: int, keep: int, ragged: Ragged | None = None) -> Tensor:
        width = tokens.shape[1]
        positions = to_device(first[:, None] + np.arange(width), self.device)
        live = min(rounded_columns(int(first.max()) + width), self.cache.columns)
        self.cache.place(row, first, positions, live, ragged)
        mask = self._plan.build(positions, live, self._group, self.model.dtype)
        if ragged is not None:
            tokens, positions = ragged.pack(tokens)[None], ragged.pack(positions)[None]
        with attention.end_to_end(ragged):
            return self._run(tokens, positions, mask, keep)

    def _replay(self, recordings: Recordings, tokens: Tensor, first: Ints, keep: int) -> Tensor | None:
        """As ``forward`` for slots 0 onwards, recorded; None where it cannot be.

        Rows that fill a bucket up are slots beyond the active ones, run at columns 0 onwards. Nobody reads them: a
        request that takes a slot begins by writing its prompt, and sees no column beyond what it wrote.
        """
        (batch, width), slots = tokens.shape, self.cache.slots
        rows = row_bucket(batch, slots)
        live = column_bucket(int(first.max()) + width, self.cache.columns)
        tap = self.tap
        layers = self.model.base_model.config.get_text_config().num_hidden_layers  # what ``first_layers`` changes

        def body(tokens: Tensor, first: Tensor) -> tuple[Tensor, ...]:
            positions = first[:, None] + torch.arange(width, device=self.device)
            self.cache.place_anew(positions, live)
            mask = self._plan.build(positions, live, self._group, self.model.dtype)
            logits = self._run(tokens, positions, mask, keep)
            self.cache.forget_place()
            return (logits, *(tap.withdraw() if tap is not None else ()))

        key = (live, keep, layers, tap.states if tap is not None else ())
        outputs = recordings.run(key, rows, (tokens, on_host(first, self.device)), body)
        if outputs is None:  # it may have broken off anywhere
            self.cache.forget_place()
            if tap is not None:
                tap.forget()
            return None
        if tap is not None:
            tap.leave(outputs[1:])
        return outputs[0]

    def _run(self, tokens: Tensor, positions: Tensor, mask: Tensor | dict[str, Tensor], keep: int) -> Tensor:
        """The model's forward over tokens whose place in the cache is said; logits as in ``forward``."""
        logits: Tensor = self.model(
            input_ids=tokens,
            attention_mask=mask,
            # Padding beyond a row's end may stand past a learned table, or past the length at which dynamic scaling
            # would turn every row's keys; its column is still its own.
            position_ids=positions.clamp_max(self._longest - 1),
            past_key_values=self.cache,
            use_cache=True,
            **({"logits_to_keep": keep} if self._one_logit else {}),
        ).logits
        return logits[:, -keep:] if logits.shape[1] > keep > 0 else logits

    def forward_once(self, tokens: Tensor, first: Ints) -> Tensor:
        """As ``forward`` from slot 0, never recorded: for shapes that do not come again."""
        return self._forward(tokens, first, row=0, keep=0)

    def prefill(self, row: int, tokens: Ints, start: int = 0) -> Tensor:
        """Run ``tokens`` [P] of one slot from position ``start``; the logits ``[V]`` after the last of them."""
        for begin in range(0, len(tokens), PREFILL_CHUNK):
            chunk = to_device(tokens[None, begin : begin + PREFILL_CHUNK], self.device)
            logits = self._forward(chunk, np.array([start + begin]), row, keep=1)
        return logits[0, -1]

    def plain_logits(self, tokens: Sequence[int]) -> Tensor:
        """The logits ``[V]`` after ``tokens``, through the model's own attention and no cache of ours."""
        ids = torch.tensor([list(tokens)], dtype=torch.int64, device=self.device)
        slotted = self.model.config._attn_implementation
        self.model.set_attn_implementation(self._own_attention)
        try:
            keep = {"logits_to_keep": 1} if self._one_logit else {}
            logits: Tensor = self.model(input_ids=ids, use_cache=False, **keep).logits
        finally:
            self.model.set_attn_implementation(slotted)
        return logits[0, -1]

    @contextlib.contextmanager
    def first_layers(self, layers: int) -> Iterator[None]:
        """Within it, forwards run only the first ``layers`` layers, then the final norm and the head.

        For models that choose their layers by ``num_hidden_layers`` (``supported.EARLY_EXIT``).
        """
        config = self.model.base_model.config.get_text_config()
        whole = config.num_hidden_layers
        config.num_hidden_layers = layers
        try:
            yield
        finally:
            config.num_hidden_layers = whole


def _weight_bytes(model: PreTrainedModel) -> int:
    """What the model's weights take, shared ones once."""
    return sum({p.data_ptr(): p.numel() * p.element_size() for p in model.parameters()}.values())


def _query_group(config: PreTrainedConfig) -> int:
    """Query heads that share a K/V head."""
    heads = int(config.num_attention_heads)
    return heads // int(getattr(config, "num_key_value_heads", None) or heads)

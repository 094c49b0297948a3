"""Attention over a slot cache without repeating K and V for grouped queries."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from pipeline.engines.decoding.ragged import Ragged
from pipeline.records.failure import InputError

NAME = "slots"
"""The attention implementation under which this is registered with transformers."""

_RAGGED: ContextVar[Ragged | None] = ContextVar("ragged", default=None)


@contextlib.contextmanager
def end_to_end(ragged: Ragged | None) -> Iterator[None]:
    """Within it ``attend`` takes queries [1, H, T, D] of ``ragged`` rows, unless that is None.

    It cannot be an argument, for not every model passes arguments on to its attention.
    """
    token = _RAGGED.set(ragged)
    try:
        yield
    finally:
        _RAGGED.reset(token)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """softmax(scaling · q kᵀ + mask) v, as [B, W, H, D], of q [B, H, W, D] over k, v [B, H_kv, L, D].

    The G = H / H_kv query heads that share a K/V head are laid along the query length, so that one product reads K
    once; a mask of G·W rows is already laid out so (see ``MaskPlan.build``). Soft caps and sinks (``s_aux`` [H], one
    more logit a head that takes weight and gives no value) are honoured; windows are in the mask. Rows that were laid
    end to end (``end_to_end``) are padded here only, where each has its own past, and come out as [1, T, H, D].

    Raises InputError for a position bias, RuntimeError without a mask: rows differ in length, so nothing is causal by
    itself here.
    """
    if position_bias is not None:
        raise InputError(f"{type(module).__name__} adds a position bias to attention, which cannot be decoded here")
    if attention_mask is None:
        raise RuntimeError(f"{type(module).__name__} was called without a mask")
    ragged = _RAGGED.get()
    if ragged is not None:
        query = ragged.spread(query[0].transpose(0, 1)).transpose(1, 2)
    batch, heads, width, depth = query.shape
    kv_heads = key.shape[1]
    group = heads // kv_heads
    if attention_mask.shape[-2] not in (1, group * width):
        attention_mask = attention_mask.repeat(1, 1, group, 1)
    folded = query.reshape(batch, kv_heads, group * width, depth)
    if softcap is None and s_aux is None:
        out = nn.functional.scaled_dot_product_attention(folded, key, value, attn_mask=attention_mask, scale=scaling)
    else:
        scale = scaling if scaling is not None else depth**-0.5
        out = _explicit(folded, key, value, attention_mask, scale, softcap, s_aux)
    out = out.reshape(batch, heads, width, value.shape[-1]).transpose(1, 2)
    return out.contiguous() if ragged is None else ragged.pack(out)[None], None


def _explicit(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float, softcap: float | None, sinks: Tensor | None
) -> Tensor:
    """The same on folded queries [B, H_kv, G·W, D], with what the fused kernel lacks; softmax in fp32."""
    scores = (query @ key.transpose(2, 3)) * scale
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    scores = scores + mask
    if sinks is not None:
        kv_heads, rows = scores.shape[1:3]
        per_head = sinks.to(scores.dtype).view(1, kv_heads, -1, 1)
        sink = per_head.repeat_interleave(rows // per_head.shape[2], dim=2).expand(scores.shape[0], -1, -1, 1)
        scores = torch.cat((scores, sink), dim=-1)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype)
    return weights[..., : key.shape[2]] @ value


def install(model: PreTrainedModel) -> bool:
    """Make ``model`` attend through ``attend``; False where it does not follow transformers' attention interface.

    Such a model keeps its own attention, which takes the unfolded mask.
    """
    if not model._supports_attention_backend or not model._can_set_attn_implementation():
        return False
    AttentionInterface.register(NAME, attend)
    model.set_attn_implementation(NAME)
    return bool(model.config._attn_implementation == NAME)

"""What a forward costs: the greater of its memory time and its arithmetic time.

The roofline model (Williams, Waterman and Patterson 2009, doi:10.1145/1498765.1498785) for a decoder: weights are read
once a pass whatever its width, keys and values of each row's context once, activations are negligible; a
multiply-accumulate is two FLOPs (Kaplan et al. 2020, arXiv 2001.08361, section 2.1). Plain numbers in, plain numbers
out: B rows of W positions each, after ``context`` committed tokens a row (a mean).
"""

from __future__ import annotations

from dataclasses import replace

from pipeline.engines.devices import Device
from pipeline.records.shape import ModelShape
from pipeline.records.target import Draft, DraftModel, DType, EarlyExit, Medusa, Ngram

BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
NGRAM_MS = 0.1
"""Prompt lookup of a block, on the host."""
EAGLE3_VOCABULARY = 32_000
"""Published EAGLE-3 heads guess among so many of the target's tokens (arXiv 2503.01840)."""


def weight_bytes(shape: ModelShape, dtype: DType) -> int:
    """What the weights take in memory: embedding, layers with every expert, final norm, output head if it is untied."""
    table = shape.vocab_size * shape.hidden_size
    tables = table if shape.tie_word_embeddings else 2 * table
    layer = _attention(shape) + _router(shape) + max(1, shape.num_experts) * _mlp(shape)
    return BYTES[dtype] * (tables + shape.num_hidden_layers * layer + shape.hidden_size)


def kv_bytes_per_token(shape: ModelShape, dtype: DType) -> int:
    """Keys and values of one token in every layer."""
    return BYTES[dtype] * 2 * shape.num_hidden_layers * shape.num_key_value_heads * shape.head_dim


def experts_read(shape: ModelShape, tokens: float) -> float:
    """Expected number of distinct experts that ``tokens`` tokens activate in one layer; 0 for a dense model.

    n·(1 − (1 − k/n)^T) with uniform, independent routing, as in MoESD (arXiv 2505.19645): k at one token, n in the
    limit. Real routing is skewed and alike in neighbouring tokens, so it reads fewer.
    """
    if not shape.num_experts:
        return 0.0
    share = shape.num_experts_per_tok / shape.num_experts
    return shape.num_experts * (1.0 - float((1.0 - share) ** tokens))


def flops_per_token(shape: ModelShape, context: float) -> float:
    """FLOPs of one position that attends to ``context`` tokens, output head included."""
    experts = shape.num_experts_per_tok if shape.num_experts else 1
    weights = _attention(shape) + _router(shape) + experts * _mlp(shape)
    attended = 4 * shape.num_attention_heads * shape.head_dim * context
    return shape.num_hidden_layers * (2 * weights + attended) + 2 * shape.vocab_size * shape.hidden_size


def bytes_read(shape: ModelShape, dtype: DType, rows: float, width: float, context: float) -> float:
    """Weights that the pass uses, once, and keys and values of each row, the new ones included."""
    return _weights_read(shape, dtype, rows * width) + _kv_read(shape, dtype, rows, width, context)


def forward_ms(
    shape: ModelShape, device: Device, dtype: DType, *, rows: float, width: float = 1, context: float = 0
) -> float:
    """One forward over ``rows`` × ``width`` positions: max(memory, arithmetic) and the device's overhead."""
    tokens = rows * width
    slower = device.wide_factor if tokens > 1 else 1.0
    read = slower * _weights_read(shape, dtype, tokens) + _kv_read(shape, dtype, rows, width, context)
    flops = tokens * flops_per_token(shape, context + (width + 1) / 2)
    overhead = device.launch_ms + shape.num_hidden_layers * device.layer_ms
    return max(read / device.bytes_per_ms, flops / device.flops_per_ms(dtype)) + overhead


def draft_shape(draft: Draft, target: ModelShape, own: ModelShape | None) -> ModelShape | None:
    """What runs once a proposed token; None where that is no decoder (n-gram, Medusa) or not known.

    An EAGLE-3 head is one layer of the target's, dense, under a smaller output head; that its attention reads twice the
    width, and the projection of three hidden states before it, are left out.
    """
    if isinstance(draft, DraftModel):
        return own
    if isinstance(draft, EarlyExit):
        return replace(target, num_hidden_layers=draft.layers)
    if isinstance(draft, Ngram | Medusa):
        return None
    return replace(
        target,
        num_hidden_layers=1,
        intermediate_size=target.intermediate_size * max(1, target.num_experts_per_tok),
        num_experts=0,
        num_experts_per_tok=0,
        vocab_size=min(target.vocab_size, EAGLE3_VOCABULARY),
    )


def drafting_ms(
    draft: Draft,
    gamma: float,
    target: ModelShape,
    own: ModelShape | None,
    device: Device,
    dtype: DType,
    *,
    rows: float,
    context: float = 0,
) -> float:
    """Proposing ``gamma`` tokens in each of ``rows`` rows. ``own`` is the shape of a draft model.

    Raises ValueError for a draft model without one.
    """
    if gamma == 0:
        return 0.0
    if isinstance(draft, Ngram):
        return NGRAM_MS
    if isinstance(draft, Medusa):  # γ heads at once, each a residual block and an output head (arXiv 2401.10774)
        weights = gamma * target.hidden_size * (target.hidden_size + target.vocab_size)
        read, flops = BYTES[dtype] * weights, 2 * rows * weights
        return max(read / device.bytes_per_ms, flops / device.flops_per_ms(dtype)) + device.launch_ms
    shape = draft_shape(draft, target, own)
    if shape is None:
        raise ValueError(f"draft {draft.name}: the shape of its model is not known")
    precision = draft.dtype or dtype if isinstance(draft, DraftModel) else dtype
    return gamma * forward_ms(shape, device, precision, rows=rows, context=context)


def _attention(shape: ModelShape) -> int:
    """Weights of a layer's attention, and its two norms."""
    queries = shape.num_attention_heads * shape.head_dim
    keys = shape.num_key_value_heads * shape.head_dim
    return shape.hidden_size * (2 * queries + 2 * keys) + 2 * shape.hidden_size


def _mlp(shape: ModelShape) -> int:
    """Weights of a gated MLP: of one expert where there are experts."""
    return 3 * shape.hidden_size * shape.intermediate_size


def _router(shape: ModelShape) -> int:
    return shape.num_experts * shape.hidden_size


def _weights_read(shape: ModelShape, dtype: DType, tokens: float) -> float:
    """The embedding's few rows are left out; the output head is read whether or not it is tied."""
    experts = experts_read(shape, tokens) if shape.num_experts else 1.0
    layer = _attention(shape) + _router(shape) + experts * _mlp(shape)
    return BYTES[dtype] * (shape.num_hidden_layers * layer + shape.hidden_size + shape.vocab_size * shape.hidden_size)


def _kv_read(shape: ModelShape, dtype: DType, rows: float, width: float, context: float) -> float:
    return rows * (context + width) * kv_bytes_per_token(shape, dtype)
